"""Flash memory in RAM that counts what is written to it and dies where a test says: block devices for `vfs`."""

try:
    from umqtt_testkit.flash_copy import copy
except (NameError, SyntaxError):  # CPython; a port that makes no machine code

    def copy(target, target_start, source, source_start, length):
        # Without the heap: the garbage collector closes a forgotten file while it is locked.
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
    """The power is gone. No Exception: code under test that catches those must not survive its own death."""


_CUT = PowerCut()  # made beforehand: raised where nothing can be allocated, too


def _unwatched(address, data):
    pass


class NorFlash:
    """NOR flash: programming clears bits, erasing sets all bits of a block.

    memory: bytearray, kept over lives. cut_at, quarters: the number of the operation that the power does not outlast,
    and how much of it is still done. watch: called before each operation with its address and the bytes to program,
    or None to erase. dead: of a cut; off: in an orderly way.
    Counters: erases (list, one number a block), programs, programmed_bytes, overwrites (programs of bytes that were
    not erased), operations (erases and programs together).
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
        # A dead device answers with an error: littlefs's own finalisers come here too, where nothing may be raised.
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
        """What the first quarters of an operation leave behind: of programming `data`, or of erasing (None)."""
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
        """Erases the first `length` bytes of the block at that address."""
        copy(self.memory, start, _ERASED, 0, length)

    def program(self, start, data, length):
        """Programs data[:length]."""
        memory = self.memory
        try:
            if memory[start : start + length] == _ERASED[:length]:
                copy(memory, start, data, 0, length)
                return
            self.overwrites += 1
        except MemoryError:
            pass  # the heap is locked; what follows is right for erased cells as well
        i = 0
        while i < length:
            memory[start + i] &= data[i]  # programming can only clear bits
            i += 1


class SectorDisk(NorFlash):
    """A disk with sectors that are overwritten in place, as FAT wants it: an SD card, flash behind a cache."""

    block_size = SECTOR_SIZE

    def program(self, start, data, length):
        copy(self.memory, start, data, 0, length)

    def ioctl(self, operation, argument):
        return 0 if operation == _IOCTL_BLOCK_ERASE else NorFlash.ioctl(self, operation, argument)
