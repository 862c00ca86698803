"""light_lx of a Rohm BH1750 on I2C: {"module": "bh1750", "scl": 22, "sda": 21}

address: 35 (default) or 92. The chip has no checksum and no state that tells whether it has measured. Data sheet: Rohm
BH1750FVI, instruction set and "measurement sequence".
"""

from app.sensors.i2c import Chip

_ONCE_HIGH_RESOLUTION = 0x20


class Sensor(Chip):
    address = 0x23
    lead_ms = 180
    metrics = {"light_lx": (0, 54612)}

    def start(self):
        self.send(_ONCE_HIGH_RESOLUTION)

    def read(self):
        high, low = self.receive(2)
        if high & low == 0xFF:
            raise OSError("too bright, or a bad wire: it reads all ones")
        return {"light_lx": round((high << 8 | low) / 1.2, 1)}
