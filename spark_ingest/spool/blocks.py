"""How a spool lies on disk. Readers and the writer share this module and nothing else.

One folder a collector::

    DIR/NAME/spool.json          {"format": 1, "spool": UUID in hex} after a line with its checksum; written once
    DIR/NAME/0000000007.UUID.run empty: the UUID in hex that the spool goes by from that segment on, one each start
    DIR/NAME/lock                flock held by the one collector that may write
    DIR/NAME/pos                 durable position: magic, UUID, segment, position, crc32; overwritten in place
    DIR/NAME/0000000000.seg      segments: blocks one after the other, appended, never changed
    DIR/NAME/0000000007.UUID.5012595.retired  empty: the spool was retired, read to this place; see ``retire``
    DIR/NAME/0000000000.UUID.1795000000000-1795000060000.times  empty: the earliest and the latest received_ms of a
                                 finished segment's blocks; without it a reader looks into the segment
    DIR/NAME/0000000000.read     empty: the segment has been read; its time says since when
    DIR/NAME/subscription.json   the topic filters that the broker granted to the session; .aside while that is not sure

A block is ``magic, length, count, crc32, received_ms`` and `length` bytes: `count` whole MQTT PUBLISH
packets exactly as they came off the wire. The checksum covers the header's fields too: a flipped bit in
received_ms is damage as much as one in a payload. Integers are little-endian.

A *position* is a byte offset in a segment. What lies below the durable position was synced before the
position was published, so a reader that stays below it never sees bytes that a power cut could take back.

A *run* is what one start of the collector wrote: segments with one UUID, spool.json's for the first. A folder that was
restored from a copy goes on with segment numbers that it has handed out before, but never with a run's UUID: (UUID,
segment) names the same bytes for ever. Its name alone says all of a run, since an empty file fits on a full disk too.
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
BLOCK_MAGIC = b"MQB1"
BLOCK_HEADER = struct.Struct("<4sIIIQ")
_CHECKED_FIELDS = struct.Struct("<IIQ")
_POSITION_MAGIC = b"MQP1"
_POSITION = struct.Struct("<4s16sQQ")
_CRC = struct.Struct("<I")
POSITION_BYTES = _POSITION.size + _CRC.size

_SEGMENT_NAME = re.compile(r"(\d{10})\.seg")
_RUN_NAME = re.compile(r"(\d{10})\.([0-9a-f]{32})\.run")
_TIMES_NAME = re.compile(r"(\d{10})\.([0-9a-f]{32})\.(\d{1,20})-(\d{1,20})\.times")
_RETIRED_NAME = re.compile(r"(\d{10})\.([0-9a-f]{32})\.(\d{1,19})\.retired")


class Position(NamedTuple):
    """A place between two blocks: `spool` is the run's UUID in hex, `segment` a number, `position` in bytes."""

    spool: str
    segment: int
    position: int


class Run(NamedTuple):
    """The segments from number `segment` on have the UUID `spool`, until another run begins."""

    segment: int
    spool: str


class Times(NamedTuple):
    """The blocks of the finished segment `segment` of the run `spool` were received at `first_ms` to `last_ms`."""

    segment: int
    spool: str
    first_ms: int
    last_ms: int


class BlockHeader(NamedTuple):
    """A decoded block header: `messages` is its count field. `start` and `end` are positions of the block's
    data in its segment."""

    start: int
    end: int
    messages: int
    crc32: int
    received_ms: int

    def encode(self) -> bytes:
        """The header as it lies on disk, before `start`."""
        return BLOCK_HEADER.pack(BLOCK_MAGIC, self.end - self.start, self.messages, self.crc32, self.received_ms)


def segment_path(folder: Path, segment: int) -> Path:
    """The file of segment number `segment`."""
    return folder / f"{segment:010d}.seg"


def read_mark(folder: Path, segment: int) -> Path:
    """The file whose time says since when segment number `segment` has been read."""
    return folder / f"{segment:010d}.read"


def segment_numbers(folder: Path) -> list[int]:
    """The numbers of the segments that exist, in order."""
    matches = (_SEGMENT_NAME.fullmatch(name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in matches if match)


def run_path(folder: Path, run: Run) -> Path:
    """The file that names a run."""
    return folder / f"{run.segment:010d}.{run.spool}.run"


def marked_runs(folder: Path) -> list[Run]:
    """The runs that have a file, which is all but the first, in order."""
    matches = (_RUN_NAME.fullmatch(name) for name in os.listdir(folder))
    return sorted(Run(int(match[1]), match[2]) for match in matches if match)


def times_path(folder: Path, times: Times) -> Path:
    """The file that says when the blocks of a segment were received."""
    return folder / f"{times.segment:010d}.{times.spool}.{times.first_ms}-{times.last_ms}.times"


def known_times(folder: Path) -> list[Times]:
    """When the blocks of finished segments were received, in the order of the segments."""
    matches = (_TIMES_NAME.fullmatch(name) for name in os.listdir(folder))
    return sorted(Times(int(match[1]), match[2], int(match[3]), int(match[4])) for match in matches if match)


def retired_path(folder: Path, place: Position) -> Path:
    """The file that says that the spool was retired after it had been read to `place`."""
    return folder / f"{place.segment:010d}.{place.spool}.{place.position}.retired"


def retired_places(folder: Path) -> list[Position]:
    """Up to where the spools that had this name were read when they were retired."""
    matches = (_RETIRED_NAME.fullmatch(name) for name in os.listdir(folder))
    return sorted(Position(match[2], int(match[1]), int(match[3])) for match in matches if match)


def known_runs(folder: Path) -> list[Run]:
    """The runs of a spool, in order.

    :raises SpoolDamaged: ``spool.json`` is not what was written.
    :raises FileNotFoundError: there is no spool.
    """
    path = folder / "spool.json"
    try:
        return [Run(0, str(read_checked_json(path)["spool"])), *marked_runs(folder)]
    except (FileDamaged, KeyError) as error:
        raise SpoolDamaged(f"{path} is damaged: restore it from a copy") from error


def spool_of(runs: Sequence[Run], segment: int) -> str | None:
    """The UUID that `segment` has or, when it does not exist yet, would have now; None without a run."""
    following = bisect_right(runs, segment, key=lambda run: run.segment)
    return runs[following - 1].spool if following else None


def block_checksum(data: bytes | memoryview, count: int, received_ms: int) -> int:
    """CRC-32 of a block's header fields and data."""
    return zlib.crc32(data, zlib.crc32(_CHECKED_FIELDS.pack(len(data), count, received_ms)))


def encode_block_header(data: bytes, count: int, received_ms: int) -> bytes:
    """The header that goes before `data`, which holds `count` PUBLISH packets."""
    return BLOCK_HEADER.pack(BLOCK_MAGIC, len(data), count, block_checksum(data, count, received_ms), received_ms)


def decode_block_header(raw: bytes, position: int) -> BlockHeader | None:
    """The header in `raw`, which was read at `position`; None when it is short or not a header."""
    if len(raw) < BLOCK_HEADER.size:
        return None
    magic, length, count, crc32, received_ms = BLOCK_HEADER.unpack_from(raw)
    if magic != BLOCK_MAGIC:
        return None
    start = position + BLOCK_HEADER.size
    return BlockHeader(start, start + length, count, crc32, received_ms)


def block_headers(path: Path, position: int, end: int) -> Iterator[BlockHeader]:
    """The headers of the blocks in [`position`, `end`) of a segment, without reading or checking their data.

    :raises SpoolDamaged: the range does not consist of whole blocks.
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
    """Blocks of `data`, which was read at `position`, until the first that is short or fails its checksum.

    The consumer compares the last header's `end` with what it expected: stopping early is how damage shows.
    """
    view = memoryview(data)
    offset = 0
    while offset < len(view):
        header = decode_block_header(bytes(view[offset : offset + BLOCK_HEADER.size]), position + offset)
        if header is None or header.end - position > len(view):
            return
        body = view[header.start - position : header.end - position]
        if block_checksum(body, header.messages, header.received_ms) != header.crc32:
            return
        yield header, body
        offset = header.end - position


def damage_message(path: Path, position: int) -> str:
    """The one line for a block that is not what was written."""
    return (
        f"{path} is damaged at byte {position}, below its durable position: "
        "restore it from a copy, or move the spool folder away to start a new one without these messages"
    )


def encode_position(place: Position) -> bytes:
    """The content of the `pos` file."""
    fields = _POSITION.pack(_POSITION_MAGIC, bytes.fromhex(place.spool), place.segment, place.position)
    return fields + _CRC.pack(zlib.crc32(fields))


def decode_position(raw: bytes) -> Position | None:
    """The durable position in `raw`; None when it is short or fails its checksum."""
    if len(raw) != POSITION_BYTES:
        return None
    fields = raw[: _POSITION.size]
    if zlib.crc32(fields) != _CRC.unpack_from(raw, _POSITION.size)[0]:
        return None
    magic, spool, segment, position = _POSITION.unpack(fields)
    return Position(spool.hex(), segment, position) if magic == _POSITION_MAGIC else None
