"""The `ds18x20` module that is frozen into esp32 and rp2 images (see onewire for the hook).

read_temp() raises OneWireError if no device is on the bus, and a plain Exception("CRC error") for noise. A thermometer
that left the bus also gives a CRC error, because it reads all ones.
"""

_FAMILIES = (0x10, 0x22, 0x28)


class DS18X20:
    def __init__(self, onewire):
        self.ow = onewire
        self.buf = bytearray(9)

    def scan(self):
        return [rom for rom in self.ow.scan() if rom[0] in _FAMILIES]

    def convert_temp(self):
        self.ow.reset(True)
        self.ow.writebyte(self.ow.SKIP_ROM)
        self.ow.writebyte(0x44)

    def read_scratch(self, rom):
        self.ow.reset(True)
        self.ow.select_rom(rom)
        self.ow.writebyte(0xBE)
        self.ow.readinto(self.buf)
        if self.ow.crc8(self.buf):
            raise Exception("CRC error")
        return self.buf

    def write_scratch(self, rom, buf):
        self.ow.reset(True)
        self.ow.select_rom(rom)
        self.ow.writebyte(0x4E)
        self.ow.write(buf)

    def read_temp(self, rom):
        low, high = self.read_scratch(rom)[:2]
        sixteenths = high << 8 | low
        return (sixteenths - 0x10000 if high & 0x80 else sixteenths) / 16
