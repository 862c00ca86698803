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
    def __init__(self, path):
        self._file = open(path, "r+b")
        self._blocks = self._file.seek(0, 2) // BLOCK_SIZE

    def readblocks(self, block, buffer, offset=0):
        self._file.seek(block * BLOCK_SIZE + offset)
        self._file.readinto(buffer)
        return 0

    def writeblocks(self, block, buffer, offset=0):
        self._file.seek(block * BLOCK_SIZE + offset)
        self._file.write(buffer)
        return 0

    def ioctl(self, operation, argument):
        if operation == _IOCTL_BLOCK_COUNT:
            return self._blocks
        if operation == _IOCTL_BLOCK_SIZE:
            return BLOCK_SIZE
        if operation == _IOCTL_BLOCK_ERASE:
            self._file.seek(argument * BLOCK_SIZE)
            self._file.write(_ERASED)
        return 0


def open_filesystem(path, program_size):
    """Return the littlefs in the image at `path`; format an erased image first, as a board does at its first boot."""
    flash = FileFlash(path)
    try:
        return vfs.VfsLfs2(flash, progsize=program_size)
    except OSError:
        flash.readblocks(0, first := bytearray(64))
        if first != _ERASED[:64]:
            raise  # a damaged file system must be reported, not formatted away
    vfs.VfsLfs2.mkfs(flash, progsize=program_size)
    return vfs.VfsLfs2(flash, progsize=program_size)
