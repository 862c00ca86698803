"""distance_mm of an ST VL53L0X on I2C: {"module": "vl53l0x", "scl": 22, "sda": 21}

The chip measures as it is when it leaves the factory, without the tuning of ST's own software: to about 1.2 m. What is
farther away gives no value. Data sheet: ST DS11555, 2.7 (a measurement takes 33 ms) and 3.2.
"""

from app.sensors.i2c import Chip

_START, _RESULT, _MODEL = 0x00, 0x14, 0xC0
_VALID = 11


class Sensor(Chip):
    address = 0x29
    lead_ms = 50
    metrics = {"distance_mm": (30, 2000)}

    def setup(self):
        self.check_id(_MODEL, 0xEE)

    def start(self):
        self.store(_START, 1)

    def read(self):
        data = self.load(_RESULT, 12)
        if not data[0] & 1:
            raise OSError("it has not measured: did it lose its power?")
        state = data[0] >> 3 & 15
        self.problem = None if state == _VALID else "nothing that it sees: its range status is %d" % state
        return {} if self.problem else {"distance_mm": data[10] << 8 | data[11]}
