"""The format of a spool on disk. Readers and the writer share this module and nothing else.

Each collector has one folder::

    DIR/NAME/spool.json          {"format": 1, "spool": UUID in hex} after a line with its checksum
    DIR/NAME/0000000007.UUID.run empty: the UUID in hex of the spool from that segment on; each start makes one
    DIR/NAME/lock                flock held by the one collector that may write
    DIR/NAME/pos                 durable position: magic, UUID, segment, position, crc32; overwritten in place
    DIR/NAME/0000000000.seg      segments: consecutive blocks, only appended to, never changed
    DIR/NAME/0000000007.UUID.5012595.retired  empty: the spool was retired after it was read to this position; see
                                 ``retire``
    DIR/NAME/0000000000.read     empty: the segment has been read; the file's mtime says when
    DIR/NAME/subscription.json   the topic filters that the broker granted to the session; named subscription.aside
                                 while that is uncertain

A block is a header ``magic, length, count, crc32, received_ms`` followed by `length` bytes: `count` complete PUBLISH
packets. The magic tells their protocol level. With ``MQB1`` they are packets of MQTT 3.1.1 (level 4); messages that
came by MQTT 5 are written in this form if none of the block has properties. With ``MQB2`` they are packets of MQTT 5
(level 5), as they were received. The checksum covers the length, the count and received_ms of the header and the data,
and in ``MQB2`` also the magic. Integers are little-endian.

A *position* is a byte offset in a segment. All bytes below the durable position were synced before the position was
published, so a reader that stays below it never sees bytes that a power cut could take back.

A *run* is the segments that one start of the collector wrote. They share a UUID; that of the first run is in
spool.json. A folder restored from a copy may use segment numbers a second time, but never the UUID of an earlier run,
so (UUID, segment) always identifies the same bytes. A run is recorded in a file name alone, because an empty file
can be created even on a full disk.
"""

import os
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..durable import read_checked_json
from ..errors import FileDamaged, SpoolDamaged

FORMAT_VERSION = 1
_MAGICS = {4: b"MQB1", 5: b"MQB2"}
_LEVELS = {magic: level for level, magic in _MAGICS.items()}
# The value at which a block's checksum begins: 0 for MQB1, which does not cover its magic.
_SEEDS = {4: 0, 5: zlib.crc32(_MAGICS[5])}
BLOCK_HEADER = struct.Struct("<4sIIIQ")
_CHECKED_FIELDS = struct.Struct("<IIQ")
_POSITION_MAGIC = b"MQP1"
_POSITION = struct.Struct("<4s16sQQ")
_CRC = struct.Struct("<I")
POSITION_BYTES = _POSITION.size + _CRC.size
LATEST_MS = 9_214_646_399_999
"""The end of the year 2261 in Unix ms. Readers use it for every later received_ms.

Data frames count nanoseconds in 64 bits, which end in the year 2262.
"""

_SEGMENT_NAME = re.compile(r"(\d{10})\.seg")
_RUN_NAME = re.compile(r"(\d{10})\.([0-9a-f]{32})\.run")
_RETIRED_NAME = re.compile(r"(\d{10})\.([0-9a-f]{32})\.(\d{1,19})\.retired")


class Position(NamedTuple):
    """A boundary between two blocks: the run's UUID in hex, the segment's number, and the byte offset in it."""

    spool: str
    segment: int
    position: int


class Run(NamedTuple):
    """A run: the segments from number `segment` on have the UUID `spool`, until the next run begins."""

    segment: int
    spool: str


class BlockHeader(NamedTuple):
    """A decoded block header: `messages` is the count field, `start` and `end` are byte offsets of the data.

    :ivar level: protocol level of the packets: 4 for MQTT 3.1.1, or 5.
    """

    start: int
    end: int
    messages: int
    crc32: int
    received_ms: int
    level: int = 4

    def encode(self) -> bytes:
        """Return the header in its form on disk, where it precedes `start`."""
        size = self.end - self.start
        return BLOCK_HEADER.pack(_MAGICS[self.level], size, self.messages, self.crc32, self.received_ms)


def segment_path(folder: Path, segment: int) -> Path:
    """Return the path of the file of segment number `segment`."""
    return folder / f"{segment:010d}.seg"


def read_mark(folder: Path, segment: int) -> Path:
    """Return the path of the file that marks segment number `segment` as read since the file's mtime."""
    return folder / f"{segment:010d}.read"


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of the existing segments, in order."""
    matches = (_SEGMENT_NAME.fullmatch(name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in matches if match)


def run_path(folder: Path, run: Run) -> Path:
    """Return the path of the file that records a run."""
    return folder / f"{run.segment:010d}.{run.spool}.run"


def marked_runs(folder: Path) -> list[Run]:
    """Return the runs that have a file, in order: all but the first."""
    matches = (_RUN_NAME.fullmatch(name) for name in os.listdir(folder))
    return sorted(Run(int(match[1]), match[2]) for match in matches if match)


def retired_path(folder: Path, place: Position) -> Path:
    """Return the path of the file that records that the spool was retired after it had been read to `place`."""
    return folder / f"{place.segment:010d}.{place.spool}.{place.position}.retired"


def retired_places(folder: Path) -> list[Position]:
    """Return the positions up to which retired spools of this name had been read."""
    matches = (_RETIRED_NAME.fullmatch(name) for name in os.listdir(folder))
    return sorted(Position(match[2], int(match[1]), int(match[3])) for match in matches if match)


def known_runs(folder: Path) -> list[Run]:
    """Return the runs of a spool, in order.

    :raises SpoolDamaged: ``spool.json`` is damaged.
    :raises FileNotFoundError: there is no spool.
    """
    path = folder / "spool.json"
    try:
        return [Run(0, str(read_checked_json(path)["spool"])), *marked_runs(folder)]
    except (FileDamaged, KeyError) as error:
        raise SpoolDamaged(f"{path} is damaged: restore it from a copy") from error


def spool_of(runs: Sequence[Run], segment: int) -> str | None:
    """Return the UUID of the run that `segment` belongs to, or would belong to if it existed; None without a run."""
    following = bisect_right(runs, segment, key=lambda run: run.segment)
    return runs[following - 1].spool if following else None


def block_checksum(data: bytes | memoryview, count: int, received_ms: int, level: int = 4) -> int:
    """Return the CRC-32 of a block's header fields and data."""
    return zlib.crc32(data, zlib.crc32(_CHECKED_FIELDS.pack(len(data), count, received_ms), _SEEDS[level]))


def encode_block_header(data: bytes, count: int, received_ms: int, level: int = 4) -> bytes:
    """Encode the header of a block whose data are the `count` PUBLISH packets in `data`.

    :param level: protocol level of the packets: 4 for MQTT 3.1.1, or 5.
    """
    checksum = block_checksum(data, count, received_ms, level)
    return BLOCK_HEADER.pack(_MAGICS[level], len(data), count, checksum, received_ms)


def decode_block_header(raw: bytes, position: int) -> BlockHeader | None:
    """Decode the header in `raw`, which was read at `position`; None if `raw` is too short or not a header."""
    if len(raw) < BLOCK_HEADER.size:
        return None
    magic, length, count, crc32, received_ms = BLOCK_HEADER.unpack_from(raw)
    level = _LEVELS.get(magic)
    if level is None:
        return None
    start = position + BLOCK_HEADER.size
    return BlockHeader(start, start + length, count, crc32, received_ms, level)


def block_headers(path: Path, position: int, end: int) -> Iterator[BlockHeader]:
    """Yield the headers of the blocks in [`position`, `end`) of a segment, without reading or checking their data.

    :raises SpoolDamaged: the range does not consist of complete blocks.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        while position < end:
            header = decode_block_header(os.pread(fd, BLOCK_HEADER.size, position), position)
            if header is None or header.end > end:
                raise SpoolDamaged(damage_message(path, position))
            yield header
            position = header.end
    finally:
        os.close(fd)


def checked_blocks(data: bytes | memoryview, position: int) -> Iterator[tuple[BlockHeader, memoryview]]:
    """Yield the blocks of `data`, which was read at `position`, up to the first that is short or fails its checksum.

    This does not raise on damage: the caller must compare the last header's `end` with the expected one.
    """
    view = memoryview(data)
    offset = 0
    while offset < len(view):
        header = decode_block_header(bytes(view[offset : offset + BLOCK_HEADER.size]), position + offset)
        if header is None or header.end - position > len(view):
            return
        body = view[header.start - position : header.end - position]
        if block_checksum(body, header.messages, header.received_ms, header.level) != header.crc32:
            return
        yield header, body
        offset = header.end - position


def damage_message(path: Path, position: int) -> str:
    """Return the error message for a damaged block."""
    return (
        f"{path} is damaged at byte {position}, below its durable position: "
        "restore it from a copy, or move the spool folder away to start a new one without these messages"
    )


def encode_position(place: Position) -> bytes:
    """Encode the content of the `pos` file."""
    fields = _POSITION.pack(_POSITION_MAGIC, bytes.fromhex(place.spool), place.segment, place.position)
    return fields + _CRC.pack(zlib.crc32(fields))


def decode_position(raw: bytes) -> Position | None:
    """Decode the content of the `pos` file; None if its length, its magic or its checksum is wrong."""
    if len(raw) != POSITION_BYTES:
        return None
    fields = raw[: _POSITION.size]
    if zlib.crc32(fields) != _CRC.unpack_from(raw, _POSITION.size)[0]:
        return None
    magic, spool, segment, position = _POSITION.unpack(fields)
    return Position(spool.hex(), segment, position) if magic == _POSITION_MAGIC else None
