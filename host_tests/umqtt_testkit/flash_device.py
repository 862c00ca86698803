"""Block devices for `vfs`: flash memory in RAM that counts its writes and can apply one in part."""

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

_IOCTL_BLOCK_COUNT = 4
_IOCTL_BLOCK_SIZE = 5
_IOCTL_BLOCK_ERASE = 6


def _unwatched(address, data):
    pass


class NorFlash:
    """NOR flash: programming clears bits, erasing sets all bits of a block.

    memory: bytearray that keeps its content over lives. watch: called before each operation with its address and the
    bytes to program, or None for an erase. off: the power is off. Counters: erases (list, one number per block),
    programs, programmed_bytes, overwrites (programs of bytes that were not erased).
    """

    block_size = BLOCK_SIZE

    def __init__(self, memory):
        self.memory = memory
        self.block_count = len(memory) // self.block_size
        self.off = False
        self.watch = _unwatched
        self.clear_counters()

    def clear_counters(self):
        self.erases = [0] * self.block_count
        self.programs = self.programmed_bytes = self.overwrites = 0

    def readblocks(self, block, buffer, offset=0):
        if self.off:
            return -_EIO
        copy(buffer, 0, self.memory, block * self.block_size + offset, len(buffer))
        return 0

    def writeblocks(self, block, buffer, offset=0):
        if self.off:
            return -_EIO
        start = block * self.block_size + offset
        self.watch(start, buffer)
        length = len(buffer)
        self.program(start, buffer, length)
        self.programs += 1
        self.programmed_bytes += length
        return 0

    def ioctl(self, operation, argument):
        # Without power it returns an error: littlefs's own finalisers come here too, where nothing may be raised.
        if self.off:
            return -_EIO
        if operation == _IOCTL_BLOCK_COUNT:
            return self.block_count
        if operation == _IOCTL_BLOCK_SIZE:
            return self.block_size
        if operation == _IOCTL_BLOCK_ERASE:
            self.watch(argument * BLOCK_SIZE, None)
            self.erase(argument * BLOCK_SIZE, BLOCK_SIZE)
            self.erases[argument] += 1
        return 0

    def apply(self, address, data, quarters):
        """Apply the first quarters of an operation: of programming `data`, or of erasing a block (None)."""
        if data is None:
            self.erase(address, BLOCK_SIZE * quarters // 4)
        else:
            self.program(address, data, len(data) * quarters // 4)

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
