"""temp_c and humidity_pct of an Aosong AHT20 or AHT21 on I2C: {"module": "aht20", "scl": 22, "sda": 21}

Data sheet: Aosong AHT20, 5.3, 5.4 and 6.
"""

from app.sensors.i2c import Chip, check_crc8

_BUSY, _CALIBRATED = 0x80, 0x08


class Sensor(Chip):
    address = 0x38
    lead_ms = 80
    metrics = {"temp_c": (-40, 85), "humidity_pct": (0, 100)}
    initialise = 0xBE
    has_checksum = True

    def setup(self):
        if not self.receive(1)[0] & _CALIBRATED:
            self.send(self.initialise, 0x08, 0x00)

    def start(self):
        self.send(0xAC, 0x33, 0x00)

    def read(self):
        data = self.receive(7 if self.has_checksum else 6)
        if data[0] & _BUSY or not data[0] & _CALIBRATED:
            raise OSError("it has not measured: its status is 0x%02x" % data[0])
        if self.has_checksum:
            check_crc8(data)
        # Two numbers of 20 bits share a byte.
        humidity = data[1] << 12 | data[2] << 4 | data[3] >> 4
        temperature = (data[3] & 15) << 16 | data[4] << 8 | data[5]
        return {
            "temp_c": round(temperature * 200 / 1048576 - 50, 2),
            "humidity_pct": round(humidity * 100 / 1048576, 1),
        }
