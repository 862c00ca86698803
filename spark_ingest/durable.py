"""Writes files so that they survive a power cut, and objects of an object store; some with a checksum."""

import json
import re
import zlib
from contextlib import suppress
from typing import Any

from umqtt_cli import durable as files

from .errors import FileDamaged
from .location import Location, StorePath

_CHECKED = re.compile(rb"umqtt 1 (\d{1,19}) ([0-9a-f]{8})\n")
_TORN_READS = 20


def sync_directory(folder: Location) -> None:
    """Make creations, renames and removals in `folder` durable; nothing to do in an object store."""
    if not isinstance(folder, StorePath):
        files.sync_directory(folder)


def replace_file(path: Location, data: bytes | memoryview, *, durable: bool = True, mode: int | None = None) -> None:
    """Write `data` as :func:`umqtt_cli.durable.replace_file` does; an object is atomic and durable as it is."""
    if isinstance(path, StorePath):
        path.write_bytes(data)
    else:
        files.replace_file(path, data, durable=durable, mode=mode)


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
