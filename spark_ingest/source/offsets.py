"""Offsets of the ``mqtt`` source: ``{collector: {"spool": UUID, "segment": number, "position": bytes}}``.

The UUID is that of the run that wrote the segment. It differs if the spool was created again, or was restored from a
copy and written again, under the same segment number.

This module plans reads: where a query starts, how far a micro-batch goes, and which byte ranges its partitions read.
It reads no data itself. Offsets are always block boundaries, so a micro-batch consists of complete blocks: as many as
fit within its limits, or a single block that exceeds them.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypedDict

from ..errors import DataLoss, UsageError
from ..spool.blocks import BLOCK_HEADER, Position, Run, segment_path, spool_of
from ..spool.view import Spools, SpoolView

_PARTITION_BYTES = 8 << 20


class Place(TypedDict):
    """One collector's part of an offset, in the form in which Spark keeps it in its checkpoint (JSON)."""

    spool: str
    segment: int
    position: int


Offset = dict[str, Place]


@dataclass(frozen=True)
class Range:
    """Bytes [`start`, `end`) of one segment; both are block boundaries. `spool` is the run's UUID."""

    collector: str
    spool: str
    segment: int
    start: int
    end: int


def to_place(position: Position) -> Place:
    """Convert a position to the form used in JSON."""
    return {"spool": position.spool, "segment": position.segment, "position": position.position}


def to_position(place: Place) -> Position:
    """Convert a place from JSON back to a position."""
    return Position(place["spool"], place["segment"], place["position"])


class SpoolTree:
    """The spools that a query reads.

    :param spools: the spools, or the local folder that contains them.
    :param fail_on_data_loss: whether missing messages raise DataLoss (as in Spark's Kafka source) or are skipped.
    :param since_ms: skip blocks received before this time, in Unix milliseconds; None for no limit.
    :param until_ms: skip blocks received at this time or later, in Unix milliseconds; None for no limit.
    """

    def __init__(
        self,
        spools: Spools | Path,
        *,
        fail_on_data_loss: bool = True,
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> None:
        self.spools: Spools = Spools(spools) if isinstance(spools, Path) else spools
        self._fail_on_data_loss = fail_on_data_loss
        self._since_ms = since_ms or 0
        self._until_ms = math.inf if until_ms is None else until_ms

    def latest(self) -> Offset:
        """Return the current durable position of each spool."""
        places = ((name, self.spools.view(name).durable()) for name in self.spools.names())
        return {name: to_place(durable) for name, durable in places if durable is not None}

    def earliest(self) -> Offset:
        """Return the position of the oldest kept message of each spool."""
        offset: Offset = {}
        for name in self.spools.names():
            view = self.spools.view(name)
            durable = view.durable()
            if durable is not None:
                offset[name] = to_place(_first(view, durable))
        return offset

    def starting(self, value: str, option: str = "startingOffsets") -> Offset:
        """Parse the value of ``startingOffsets`` or ``endingOffsets``: earliest, latest, or an offset as JSON.

        In JSON, a collector's place may also be "earliest" or "latest". A collector that ``startingOffsets`` does not
        name is read from its beginning; one that ``endingOffsets`` does not name is not read.

        :param option: the option's name, for the error message.
        :raises UsageError: the value is none of these.
        """
        if value == "earliest":
            return self.earliest()
        if value == "latest":
            return self.latest()
        try:
            return {str(name): self._place(str(name), place) for name, place in json.loads(value).items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise UsageError(
                f"{option} {value!r} is not earliest, latest or an offset: "
                '{"COLLECTOR": {"spool": UUID, "segment": N, "position": N}}'
            ) from None

    def _place(self, name: str, given: object) -> Place:
        if given == "earliest":
            return self.earliest()[name]
        if given == "latest":
            return self.latest()[name]
        place: Place = given  # pyrefly: ignore[bad-assignment]
        numbers = (place["segment"], place["position"])
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(name)
        return {"spool": str(place["spool"]), "segment": numbers[0], "position": numbers[1]}

    def advance(
        self, start: Offset, target: Offset, *, max_rows: int | None = None, max_bytes: int | None = None
    ) -> Offset:
        """Return the end of a micro-batch that goes from `start` towards `target` within the limits.

        A limit is exceeded only by a single block that is larger than it, which then is the whole micro-batch. So
        that no spool starves, each first contributes its next block, the longest waiting one first. The remaining
        room is shared in proportion to the bytes that wait in each spool.

        :param max_rows: limit of the number of messages; None for no limit.
        :param max_bytes: limit of the bytes of spool; None for no limit.
        :raises DataLoss: `start` is in a spool or segment that is gone.
        """
        end: Offset = dict(start)
        for name in start.keys() - target.keys():
            view = self.spools.view(name)
            if to_position(start[name]) not in view.retired():
                self._lost(f"the spool {view.where} is gone")
            # The spool is retired or gone for good, so the offset need not name it any more.
            del end[name]
        waiting = {name: self._ranges_of(name, start.get(name), place) for name, place in target.items()}
        end |= {name: place for name, place in target.items() if not waiting[name]}
        if max_rows is None and max_bytes is None:
            return {**end, **target}
        blocks = {name: _blocks(self.spools.view(name), ranges) for name, ranges in waiting.items() if ranges}
        following = {name: next(some, None) for name, some in blocks.items()}
        room = _Room(max_rows or math.inf, max_bytes or math.inf)

        def take(name: str, room: _Room) -> bool:
            block = following[name]
            if block is None or not room.takes(block):
                return False
            following[name] = next(blocks[name], None)
            # The target may be in a later segment than the last block.
            end[name] = target[name] if following[name] is None else block.end
            return True

        oldest_first = sorted((block.received_ms, name) for name, block in following.items() if block is not None)
        for _, name in oldest_first:
            take(name, room)
        sizes = {name: sum(r.end - r.start for r in waiting[name]) for name in blocks}
        for name, size in sizes.items():
            share = room.share(size / sum(sizes.values()))
            while take(name, share):
                pass
        return end

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """Return the byte ranges between two offsets: sorted by collector, then in the order of reception.

        Blocks received before `since_ms`, or at `until_ms` or later, are left out.

        :raises DataLoss: part of the data is gone.
        :raises UsageError: `start` is after `end`.
        """
        return [r for name, place in sorted(end.items()) for r in self._ranges_of(name, start.get(name), place)]

    def remove_before(self, end: Offset, *, read_for_s: float) -> int:
        """Mark the segments before `end` as read, and remove those marked at least `read_for_s` seconds ago.

        Returns the number of removed segments.
        """
        removed = 0
        for name in self.spools.names():
            place = end.get(name)
            if place is not None:
                removed += self.spools.view(name).remove_before(to_position(place), read_for_s=read_for_s)
        return removed

    def messages(self, start: Offset, end: Offset) -> int:
        """Count the messages between two offsets. Raises as :meth:`ranges`."""
        ranges = self.ranges(start, end)
        return sum(block.messages for r in ranges for block in _blocks(self.spools.view(r.collector), [r]))

    def cut(
        self,
        ranges: list[Range],
        min_partitions: int | None,
        *,
        max_rows: int | None = None,
        partition_bytes: int = _PARTITION_BYTES,
    ) -> list[tuple[Range, ...]]:
        """Cut `ranges` at block boundaries into partitions of about equal size, keeping their order.

        Small ranges share a partition and large ones are cut. If there are enough blocks, there are about
        `min_partitions` or more (possibly one less, since blocks differ in size, as in Spark's Kafka source).

        :param max_rows: limit of messages per partition, exceeded only by a single block that has more.
        :param partition_bytes: about the largest size of a partition.
        """
        total = sum(r.end - r.start for r in ranges)
        wanted = max(min_partitions or 1, -(-total // partition_bytes))
        if wanted == 1 and max_rows is None:
            return [tuple(ranges)] if ranges else []
        partitions: list[tuple[Range, ...]] = []
        current: list[Range] = []
        passed = rows = shares = 0
        for r in ranges:
            begin = r.start
            for header in self.spools.view(r.collector).headers(r.segment, r.start, r.end):
                block = header.start - BLOCK_HEADER.size
                if rows and rows + header.messages > (max_rows or math.inf):
                    partitions.append((*current, replace(r, start=begin, end=block)) if begin < block else (*current,))
                    current, begin, rows = [], block, 0
                rows += header.messages
                # Compare with the share of the total, not with the size of one partition: rounding errors would add
                # up.
                if (passed + header.end - r.start) * wanted >= total * (shares + 1):
                    partitions.append((*current, replace(r, start=begin, end=header.end)))
                    current, begin, rows, shares = [], header.end, 0, shares + 1
            if begin < r.end:
                current.append(replace(r, start=begin))
            passed += r.end - r.start
        return [*partitions, tuple(current)] if current else partitions

    def _ranges_of(self, name: str, start: Place | None, end: Place) -> list[Range]:
        view = self.spools.view(name)
        durable = view.durable()
        runs = [] if durable is None else view.runs()
        is_there = start is None or spool_of(runs, start["segment"]) == start["spool"]
        if start is not None and not is_there and to_position(start) in view.retired():
            if start == end:
                return []
            # The spool that has this name now is another one.
            start = None
        if durable is None:
            return self._lost(f"the spool {view.where} is gone")
        if (what := _not_there(view, runs, durable, end)) is not None:
            return self._lost(what)
        if start is not None and (what := _not_there(view, runs, durable, start)) is not None:
            self._lost(what)
            start = None
        if start is not None and (start["segment"], start["position"]) > (end["segment"], end["position"]):
            # Both places exist, so the options are wrong; Spark never requests such a micro-batch.
            raise UsageError(f"startingOffsets lies behind endingOffsets for {name}: {start}, {end}")
        segments = view.segments()
        if not segments:
            return self._lost(f"the spool {view.where} has lost its segments")
        first, position = (start["segment"], start["position"]) if start else (segments[0], 0)
        ranges: list[Range] = []
        present = set(segments)
        for segment in range(first, end["segment"] + 1):
            path = segment_path(Path(view.where), segment)
            if segment not in present:
                self._lost(f"{path} was removed before it was read")
                continue
            begin = position if segment == first else 0
            stop = end["position"] if segment == end["segment"] else view.segment_end(segment, durable)
            if begin < stop:
                ranges.append(Range(name, spool_of(runs, segment) or "", segment, begin, stop))
            elif begin > stop:
                self._lost(f"{path} is shorter than an offset that was read from it")
        return list(self._received_in_time(view, ranges))

    def _received_in_time(self, view: SpoolView, ranges: list[Range]) -> Iterator[Range]:
        """Yield the parts of one spool's `ranges` that were received at `since_ms` or later and before `until_ms`."""
        if not self._since_ms and self._until_ms == math.inf:
            yield from ranges
            return
        for r in ranges:
            begin = end = r.start
            for header in view.headers(r.segment, r.start, r.end):
                if not self._is_in_time(header.received_ms):
                    if begin < end:
                        yield replace(r, start=begin, end=end)
                    begin = header.end
                end = header.end
            if begin < end:
                yield replace(r, start=begin, end=end)

    def _is_in_time(self, received_ms: int) -> bool:
        return self._since_ms <= received_ms < self._until_ms

    def _lost(self, what: str) -> list[Range]:
        if self._fail_on_data_loss:
            raise DataLoss(
                f"{what}; messages may be lost. Put the spool back, or go on without them with "
                "option failOnDataLoss=false (of the pipeline: --allow-data-loss)"
            )
        return []


def _first(view: SpoolView, durable: Position) -> Position:
    segments = view.segments()
    first = segments[0] if segments else durable.segment
    return Position(spool_of(view.runs(), first) or durable.spool, first, 0)


def _not_there(view: SpoolView, runs: list[Run], durable: Position, place: Place) -> str | None:
    """Return None if the spool has the place, else a text that says why it does not."""
    if spool_of(runs, place["segment"]) != place["spool"]:
        return (
            f"the spool {view.where} was made anew or restored from an old copy: "
            f"it has no segment {place['segment']} of {place['spool']}"
        )
    if (place["segment"], place["position"]) > (durable.segment, durable.position):
        return f"the spool {view.where} ends before an offset that was read from it"
    return None


class _Block(NamedTuple):
    """A block to be read; `size` is in bytes, including the header."""

    end: Place
    messages: int
    size: int
    received_ms: int


def _blocks(view: SpoolView, ranges: list[Range]) -> Iterator[_Block]:
    for r in ranges:
        for header in view.headers(r.segment, r.start, r.end):
            end: Place = {"spool": r.spool, "segment": r.segment, "position": header.end}
            size = BLOCK_HEADER.size + header.end - header.start
            yield _Block(end, header.messages, size, header.received_ms)


@dataclass
class _Room:
    """The messages and bytes for which a micro-batch still has room."""

    rows: float
    size: float
    is_empty: bool = True

    def takes(self, block: _Block) -> bool:
        """Count a block if it fits or is the first one; return False if it does not fit."""
        if not self.is_empty and (block.messages > self.rows or block.size > self.size):
            return False
        self.rows -= block.messages
        self.size -= block.size
        self.is_empty = False
        return True

    def share(self, part: float) -> "_Room":
        return _Room(self.rows * part, self.size * part, self.is_empty)


def bytes_between(start: Mapping[str, Place], end: Mapping[str, Place], spools: Spools | Path) -> int:
    """Return the bytes of spool between two offsets; missing data is skipped."""
    ranges = SpoolTree(spools, fail_on_data_loss=False).ranges(dict(start), dict(end))
    return sum(r.end - r.start for r in ranges)


class Lag(Place):
    """A durable place, with the number of bytes before it that were not read yet."""

    lagBytes: int


def lag_behind(end: Mapping[str, Place], spools: Spools | Path) -> dict[str, Lag]:
    """Return the current durable places, each with the bytes since `end`, the offset up to which spools were read."""
    latest = SpoolTree(spools, fail_on_data_loss=False).latest()
    read = {name: {name: end[name]} if name in end else {} for name in latest}
    return {
        name: {**place, "lagBytes": bytes_between(read[name], {name: place}, spools)} for name, place in latest.items()
    }
