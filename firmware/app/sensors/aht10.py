"""temp_c and humidity_pct of an Aosong AHT10 on I2C, which sends no checksum: {"module": "aht10", "scl": 22, "sda": 21}

address: 56 (default) or 57. Data sheet: Aosong AHT10, 5.3 and 5.4.
"""

from app.sensors.aht20 import Sensor as Aht20


class Sensor(Aht20):
    initialise = 0xE1
    has_checksum = False
