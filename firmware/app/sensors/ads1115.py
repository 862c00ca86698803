"""a0_v to a3_v of a Texas Instruments ADS1115 on I2C: {"module": "ads1115", "scl": 22, "sda": 21, "channels": [0]}

address: 72 (default) to 75; channels: of 0 to 3, against ground (default: all); range_v: 6.144, 4.096 (default), 2.048,
1.024, 0.512 or 0.256; factor: of a divider (1). A channel takes 2 ms. Data sheet: Texas Instruments SBAS444, 8.1.
"""

import time

from app.sensors.i2c import Chip, signed

_CONVERSION, _CONFIGURATION = 0, 1
_RANGES = (6.144, 4.096, 2.048, 1.024, 0.512, 0.256)
_READY = 0x80


class Sensor(Chip):
    address = 0x48
    metrics = {"a%d_v" % channel: (-0.3, 100) for channel in range(4)}

    def __init__(self, channels=(0, 1, 2, 3), range_v=4.096, factor=1, **bus):
        self._channels = channels
        self._gain = _RANGES.index(range_v)
        self._step = range_v / 32768 * factor
        self.problem = None
        super().__init__(**bus)

    def read(self):
        self.problem = None
        found = {}
        for channel in self._channels:
            raw = self._convert(channel)
            if raw == 32767:
                self.problem = "a%d_v: more than range_v" % channel
            else:
                found["a%d_v" % channel] = round(raw * self._step, 5)
        return found

    def _convert(self, channel):
        # Convert once; 860 samples a second, no comparator.
        high, low = 0x81 | (4 + channel) << 4 | self._gain << 1, 0xE3
        self.store(_CONFIGURATION, high, low)
        for _ in range(3):
            time.sleep_ms(1)
            now = self.load(_CONFIGURATION, 2)
            if now[0] == high and now[1] == low and now[0] & _READY:
                break
        else:
            raise OSError("it has not measured: its configuration is 0x%02x%02x" % (now[0], now[1]))
        return signed(self.load_word(_CONVERSION))
