"""voltage_v, current_a and power_w of a Texas Instruments INA226 on I2C: {"module": "ina226", "scl": 22, "sda": 21}

address: 64 (default) to 79; shunt_ohm: 0.1 (default). Data sheet: Texas Instruments SBOS547, 7.6.
"""

from app.sensors.ina219 import Sensor as Ina219

_CONFIGURATION, _BUS, _MASK, _DIE = 0, 2, 6, 0xFF
_CONVERTED = 8


class Sensor(Ina219):
    lead_ms = 40  # two times 16 conversions of 1.1 ms after setup()
    metrics = {"voltage_v": (0, 36), "current_a": (-0.82, 0.82), "power_w": (-30, 30)}
    shunt_step = 0.0000025
    most_volts = 0.08192

    def setup(self):
        self.check_id(_DIE, 0x22)
        self.store(_CONFIGURATION, 0x45, 0x27)  # the mean of 16, 1.1 ms each, continuously

    def volts(self):
        flags, raw = self.load_word(_MASK), self.load_word(_BUS)
        if not flags & _CONVERTED or raw & 0x8000:
            raise OSError("it has not measured: its bus register is 0x%04x" % raw)
        return raw * 0.00125
