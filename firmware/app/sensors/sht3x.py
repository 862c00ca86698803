"""temp_c and humidity_pct of a Sensirion SHT30, SHT31 or SHT35 on I2C: {"module": "sht3x", "scl": 22, "sda": 21}

address: 68 (default) or 69. Data sheet: Sensirion SHT3x-DIS, 4.3 and 4.13.
"""

from app.sensors.i2c import Chip


class Sensor(Chip):
    address = 0x44
    lead_ms = 16  # at most 15.5
    metrics = {"temp_c": (-40, 125), "humidity_pct": (0, 100)}

    def start(self):
        self.send(0x24, 0x00)  # once, with high repeatability; it does not answer before it has measured

    def read(self):
        temperature, humidity = self.words(2)
        return {
            "temp_c": round(temperature * 175 / 65535 - 45, 2),
            "humidity_pct": round(humidity * 100 / 65535, 1),
        }
