"""The files of simulated devices: what was not synced is lost when the power is cut, and a disk can be full."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import SimpleNamespace
from unittest import mock

from umqtt_robust import backlog, flash

_SCHEME = "disk:"


class PowerCut(BaseException):
    """The power of a device is cut. Not an Exception: no handler of the client or the program may catch it."""


class Disk:
    """The disk of one device. operations: how often it was changed; the power is cut before operation `cut_at`.

    is_full: nothing can be written. full_at: nothing from this operation on, for 20 of them.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()
        self.operations = self.cut_at = self.refused = 0
        self.is_full = self.is_off = False
        self._unsynced: dict[str, bytes] = {}  # what a file holds that is being written

    def operate(self) -> None:
        """Count a change. Raises PowerCut at its time, and again until the power is back."""
        self.operations += 1
        if self.is_off or self.operations == self.cut_at:
            self.is_off = True
            raise PowerCut

    def fill(self) -> None:
        """Raise OSError if the disk is full."""
        if self.is_full:
            self.refused += 1
            raise OSError(errno.ENOSPC, "the disk is full")

    def open(self, name: str, mode: str) -> File:
        """Open a file, `rb` or `wb`. Raises OSError."""
        if mode == "rb":
            if name not in self.files and name not in self._unsynced:
                raise OSError(errno.ENOENT, name)
            return File(self, name, self._unsynced.get(name, self.files.get(name, b"")), False)
        if name[: name.rfind("/")] not in self.folders:
            raise OSError(errno.ENOENT, name)
        self.operate()
        self.fill()
        self._unsynced[name] = b""  # truncated, in the cache
        return File(self, name, b"", True)

    def write(self, name: str, data: bytes) -> None:
        """Append to a file that is being written. Raises OSError."""
        self.operate()
        self.fill()
        self._unsynced[name] += data

    def sync(self, name: str) -> None:
        """Put what a file holds on the disk."""
        if name in self._unsynced:
            self.operate()
            self.files[name] = self._unsynced.pop(name)

    def mkdir(self, name: str) -> None:
        """Make a folder. Raises OSError."""
        parent = name.rpartition("/")[0]
        if parent and parent not in self.folders:
            raise OSError(errno.ENOENT, name)
        self.operate()
        self.folders.add(name)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder. Raises OSError."""
        if folder not in self.folders:
            raise OSError(errno.ENOENT, folder)
        return [name[len(folder) + 1 :] for name in self.files if name.rpartition("/")[0] == folder]

    def power_on(self) -> None:
        """Let the disk work again after a power cut. What was not synced: the old content, none, or a part."""
        for name, data in self._unsynced.items():
            found = self._random.choice(
                (self.files.get(name), b"", data, data[: self._random.randrange(len(data) + 1)])
            )
            if found is not None:
                self.files[name] = found
        self._unsynced.clear()
        self.is_off = False
        self.cut_at = 0


class File:
    """An open file."""

    def __init__(self, disk: Disk, name: str, data: bytes, is_written: bool) -> None:
        self._disk = disk
        self._name = name
        self._data = data
        self._is_written = is_written

    def read(self) -> bytes:
        """Return the rest of the file."""
        data, self._data = self._data, b""
        return data

    def readinto(self, buf: bytearray) -> int:
        """Fill a buffer and return how much it took."""
        n = min(len(buf), len(self._data))
        buf[:n] = self._data[:n]
        self._data = self._data[n:]
        return n

    def write(self, data: bytes) -> int:
        """Append. Raises OSError."""
        self._disk.write(self._name, bytes(data))
        return len(data)

    def flush(self) -> None:
        """Put it on the disk."""
        if self._is_written and not self._disk.is_off:
            self._disk.sync(self._name)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()


@contextmanager
def mounted(disks: list[Disk]) -> Iterator[None]:
    """Let every FlashStore that is opened at path(n) meanwhile lie on disks[n]."""

    def of(name: str) -> tuple[Disk, str]:
        number, _, rest = name[len(_SCHEME) :].partition("/")
        return disks[int(number)], rest

    def open_file(name: str, mode: str) -> File:
        disk, rest = of(name)
        return disk.open(rest, mode)

    def mkdir(name: str) -> None:
        disk, rest = of(name)
        disk.mkdir(rest)

    def ilistdir(name: str) -> list[tuple[str]]:
        disk, rest = of(name)
        return [(entry,) for entry in disk.names(rest)]

    def stat(name: str) -> list[int]:
        disk, rest = of(name)
        return [0, 0, 0, 0, 0, 0, len(disk.files[rest])]

    with ExitStack() as stack:
        for module, name, replacement in (
            (flash, "open", open_file),
            (flash, "mkdir", mkdir),
            (backlog, "open", open_file),
            (backlog, "ilistdir", ilistdir),
            (backlog, "os", SimpleNamespace(stat=stat, path=os.path)),
        ):
            stack.enter_context(mock.patch.object(module, name, replacement, create=True))
        yield


def path(number: int) -> str:
    """Return the path of a FlashStore on the disk with that number."""
    return f"{_SCHEME}{number}/queue"
