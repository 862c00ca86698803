"""temp_c and humidity_pct of a Sensirion SHT40, SHT41 or SHT45 on I2C: {"module": "sht4x", "scl": 22, "sda": 21}

address: 68 (default), 69 or 70. Data sheet: Sensirion SHT4x, 4.5 and 4.6.
"""

from app.sensors.i2c import Chip

_MEASURE = 0xFD  # with high precision


class Sensor(Chip):
    address = 0x44
    lead_ms = 10  # at most 8.3
    metrics = {"temp_c": (-40, 125), "humidity_pct": (0, 100)}

    def start(self):
        self.send(_MEASURE)

    def read(self):
        temperature, humidity = self.words(2)
        # The formula gives a little less than 0 and more than 100 at the ends, which the data sheet has cropped.
        percent = min(max(humidity * 125 / 65535 - 6, 0), 100)
        return {"temp_c": round(temperature * 175 / 65535 - 45, 2), "humidity_pct": round(percent, 1)}
