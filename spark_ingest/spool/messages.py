"""Reads a spool message by message, for people and tests, and verifies every byte of it.

This is simple and slow. Spark reads whole columns instead (``source.rows``).
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import DataLoss, SpoolDamaged
from .blocks import BLOCK_HEADER, LATEST_MS, BlockHeader, Position, checked_blocks, decode_block_header
from .properties import NO_PROPERTIES, Properties, decode_properties, variable_integer
from .view import SpoolView

_READ_BYTES = 4 << 20


class Message(NamedTuple):
    """One received PUBLISH. `position` is the packet's byte offset in its segment, `received_ms` in Unix ms."""

    segment: int
    position: int
    received_ms: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    properties: Properties = NO_PROPERTIES


class Damage(NamedTuple):
    """Damage found in a spool; `position` is a byte offset, or None if a whole segment is concerned."""

    segment: int
    position: int | None
    what: str


class Verified(NamedTuple):
    """The result of :func:`verify`: numbers of segments, good blocks, their messages and bytes; and every damage."""

    segments: int
    blocks: int
    messages: int
    bytes: int
    damages: list[Damage]


def messages(view: SpoolView, start: Position | None = None, end: Position | None = None) -> Iterator[Message]:
    """Yield the messages from `start` (default: the oldest kept) to `end` (default: the current durable position).

    :raises DataLoss: a segment is gone.
    :raises SpoolDamaged: a block is damaged.
    """
    durable = view.durable()
    if durable is None:
        return
    end = end or durable
    segments = [segment for segment in view.segments() if segment <= end.segment]
    if start is not None and segments and start.segment < segments[0]:
        raise DataLoss(f"{view.where}: segment {start.segment} was removed before it was read")
    for segment in segments:
        if start is not None and segment < start.segment:
            continue
        position = start.position if start is not None and segment == start.segment else 0
        stop = end.position if segment == end.segment else view.segment_end(segment, durable)
        for header, body in _blocks(view, segment, position, stop):
            yield from decode_block(body, header, segment)


def decode_block(body: bytes, header: BlockHeader, segment: int) -> Iterator[Message]:
    """Yield the messages of one block, whose checksum must have been checked.

    :raises IndexError: it does not consist of PUBLISH packets.
    """
    at = 0
    while at < len(body):
        first = body[at]
        length, start = variable_integer(body, at + 1)
        end, name = start + length, start + 2
        topic_end = name + (body[start] << 8 | body[start + 1])
        topic = body[name:topic_end].decode("utf-8", "backslashreplace")
        payload = topic_end + (2 if first & 6 else 0)
        properties = NO_PROPERTIES
        if header.level == 5:
            size, begin = variable_integer(body, payload)
            payload = begin + size
            properties = decode_properties(body[begin:payload])
        if not payload <= end <= len(body):
            raise IndexError
        flags = (first >> 1 & 3, bool(first & 1), bool(first & 8))
        received_ms = min(header.received_ms, LATEST_MS)
        yield Message(segment, header.start + at, received_ms, topic, body[payload:end], *flags, properties)
        at = end


def verify(view: SpoolView) -> Verified:
    """Check every byte below the durable position: checksums, counts, and that no segment is missing.

    Bytes above it are not checked: a collector is writing them, or a crash has left them and the next start cuts them
    off.

    :raises SpoolDamaged: `pos` itself is damaged.
    """
    durable = view.durable()
    segments = view.segments()
    damages: list[Damage] = []
    if durable is None:
        return Verified(0, 0, 0, 0, [Damage(0, None, "there is no durable position: no collector has opened it")])
    known = [segment for segment in segments if segment <= durable.segment]
    for before, after in itertools.pairwise(known):
        damages += [Damage(gone, None, "is missing") for gone in range(before + 1, after)]
    if durable.segment not in segments:
        damages.append(Damage(durable.segment, None, "is missing: the durable position lies in it"))
    blocks = count = size = 0
    for segment in known:
        end = None
        try:
            end = view.segment_end(segment, durable)
            for header, body in _blocks(view, segment, 0, end):
                found = sum(1 for _ in decode_block(body, header, segment))
                if found != header.messages:
                    what = f"announces {header.messages} messages and holds {found}"
                    damages.append(Damage(segment, header.start - BLOCK_HEADER.size, what))
                blocks, count, size = blocks + 1, count + found, size + len(body)
        except DataLoss:
            # Retention has removed the oldest segment meanwhile; any other missing segment was reported above.
            continue
        except _BadBlock as error:
            damages.append(Damage(segment, error.position, "is not what was written: the checksum or length is wrong"))
        except (IndexError, UnicodeError):
            damages.append(Damage(segment, None, "holds a block that does not consist of PUBLISH packets"))
        except SpoolDamaged:
            damages.append(Damage(segment, end, "ends before its durable position"))
    return Verified(len(known), blocks, count, size, damages)


class _BadBlock(SpoolDamaged):
    def __init__(self, where: str, segment: int, position: int) -> None:
        super().__init__(f"{where}: segment {segment} is damaged at byte {position}, below its durable position")
        self.position = position


def _blocks(view: SpoolView, segment: int, position: int, end: int) -> Iterator[tuple[BlockHeader, bytes]]:
    """Yield the blocks in [`position`, `end`) with their data, checked.

    :raises _BadBlock: a block is damaged.
    """
    want = _READ_BYTES
    while position < end:
        data = view.read(segment, position, min(position + want, end))
        before = position
        for header, body in checked_blocks(data, position):
            yield header, bytes(body)
            position = header.end
        if position == before:
            header = decode_block_header(data[: BLOCK_HEADER.size], position)
            # A block may be larger than the bytes read. If it is complete, or is no block, it is damaged.
            if header is None or header.end <= before + len(data) or header.end > end:
                raise _BadBlock(view.where, segment, position)
            want = header.end - before
