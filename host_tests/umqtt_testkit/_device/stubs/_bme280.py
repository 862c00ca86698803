"""A Bosch BME280 with its registers (data sheet BST-BME280-DS001, section 5), for machine.I2C and for tests.

world: {"celsius": …, "percent": …, "hpa": …}. A measurement writes the raw values that the data sheet's formulas
(4.2.3 and appendix 8) turn into these, to the resolution of the converter.
"""

import struct

_CHIP_ID = 0x60
_RESET = 0xB6
# Factory calibration: dig_T1 to dig_P9 are those of the data sheet's example; each real chip has its own.
_T = (27504, 26435, -1000)
_P = (36477, -10685, 3024, 2855, 140, -7, 15500, -14600, 6000)
_H1, _H2, _H3, _H4, _H5, _H6 = 75, 355, 0, 340, 50, 30
# What the data registers contain when a quantity was not measured.
_SKIPPED = b"\x80\x00\x00\x80\x00\x00\x80\x00"

_ID_REGISTER, _RESET_REGISTER, _HUMIDITY_CONTROL, _CONTROL, _DATA = 0xD0, 0xE0, 0xF2, 0xF4, 0xF7


class BME280:
    """The chip: write() takes a register number, then values; read_into() reads on from that register."""

    def __init__(self):
        self.world = {}
        self._pointer = 0
        self._power_on()

    def _power_on(self):
        self._registers = registers = bytearray(256)
        registers[_ID_REGISTER] = _CHIP_ID
        struct.pack_into("<HhhHhhhhhhhh", registers, 0x88, *(_T + _P))
        registers[0xA1] = _H1
        struct.pack_into("<hB", registers, 0xE1, _H2, _H3)
        registers[0xE4] = _H4 >> 4
        registers[0xE5] = (_H4 & 15) | (_H5 & 15) << 4
        registers[0xE6] = _H5 >> 4
        registers[0xE7] = _H6
        registers[_DATA:] = _SKIPPED + bytes(1)
        self._humidity_control = 0

    def write(self, data):
        self._pointer = data[0]
        # After the first, registers and values alternate (6.2.1).
        for position in range(0, len(data) - 1, 2):
            self._set(data[position], data[position + 1])

    def _set(self, register, value):
        if register == _RESET_REGISTER:
            if value == _RESET:
                self._power_on()
        elif register in (_HUMIDITY_CONTROL, _CONTROL, 0xF5):
            self._registers[register] = value
            if register == _CONTROL:
                # 5.4.3: a change of ctrl_hum counts from the next write to ctrl_meas.
                self._humidity_control = self._registers[_HUMIDITY_CONTROL]
                if value & 3:
                    self._measure(value)
                if value & 3 in (1, 2):
                    self._registers[register] = value & 0xFC  # a forced measurement ends in sleep mode

    def read_into(self, buf):
        if self._registers[_CONTROL] & 3 == 3:
            self._measure(self._registers[_CONTROL])  # normal mode measures all the time
        for position in range(len(buf)):
            buf[position] = self._registers[self._pointer + position & 0xFF]
        self._pointer = self._pointer + len(buf) & 0xFF

    def _measure(self, control):
        self._registers[_DATA : _DATA + 8] = _SKIPPED
        if not control >> 5:
            return  # the other two cannot be compensated without the temperature
        wanted = self.world
        raw = _search(_fine_temperature, wanted.get("celsius", 21) * 5120, 20)
        fine = _fine_temperature(raw)
        self._put(3, raw << 4, 3)
        if control >> 2 & 7:
            # A higher pressure is a lower raw value.
            pascal = wanted.get("hpa", 1013.25) * 100
            self._put(0, _search(lambda value: -_pressure(value, fine), -pascal, 20) << 4, 3)
        if self._humidity_control & 7:
            self._put(6, _search(lambda value: _humidity(value, fine), wanted.get("percent", 50), 16), 2)

    def _put(self, offset, value, size):
        self._registers[_DATA + offset : _DATA + offset + size] = value.to_bytes(size, "big")


def _search(function, wanted, bits):
    # The raw value at which a rising function reaches what is wanted.
    low, high = 0, (1 << bits) - 1
    while low < high:
        middle = low + high >> 1
        if function(middle) < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def _fine_temperature(raw):
    first = (raw / 16384 - _T[0] / 1024) * _T[1]
    second = raw / 131072 - _T[0] / 8192
    return first + second * second * _T[2]


def _pressure(raw, fine):
    first = fine / 2 - 64000
    second = first * first * _P[5] / 32768 + first * _P[4] * 2
    second = second / 4 + _P[3] * 65536
    first = (_P[2] * first * first / 524288 + _P[1] * first) / 524288
    first = (1 + first / 32768) * _P[0]
    pascal = (1048576 - raw - second / 4096) * 6250 / first
    return pascal + (_P[8] * pascal * pascal / 2147483648 + pascal * _P[7] / 32768 + _P[6]) / 16


def _humidity(raw, fine):
    rest = fine - 76800
    value = (raw - (_H4 * 64 + _H5 / 16384 * rest)) * (
        _H2 / 65536 * (1 + _H6 / 67108864 * rest * (1 + _H3 / 67108864 * rest))
    )
    return value * (1 - _H1 * value / 524288)
