"""Block devices for `vfs`: flash memory in RAM that counts its writes and loses power where a test says."""

try:
    from umqtt_testkit.flash_copy import copy
except (NameError, SyntaxError):  # CPython; a port that makes no machine code

    def copy(target, target_start, source, source_start, length):
        # Without using the heap: the garbage collector closes forgotten files while the heap is locked.
        i = 0
        while i < length:
            target[target_start + i] = source[source_start + i]
            i += 1


BLOCK_SIZE = 4096
SECTOR_SIZE = 512

_ERASED = b"\xff" * BLOCK_SIZE
_EIO = 5
_NEVER = -1

_IOCTL_BLOCK_COUNT = 4
_IOCTL_BLOCK_SIZE = 5
_IOCTL_BLOCK_ERASE = 6


class PowerCut(BaseException):
    """The power is gone. Not an Exception, so that code under test which catches those cannot survive its own death."""


_CUT = PowerCut()  # made beforehand, so that it can be raised where nothing can be allocated


def _unwatched(address, data):
    pass


class NorFlash:
    """NOR flash: programming clears bits, erasing sets all bits of a block.

    memory: bytearray that keeps its content over lives. cut_at, quarters: the number of the operation at which the
    power fails, and how many quarters of it are still done. watch: called before each operation with its address and
    the bytes to program, or None for an erase. dead: the power was cut; off: it was switched off cleanly. Counters:
    erases (list, one number per block), programs, programmed_bytes, overwrites (programs of bytes that were not
    erased), operations (erases and programs together).
    """

    block_size = BLOCK_SIZE

    def __init__(self, memory):
        self.memory = memory
        self.block_count = len(memory) // self.block_size
        self.cut_at = _NEVER
        self.quarters = 0
        self.dead = self.off = False
        self.watch = _unwatched
        self.clear_counters()

    def clear_counters(self):
        self.erases = [0] * self.block_count
        self.programs = self.programmed_bytes = self.overwrites = self.operations = 0

    def readblocks(self, block, buffer, offset=0):
        if self.dead or self.off:
            return -_EIO
        copy(buffer, 0, self.memory, block * self.block_size + offset, len(buffer))
        return 0

    def writeblocks(self, block, buffer, offset=0):
        if self.dead or self.off:
            return -_EIO
        start = block * self.block_size + offset
        self.watch(start, buffer)
        length = len(buffer)
        last = self._is_last()
        self.program(start, buffer, length * self.quarters // 4 if last else length)
        if last:
            self._die()
        self.programs += 1
        self.programmed_bytes += length
        return 0

    def ioctl(self, operation, argument):
        # A dead device returns an error: littlefs's own finalisers come here too, where nothing may be raised.
        if self.dead or self.off:
            return -_EIO
        if operation == _IOCTL_BLOCK_COUNT:
            return self.block_count
        if operation == _IOCTL_BLOCK_SIZE:
            return self.block_size
        if operation == _IOCTL_BLOCK_ERASE:
            self.watch(argument * BLOCK_SIZE, None)
            last = self._is_last()
            self.erase(argument * BLOCK_SIZE, BLOCK_SIZE * self.quarters // 4 if last else BLOCK_SIZE)
            if last:
                self._die()
            self.erases[argument] += 1
        return 0

    def apply(self, address, data, quarters):
        """Apply the first quarters of an operation: of programming `data`, or of erasing a block (None)."""
        if data is None:
            self.erase(address, BLOCK_SIZE * quarters // 4)
        else:
            self.program(address, data, len(data) * quarters // 4)

    def _is_last(self):
        self.operations += 1
        return self.operations - 1 == self.cut_at

    def _die(self):
        self.dead = True
        raise _CUT

    def erase(self, start, length):
        """Erase the first `length` bytes of the block at address `start`."""
        copy(self.memory, start, _ERASED, 0, length)

    def program(self, start, data, length):
        """Program data[:length] at address `start`."""
        memory = self.memory
        try:
            if memory[start : start + length] == _ERASED[:length]:
                copy(memory, start, data, 0, length)
                return
            self.overwrites += 1
        except MemoryError:
            pass  # the heap is locked; the code below is right for erased cells as well
        i = 0
        while i < length:
            memory[start + i] &= data[i]  # programming can only clear bits
            i += 1


class SectorDisk(NorFlash):
    """A disk whose sectors are overwritten in place, as FAT needs it: an SD card, flash behind a cache."""

    block_size = SECTOR_SIZE

    def program(self, start, data, length):
        copy(self.memory, start, data, 0, length)

    def ioctl(self, operation, argument):
        return 0 if operation == _IOCTL_BLOCK_ERASE else NorFlash.ioctl(self, operation, argument)
