# Flash memory kept in a host file: the block device under a virtual board's littlefs.
#
# The file is opened while the host's file system is still mounted, and stays usable afterwards. A write goes to the
# host's page cache at once, which outlives SIGKILL: a power cut of a virtual board kills the process, not the host.
import vfs

BLOCK_SIZE = 4096
_ERASED = b"\xff" * BLOCK_SIZE

_IOCTL_BLOCK_COUNT = 4
_IOCTL_BLOCK_SIZE = 5
_IOCTL_BLOCK_ERASE = 6


class FileFlash:
    # cut: the hook "power_cut" as it was at boot, or None. [N, QUARTERS] cuts the power in the N-th program or erase of
    # this life, of which the first quarters (0 to 4) were done. tell: reports to the supervisor.
    def __init__(self, path, cut=None, tell=None):
        self._file = open(path, "r+b")
        self._blocks = self._file.seek(0, 2) // BLOCK_SIZE
        self._left, self._quarters = cut or (0, 0)
        self._tell = tell

    def _write(self, data):
        if self._left:
            self._left -= 1
            if not self._left:
                self._file.write(data[: len(data) * self._quarters // 4])
                self._tell("cut")
                while True:  # the supervisor ends this process
                    pass
        self._file.write(data)

    def readblocks(self, block, buffer, offset=0):
        self._file.seek(block * BLOCK_SIZE + offset)
        self._file.readinto(buffer)
        return 0

    def writeblocks(self, block, buffer, offset=0):
        self._file.seek(block * BLOCK_SIZE + offset)
        self._write(buffer)
        return 0

    def ioctl(self, operation, argument):
        if operation == _IOCTL_BLOCK_COUNT:
            return self._blocks
        if operation == _IOCTL_BLOCK_SIZE:
            return BLOCK_SIZE
        if operation == _IOCTL_BLOCK_ERASE:
            self._file.seek(argument * BLOCK_SIZE)
            self._write(_ERASED)
        return 0


def open_filesystem(path, program_size, cut=None, tell=None):
    """Return the littlefs in the image at `path`; format an erased image first, as a board does at its first boot."""
    flash = FileFlash(path, cut, tell)
    try:
        return vfs.VfsLfs2(flash, progsize=program_size)
    except OSError:
        flash.readblocks(0, first := bytearray(64))
        if first != _ERASED[:64]:
            raise  # a damaged file system must be reported, not formatted away
    vfs.VfsLfs2.mkfs(flash, progsize=program_size)
    return vfs.VfsLfs2(flash, progsize=program_size)
