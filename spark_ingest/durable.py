"""Making bytes survive a power cut, in one place, so that every file of the ingester uses the same rules."""

import fcntl
import json
import os
import re
import zlib
from collections.abc import Callable
from typing import Any

from .errors import FileDamaged
from .location import Location, StorePath

_CHECKED = re.compile(rb"umqtt 1 (\d{1,19}) ([0-9a-f]{8})\n")


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
    """Make creations, renames and removals in `folder` durable."""
    if isinstance(folder, StorePath):
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """``os.write`` until everything is written; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_file(path: Location, data: bytes | memoryview, *, durable: bool = True) -> None:
    """Write `data` to `path` so that a reader, or a crash, finds the old content or the new, never a mixture.

    :param durable: also survive a power cut (for state); False only for what can be made again (status
        files).
    """
    if isinstance(path, StorePath):
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(fd, data)
        if durable:
            sync_data(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    if durable:
        sync_directory(path.parent)


def replace_checked(path: Location, data: bytes) -> None:
    """:func:`replace_file`, durable, with a line before `data` that has its length and checksum."""
    replace_file(path, b"umqtt 1 %d %08x\n" % (len(data), zlib.crc32(data)) + data)


def read_checked(path: Location) -> memoryview:
    """What :func:`replace_checked` wrote.

    :raises FileDamaged: it is not that, or no more.
    :raises OSError: it cannot be read.
    """
    return _checked(path, path.read_bytes())


def read_checked_json(path: Location) -> dict[str, Any]:
    """The JSON object that :func:`replace_checked` wrote, or that an older version wrote without a checksum.

    :raises FileDamaged: it is neither.
    :raises OSError: it cannot be read.
    """
    content = path.read_bytes()
    try:
        found = json.loads(content if content.startswith(b"{") else bytes(_checked(path, content)))
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
