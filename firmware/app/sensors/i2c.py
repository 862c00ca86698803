"""What the drivers of I2C chips share: the bus, its words and checksums, and what answers if the chip does not.

The keys of a settings entry are scl, sda, bus (0 or 1, by the board) and address (a number; each driver has a default).
Without scl and sda, the board's pins module gives them.
"""


class Chip:
    """A chip on I2C. A driver sets `address`, `metrics` and, if it needs time to measure, `lead_ms` and start().

    setup() is called once the chip has answered, and may raise OSError.
    """

    address = 0
    lead_ms = 0

    def __init__(self, scl=None, sda=None, address=None, bus=0, i2c=None):
        """i2c: a machine.I2C to use instead of pins. Raises OSError if nothing answers at the address."""
        self._i2c = i2c = i2c or open_bus(bus, scl, sda)
        if address is not None:
            self.address = address
        if self.address not in i2c.scan():
            from app.sensors.i2c_names import nobody_at

            raise OSError(nobody_at(i2c, self.address))
        self.setup()

    def setup(self):
        pass

    def send(self, *data):
        """Write bytes."""
        self._i2c.writeto(self.address, bytes(data))

    def receive(self, count):
        """Read `count` bytes."""
        return self._i2c.readfrom(self.address, count)

    def words(self, count):
        """Read `count` words of 16 bits, each with its checksum, as Sensirion's chips send them."""
        data = self.receive(3 * count)
        for at in range(0, len(data), 3):
            check_crc8(data[at : at + 3])
        return [data[at] << 8 | data[at + 1] for at in range(0, len(data), 3)]

    def load(self, register, count):
        """Read `count` bytes of the registers from this one on."""
        return self._i2c.readfrom_mem(self.address, register, count)

    def load_word(self, register):
        """Read a register of 16 bits without a sign, the high byte first."""
        high, low = self.load(register, 2)
        return high << 8 | low

    def store(self, register, *data):
        """Write bytes to the registers from this one on."""
        self._i2c.writeto_mem(self.address, register, bytes(data))

    def check_id(self, register, *ids):
        """Return the id in a register. Raises OSError if it is none of `ids`."""
        found = self.load(register, 1)[0]
        if found not in ids:
            raise OSError("the chip at 0x%02x has the id 0x%02x, not 0x%02x" % (self.address, found, ids[0]))
        return found


def open_bus(bus, scl, sda):
    from machine import I2C, Pin

    if scl is None or sda is None:
        import pins

        scl, sda = pins.I2C_SCL, pins.I2C_SDA
    return I2C(bus, scl=Pin(scl), sda=Pin(sda), freq=100_000)


def check_crc8(data):
    """Raise OSError unless the last byte is the CRC of the others: polynomial 0x31, first value 0xFF."""
    crc = 0xFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc << 1 ^ 0x131 if crc & 0x80 else crc << 1
    if crc:
        raise OSError("its checksum is wrong: noise on the wires")


def signed(value, bits=16):
    """Return the number in two's complement that `value` holds."""
    return value - (1 << bits) if value >> bits - 1 else value
