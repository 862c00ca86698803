"""machine.I2C, SoftI2C, SPI, SoftSPI and UART of a virtual board.

Hook "i2c": {ADDRESS: DEVICE}: the connected devices, the same for every bus. DEVICE is
    {"model": "bme280", "celsius": 21.5, "percent": 40.0, "hpa": 1003.2}      values left out: 21, 50, 1013.25
    {"model": "sht31", "celsius": 21.5, "percent": 40.0}                      values left out: 21, 50
    "timeout"                                                                 holds the clock: ETIMEDOUT
An address without a device does not acknowledge: EIO on rp2, ENODEV on esp32 and from SoftI2C, as in the ports.
SPI reads zeros and UART nothing: no device for them is modelled.
"""

import errno

from _bme280 import BME280
from _pins import pin_number
from _sht31 import SHT31
from _virtual import IS_RP2, hook, hook_at

_MODELS = {"bme280": BME280, "sht31": SHT31}
_FIRST_ADDRESS, _LAST_ADDRESS = 0x08, 0x77


class SoftI2C:
    _NO_ACKNOWLEDGE = errno.ENODEV
    _devices = {}

    def __init__(self, scl, sda, *, freq=400000, timeout=50000):
        pin_number(scl)
        pin_number(sda)

    def init(self, *args, **options):
        pass

    def scan(self):
        return sorted(
            address
            for address in (int(key, 0) for key, device in hook("i2c", {}).items() if isinstance(device, dict))
            if _FIRST_ADDRESS <= address <= _LAST_ADDRESS
        )

    def _device(self, address):
        wanted = hook_at("i2c", address)
        if wanted == "timeout":
            raise OSError(errno.ETIMEDOUT)
        if wanted is None:
            # Unplugged: when it comes back, its registers are as after power-on.
            SoftI2C._devices.pop(address, None)
            raise OSError(self._NO_ACKNOWLEDGE)
        device = SoftI2C._devices.get(address)
        if device is None:
            device = SoftI2C._devices[address] = _MODELS[wanted.get("model", "bme280")]()
        device.world = wanted
        return device

    def _acknowledged(self, done):
        if done is False:
            raise OSError(self._NO_ACKNOWLEDGE)

    def readfrom_into(self, addr, buf, stop=True):
        self._acknowledged(self._device(addr).read_into(buf))

    def readfrom(self, addr, nbytes, stop=True):
        data = bytearray(nbytes)
        self.readfrom_into(addr, data)
        return bytes(data)

    def writeto(self, addr, buf, stop=True):
        self._acknowledged(self._device(addr).write(bytes(buf)))
        return len(buf)

    def writevto(self, addr, vector, stop=True):
        return self.writeto(addr, b"".join([bytes(part) for part in vector]))

    def readfrom_mem_into(self, addr, memaddr, buf, *, addrsize=8):
        device = self._device(addr)
        self._acknowledged(device.write(memaddr.to_bytes(addrsize // 8, "big")))
        self._acknowledged(device.read_into(buf))

    def readfrom_mem(self, addr, memaddr, nbytes, *, addrsize=8):
        data = bytearray(nbytes)
        self.readfrom_mem_into(addr, memaddr, data, addrsize=addrsize)
        return bytes(data)

    def writeto_mem(self, addr, memaddr, buf, *, addrsize=8):
        self._acknowledged(self._device(addr).write(memaddr.to_bytes(addrsize // 8, "big") + bytes(buf)))


class I2C(SoftI2C):
    """Hardware buses 0 and 1."""

    _NO_ACKNOWLEDGE = errno.EIO if IS_RP2 else errno.ENODEV

    def __init__(self, id=-1, *, scl=None, sda=None, freq=400000, timeout=50000):
        if id not in (0, 1):
            raise ValueError("I2C(%d) doesn't exist" % id)
        # RP2040 datasheet, 2.19.2: each bus can use every fourth pair of pins.
        for pin, low, text in ((scl, 1, "bad SCL pin"), (sda, 0, "bad SDA pin")):
            if pin is not None:
                number = pin_number(pin)
                if IS_RP2 and number % 4 != 2 * id + low:
                    raise ValueError(text)


class SPI:
    MSB = 0
    LSB = 1

    def __init__(self, id=-1, *args, **options):
        pass

    def init(self, *args, **options):
        pass

    def deinit(self):
        pass

    def read(self, nbytes, write=0):
        return bytes(nbytes)

    def readinto(self, buf, write=0):
        for position in range(len(buf)):
            buf[position] = 0

    def write(self, buf):
        pass

    def write_readinto(self, write_buf, read_buf):
        if len(write_buf) != len(read_buf):
            raise ValueError("buffers must be the same length")
        self.readinto(read_buf)


SoftSPI = SPI


class UART:
    """A serial port with nothing connected: reads return None, as on a board that receives nothing."""

    def __init__(self, id, *args, **options):
        if not 0 <= id < (2 if IS_RP2 else 3):
            raise ValueError("UART(%d) doesn't exist" % id)

    def init(self, *args, **options):
        pass

    def deinit(self):
        pass

    def any(self):
        return 0

    def read(self, nbytes=-1):
        return None

    def readline(self):
        return None

    def readinto(self, buf, nbytes=-1):
        return None

    def write(self, buf):
        return len(buf)

    def flush(self):
        pass

    def txdone(self):
        return True
