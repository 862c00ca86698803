"""The lock file beside a store. It also has the number of the last commit, which shows if commits were lost.

SQLite cannot tell a log that is damaged in the middle, cut short, emptied or removed from one that ends there, as after
a power cut. So the database counts its commits, and the lock file has the same count. The lock file is written after
each commit, without a sync of its own, so it is never ahead of what is safe: a database with a lower count has lost
acknowledged commits, and one that is missing or empty has lost everything. After a power cut the lock file may be
outdated by the age of the system's page cache, some 30 seconds: losses since then are not noticed.
"""

import fcntl
import os
import struct
import zlib
from typing import NamedTuple

from ..errors import StoreError

RUN_SIZE = 8
_RECORD = struct.Struct(f">{RUN_SIZE}sQQL")


class Witness(NamedTuple):
    """The last commit. run: a random identifier of the opening of the store. commits, messages: written since then."""

    run: bytes
    commits: int
    messages: int


class StoreLock:
    """The lock of one store. Raises StoreError while another broker has the store open.

    The lock file is beside the store's file itself, even if `path` is a link to it.
    """

    def __init__(self, path: str) -> None:
        try:
            self._descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot write beside store {path} ({error.strerror}) — name another with --store"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise StoreError(
                f"store {path} is open in another broker — stop that one, or name another with --store"
            ) from error

    def write(self, witness: Witness) -> None:
        """Note a commit that is safe. Raises OSError."""
        record = _RECORD.pack(*witness, 0)[:-4]
        os.pwrite(self._descriptor, record + zlib.crc32(record).to_bytes(4, "big"), 0)

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)


def read_witness(path: str) -> Witness | None:
    """Return the last commit noted beside the store at `path`, None if there is none that can be read."""
    try:
        with open(lock_path(path), "rb") as file:
            record = file.read(_RECORD.size)
    except OSError:
        return None
    if len(record) != _RECORD.size or zlib.crc32(record[:-4]).to_bytes(4, "big") != record[-4:]:
        return None
    return Witness(*_RECORD.unpack(record)[:3])


def counted(path: str, witness: Witness) -> str:
    """Return in words what the lock file of the store at `path` has counted."""
    return (
        f"its lock file {lock_path(path)} counts {witness.commits} commits since the last start of its broker, which"
        f" stored {witness.messages} messages"
    )


def lock_path(path: str) -> str:
    """Return the path of the lock file of the store at `path`."""
    return os.path.realpath(path) + ".lock"
