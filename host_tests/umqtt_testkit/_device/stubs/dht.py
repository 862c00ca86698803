"""The `dht` module that is frozen into esp32 and rp2 images.

Hook "dht": {PIN: [CELSIUS, PERCENT]}: the measured values; "checksum": noise on the line; null or no entry: no
answer. measure() takes about 0.27 s, with interrupts off for the last 5 ms of it, as the driver in C does.
"""

import errno
import time

from _pins import pin_number
from _virtual import hook_at

_START_MS = 268


class DHTBase:
    def __init__(self, pin):
        self.pin = pin
        self.buf = bytearray(5)

    def measure(self):
        time.sleep_ms(_START_MS)
        state = hook_at("dht", pin_number(self.pin))
        if state is None:
            raise OSError(errno.ETIMEDOUT)
        if state == "checksum":
            raise Exception("checksum error")
        time.sleep_ms(5)
        self._encode(*state)


class DHT11(DHTBase):
    def _encode(self, celsius, percent):
        self.buf[0], self.buf[1], self.buf[2], self.buf[3] = round(percent), 0, round(celsius), 0
        self.buf[4] = sum(self.buf[:4]) & 0xFF

    def humidity(self):
        return self.buf[0]

    def temperature(self):
        return self.buf[2]


class DHT22(DHTBase):
    def _encode(self, celsius, percent):
        tenths = round(abs(celsius) * 10) | (0x8000 if celsius < 0 else 0)
        self.buf[:4] = round(percent * 10).to_bytes(2, "big") + tenths.to_bytes(2, "big")
        self.buf[4] = sum(self.buf[:4]) & 0xFF

    def humidity(self):
        return (self.buf[0] << 8 | self.buf[1]) * 0.1

    def temperature(self):
        tenths = (self.buf[2] & 0x7F) << 8 | self.buf[3]
        return (-tenths if self.buf[2] & 0x80 else tenths) * 0.1
