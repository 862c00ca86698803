"""voltage_v, current_a and power_w of a Texas Instruments INA219 on I2C: {"module": "ina219", "scl": 22, "sda": 21}

address: 64 (default) to 79; shunt_ohm: 0.1 (default). The current is computed from the voltage of the shunt, so the
chip needs no calibration. Data sheet: Texas Instruments SBOS448, 8.6.
"""

from app.sensors.i2c import Chip, signed

_CONFIGURATION, _SHUNT, _BUS = 0, 1, 2
# Bits of the bus register: converted; overflow of the current register, which is not used; always 0.
_CONVERTED, _ALWAYS_0 = 2, 4


class Sensor(Chip):
    address = 0x40
    lead_ms = 2  # two conversions of 0.53 ms after setup()
    metrics = {"voltage_v": (0, 26), "current_a": (-3.2, 3.2), "power_w": (-84, 84)}
    # Volts for one step of the shunt's voltage, and their largest number.
    shunt_step = 0.00001
    most_volts = 0.32

    def __init__(self, shunt_ohm=0.1, **bus):
        self._shunt = shunt_ohm
        amperes, volts = self.most_volts / shunt_ohm, self.metrics["voltage_v"][1]
        self.metrics = {
            "voltage_v": (0, volts), "current_a": (-amperes, amperes), "power_w": (-amperes * volts, amperes * volts),
        }  # fmt: skip
        super().__init__(**bus)

    def setup(self):
        self.store(_CONFIGURATION, 0x39, 0x9F)  # its default: 32 V, 320 mV, 12 bits, continuously

    def volts(self):
        """Return the voltage of the bus. Raises OSError if it was not measured."""
        raw = self.load_word(_BUS)
        if raw & (_CONVERTED | _ALWAYS_0) != _CONVERTED:
            raise OSError("it has not measured: its bus register is 0x%04x" % raw)
        return (raw >> 3) * 0.004

    def read(self):
        volts = self.volts()
        amperes = signed(self.load_word(_SHUNT)) * self.shunt_step / self._shunt
        return {"voltage_v": round(volts, 3), "current_a": round(amperes, 5), "power_w": round(volts * amperes, 4)}
