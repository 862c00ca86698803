"""Writes files so that they survive a power cut: every file of the ingester, and those of the kit that matter."""

import fcntl
import json
import os
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .errors import FileDamaged
from .location import Location, StorePath

_CHECKED = re.compile(rb"umqtt 1 (\d{1,19}) ([0-9a-f]{8})\n")
_TORN_READS = 20


def _choose_sync() -> Callable[[int], None]:
    # macOS has no fdatasync, and its fsync leaves the bytes in the drive's cache; F_FULLFSYNC does not.
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:

        def sync_through_drive_cache(fd: int) -> None:
            fcntl.fcntl(fd, full_sync)

        return sync_through_drive_cache
    return os.fdatasync


sync_data: Callable[[int], None] = _choose_sync()
"""``sync_data(fd)``: returns when the file's bytes and length are on the disk; raises OSError."""


def sync_directory(folder: Location) -> None:
    """Make creations, renames and removals in `folder` durable; nothing to do in an object store."""
    if isinstance(folder, StorePath):
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data` to a file descriptor; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_file(path: Location, data: bytes | memoryview, *, durable: bool = True, mode: int | None = None) -> None:
    """Write `data` to `path` atomically: a reader finds the old or the new content, also after a crash.

    :param durable: whether the new content must survive a power cut, as state must; False for files that can be made
        again, such as status files.
    :param mode: the permissions of a file, whatever the umask; None: those that the umask leaves of 0644.
    :raises OSError: it cannot be written; the old content stays.
    """
    if isinstance(path, StorePath):
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # Never through a link that somebody else has put there.
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644 if mode is None else 0o600)
    try:
        try:
            if mode is not None:
                os.fchmod(fd, mode)
            write_all(fd, data)
            if durable:
                sync_data(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def replace_checked(path: Location, data: bytes, *, mode: int | None = None) -> None:
    """Write `data` durably with :func:`replace_file`, preceded by a line with its length and checksum."""
    replace_file(path, b"umqtt 1 %d %08x\n" % (len(data), zlib.crc32(data)) + data, mode=mode)


def read_checked(path: Location) -> memoryview:
    """Read a file that :func:`replace_checked` wrote, and return its data.

    :raises FileDamaged: the length or checksum is wrong, or the file has neither.
    :raises OSError: the file cannot be read.
    """
    # An object is read by two requests: one for its length, and one for that many bytes. If the object was replaced
    # between them, the bytes are damaged, and the object is read again.
    for _ in range(_TORN_READS if isinstance(path, StorePath) else 0):
        with suppress(FileDamaged):
            return _checked(path, path.read_bytes())
    return _checked(path, path.read_bytes())


def read_checked_json(path: Location) -> dict[str, Any]:
    """Read a JSON object that :func:`replace_checked` wrote.

    :raises FileDamaged: the length or checksum is wrong, or the file has neither, or is no JSON object.
    :raises OSError: the file cannot be read.
    """
    try:
        found = json.loads(bytes(read_checked(path)))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise FileDamaged(f"{path} is damaged")
    return found


def _checked(path: Location, content: bytes) -> memoryview:
    head = _CHECKED.match(content)
    data = memoryview(content)[head.end() if head else 0 :]
    if head is None or len(data) != int(head[1]) or zlib.crc32(data) != int(head[2], 16):
        raise FileDamaged(f"{path} is damaged")
    return data
