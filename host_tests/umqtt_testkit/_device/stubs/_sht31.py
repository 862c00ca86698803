"""A Sensirion SHT31 with its commands (data sheet SHT3x-DIS, version 7, section 4), for machine.I2C.

world: {"celsius": …, "percent": …}. write() and read_into() return False where the chip does not acknowledge: an
unknown command, a read during a measurement without clock stretching, or a read with no data ready.
"""

import time

# Longest measurement in ms by repeatability (table 4), and commands of single measurements (table 9).
_HIGH_MS, _MEDIUM_MS, _LOW_MS = 16, 7, 5
_STRETCHED = {0x2C06: _HIGH_MS, 0x2C0D: _MEDIUM_MS, 0x2C10: _LOW_MS}
_POLLED = {0x2400: _HIGH_MS, 0x240B: _MEDIUM_MS, 0x2416: _LOW_MS}
# Measures continuously from then on (tables 10 and 12), until 0x3093.
_PERIODIC = (
    0x2032, 0x2024, 0x202F, 0x2130, 0x2126, 0x212D, 0x2236, 0x2220, 0x222B, 0x2334, 0x2322, 0x2329, 0x2737, 0x2721,
    0x272A, 0x2B32,
)  # fmt: skip
_FETCH, _BREAK, _RESET, _STATUS, _CLEAR, _HEATER_ON, _HEATER_OFF = (
    0xE000, 0x3093, 0x30A2, 0xF32D, 0x3041, 0x306D, 0x3066,
)  # fmt: skip
# Alert pending and reset detected, as after power-on (table 18).
_STATUS_AFTER_RESET = 0x8010
_STATUS_HEATER = 0x2000


class SHT31:
    def __init__(self):
        self.world = {}
        self._reset()

    def _reset(self):
        self._status = _STATUS_AFTER_RESET
        self._periodic = False
        self._words = None
        self._ready = time.ticks_ms()
        self._stretches = False

    def write(self, data):
        if len(data) < 2:
            return False
        command = data[0] << 8 | data[1]
        if command in _STRETCHED or command in _POLLED:
            self._stretches = command in _STRETCHED
            lasts = _STRETCHED.get(command) or _POLLED[command]
            self._ready = time.ticks_add(time.ticks_ms(), lasts)
            self._words = self._measured()
        elif command in _PERIODIC:
            self._periodic = True
        elif command == _FETCH:
            if not self._periodic:
                return False
            self._words = self._measured()
        elif command == _STATUS:
            self._words = (self._status,)
        elif command == _BREAK:
            self._periodic = False
        elif command == _RESET:
            self._reset()
        elif command == _CLEAR:
            self._status &= _STATUS_HEATER
        elif command == _HEATER_ON:
            self._status |= _STATUS_HEATER
        elif command == _HEATER_OFF:
            self._status &= ~_STATUS_HEATER
        else:
            return False
        return True

    def read_into(self, buf):
        wait = time.ticks_diff(self._ready, time.ticks_ms())
        if self._words is None or (wait > 0 and not self._stretches):
            return False
        if wait > 0:
            time.sleep_ms(wait)
        answer = b"".join([_with_crc(word) for word in self._words])
        self._words = None
        for position in range(len(buf)):
            buf[position] = answer[position] if position < len(answer) else 0xFF
        return True

    def _measured(self):
        # 4.13
        celsius = (self.world.get("celsius", 21) + 45) / 175
        percent = self.world.get("percent", 50) / 100
        return tuple([max(0, min(0xFFFF, round(share * 0xFFFF))) for share in (celsius, percent)])


def _with_crc(word):
    # 4.12: polynomial 0x31, initial value 0xFF.
    data = bytes((word >> 8, word & 0xFF))
    crc = 0xFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ 0x31 if crc & 0x80 else crc << 1) & 0xFF
    return data + bytes((crc,))
