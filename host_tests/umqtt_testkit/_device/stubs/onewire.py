"""The `onewire` module that is frozen into esp32 and rp2 images, on a bus of DS18B20 thermometers.

Hook "ds18b20": {PIN: [21.5, null, "crc", …]}: one thermometer per entry; null does not answer, "crc" answers with
noise on the line. A bus without an entry has no devices: reset() finds none.
"""

import time

from _pins import pin_number
from _virtual import hook_at

_FAMILY = 0x28
# Data sheet: 85 °C until the first conversion; 12 bits take up to 750 ms.
_POWER_ON = 85.0
_CONVERSION_MS = 750
_CONVERT, _READ_SCRATCHPAD, _WRITE_SCRATCHPAD = 0x44, 0xBE, 0x4E

# By pin: the temperature of each device as of its last conversion; and the end and results of a running conversion.
_measured = {}
_converting = {}


class OneWireError(Exception):
    pass


class OneWire:
    SEARCH_ROM = 0xF0
    MATCH_ROM = 0x55
    SKIP_ROM = 0xCC

    def __init__(self, pin):
        self.pin = pin
        self.pin.init(pin.OPEN_DRAIN, pin.PULL_UP)
        self._bus = pin_number(pin)
        self._written = bytearray()
        self._answer = b""

    def reset(self, required=False):
        self._written = bytearray()
        self._answer = b""
        present = bool(self._devices())
        if required and not present:
            raise OneWireError
        return present

    def readbit(self):
        # A conversion is running: read 0 until it ends.
        ends = _converting.get(self._bus)
        return 0 if ends and time.ticks_diff(ends[0], time.ticks_ms()) > 0 else 1

    def readbyte(self):
        # No device pulls the line down: all ones.
        value, self._answer = (self._answer[0], self._answer[1:]) if self._answer else (0xFF, b"")
        return value

    def readinto(self, buf):
        for position in range(len(buf)):
            buf[position] = self.readbyte()

    def writebit(self, value):
        pass

    def writebyte(self, value):
        self._written.append(value)
        written = self._written
        if written[0] == self.SKIP_ROM and len(written) == 2:
            self._order(value, sorted(self._devices()))
        elif written[0] == self.MATCH_ROM and len(written) == 10:
            self._order(value, [rom for rom in self._devices() if rom == bytes(written[1:9])])

    def write(self, buf):
        for value in buf:
            self.writebyte(value)

    def select_rom(self, rom):
        self.reset()
        self.writebyte(self.MATCH_ROM)
        self.write(rom)

    def scan(self):
        return [bytearray(rom) for rom in sorted(self._devices())]

    def crc8(self, data):
        crc = 0
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x8C if crc & 1 else 0)
        return crc

    # The bus

    def _devices(self):
        # {ROM of each device that answers: its hook value}.
        found = {}
        for position, state in enumerate(hook_at("ds18b20", self._bus, ())):
            if state is not None:
                rom = bytes((_FAMILY, self._bus, position, 0, 0, 0, 0))
                found[rom + bytes((self.crc8(rom),))] = state
        return found

    def _order(self, command, roms):
        if command == _CONVERT:
            devices = self._devices()
            ends = time.ticks_add(time.ticks_ms(), _CONVERSION_MS)
            _converting[self._bus] = (ends, {rom: devices[rom] for rom in roms})
        elif command == _READ_SCRATCHPAD and roms:
            self._answer = self._scratchpad(roms[0])

    def _scratchpad(self, rom):
        measured = _measured.setdefault(self._bus, {})
        if self.readbit() and self._bus in _converting:
            measured.update(_converting.pop(self._bus)[1])
        state = self._devices()[rom]
        celsius = measured.get(rom, _POWER_ON)
        if isinstance(celsius, str):
            celsius = _POWER_ON
        data = (round(celsius * 16) & 0xFFFF).to_bytes(2, "little") + b"\x4b\x46\x7f\xff\x0c\x10"
        crc = self.crc8(data)
        return data + bytes((crc ^ 0x55 if state == "crc" else crc,))
