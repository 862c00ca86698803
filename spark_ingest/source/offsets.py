"""Offsets of the ``mqtt`` source: ``{collector: {"spool": UUID, "segment": number, "position": bytes}}``.

The UUID is the run's that wrote the segment: a spool that was made anew, or restored from a copy and written again, has
the segment's number with another one.

Pure planning on top of what the spools hold now: where to start, how far a micro-batch may go, and which
byte ranges its partitions read. Offsets always lie between two blocks, so a micro-batch consists of whole blocks: as
many as fit within its limits, or one block that alone exceeds them.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypedDict

from ..errors import DataLoss, UsageError
from ..spool.access import LocalSpools, Spools, View
from ..spool.blocks import BLOCK_HEADER, Position, Run, segment_path, spool_of

_PARTITION_BYTES = 8 << 20


class Place(TypedDict):
    """One collector's part of an offset, as Spark keeps it in its checkpoint (JSON)."""

    spool: str
    segment: int
    position: int


Offset = dict[str, Place]


@dataclass(frozen=True)
class Range:
    """Bytes [`start`, `end`) of one segment, between two blocks."""

    collector: str
    spool: str
    segment: int
    start: int
    end: int


def to_place(position: Position) -> Place:
    """`position` as JSON can hold it."""
    return {"spool": position.spool, "segment": position.segment, "position": position.position}


def to_position(place: Place) -> Position:
    """What :func:`to_place` was given."""
    return Position(place["spool"], place["segment"], place["position"])


class SpoolTree:
    """A tree of spools, as the source sees it.

    :param spools: the spools, or the local folder that holds them.
    :param fail_on_data_loss: whether an offset that names messages which are gone is an error (as in
        Spark's Kafka source) or is passed over.
    :param since_ms: blocks received before, in Unix milliseconds, are passed over; :param until_ms: likewise those
        received then or later.
    """

    def __init__(
        self,
        spools: Spools | Path,
        *,
        fail_on_data_loss: bool = True,
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> None:
        self.spools: Spools = LocalSpools(spools) if isinstance(spools, Path) else spools
        self._fail_on_data_loss = fail_on_data_loss
        self._since_ms = since_ms or 0
        self._until_ms = math.inf if until_ms is None else until_ms

    def latest(self) -> Offset:
        """The durable positions now."""
        places = ((name, self.spools.view(name).durable()) for name in self.spools.names())
        return {name: to_place(durable) for name, durable in places if durable is not None}

    def earliest(self) -> Offset:
        """Where the oldest kept message of each spool begins."""
        offset: Offset = {}
        for name in self.spools.names():
            view = self.spools.view(name)
            durable = view.durable()
            if durable is not None:
                offset[name] = to_place(_first(view, durable))
        return offset

    def starting(self, value: str, option: str = "startingOffsets") -> Offset:
        """What ``startingOffsets`` or ``endingOffsets`` means: earliest, latest, or an offset as JSON.

        In JSON a collector's place may be "earliest" or "latest" too. A collector that it does not name is read from
        its beginning.

        :param option: the option's name, for the error.
        :raises UsageError: it is none of these.
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
        """How far a micro-batch from `start` goes towards `target`, within the limits.

        Neither limit is exceeded but by a block that exceeds it alone, which then is the whole micro-batch. Each spool
        gives its next block first, the one that was received longest ago before the others, so that none starves. The
        room that is left is shared in proportion to what each has waiting.

        :param max_rows: messages.
        :param max_bytes: bytes of spool.
        :raises DataLoss: `start` names what is gone.
        """
        end: Offset = dict(start)
        for name in start.keys() - target.keys():
            view = self.spools.view(name)
            if to_position(start[name]) not in view.retired():
                self._lost(f"the spool {view.where} is gone")
            # Forgotten: nothing that is still to come depends on it.
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
            # The target may lie in a segment after the last block.
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
        """The byte ranges between two offsets, in the order in which their messages were received.

        Without the blocks received before `since_ms`, or at `until_ms` or later.

        :raises DataLoss: some of it is gone.
        :raises UsageError: `start` lies behind `end`.
        """
        return [r for name, place in sorted(end.items()) for r in self._ranges_of(name, start.get(name), place)]

    def remove_before(self, end: Offset, *, read_for_s: float) -> int:
        """Note that segments before `end` have been read, and remove those read `read_for_s` ago; how many."""
        removed = 0
        for name in self.spools.names():
            place = end.get(name)
            if place is not None:
                removed += self.spools.view(name).remove_before(to_position(place), read_for_s=read_for_s)
        return removed

    def messages(self, start: Offset, end: Offset) -> int:
        """How many messages lie between two offsets. Raises as :meth:`ranges`."""
        ranges = self.ranges(start, end)
        return sum(block.messages for r in ranges for block in _blocks(self.spools.view(r.collector), [r]))

    def cut(
        self, ranges: list[Range], min_partitions: int | None, *, max_rows: int | None = None
    ) -> list[tuple[Range, ...]]:
        """Cut `ranges` into partitions of about equal size, between blocks, keeping their order.

        Small ranges share a partition and large ones are cut: about 8 MiB each at most, and about `min_partitions`
        or more where there are enough blocks (blocks differ in size, so it may be one less, as in Spark's Kafka
        source).

        :param max_rows: messages a partition, exceeded only by a block that alone has more.
        """
        total = sum(r.end - r.start for r in ranges)
        wanted = max(min_partitions or 1, -(-total // _PARTITION_BYTES))
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
                # Against the share of the whole, not of one partition: rounding up would otherwise add up.
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
            # What has its name now is another spool.
            start = None
        if durable is None:
            return self._lost(f"the spool {view.where} is gone")
        if (what := _not_there(view, runs, durable, end)) is not None:
            return self._lost(what)
        if start is not None and (what := _not_there(view, runs, durable, start)) is not None:
            self._lost(what)
            start = None
        if start is not None and (start["segment"], start["position"]) > (end["segment"], end["position"]):
            # Of two places that the spool has; Spark never asks for such a micro-batch.
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

    def _received_in_time(self, view: View, ranges: list[Range]) -> Iterator[Range]:
        """The parts of `ranges` of one spool that were received since `since_ms` and before `until_ms`."""
        if not self._since_ms and self._until_ms == math.inf:
            yield from ranges
            return
        known = {(times.spool, times.segment): times for times in view.times()} if ranges else {}
        for r in ranges:
            times = known.get((r.spool, r.segment))
            if times is None:
                yield from self._blocks_in_time(view, r)
            elif self._is_in_time(times.first_ms) and self._is_in_time(times.last_ms):
                yield r
            elif times.last_ms >= self._since_ms and times.first_ms < self._until_ms:
                yield from self._blocks_in_time(view, r)

    def _blocks_in_time(self, view: View, r: Range) -> Iterator[Range]:
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


def _first(view: View, durable: Position) -> Position:
    segments = view.segments()
    first = segments[0] if segments else durable.segment
    return Position(spool_of(view.runs(), first) or durable.spool, first, 0)


def _not_there(view: View, runs: list[Run], durable: Position, place: Place) -> str | None:
    """What is wrong with a place that the spool does not have (any more), or None."""
    if spool_of(runs, place["segment"]) != place["spool"]:
        return (
            f"the spool {view.where} was made anew or restored from an old copy: "
            f"it has no segment {place['segment']} of {place['spool']}"
        )
    if (place["segment"], place["position"]) > (durable.segment, durable.position):
        return f"the spool {view.where} ends before an offset that was read from it"
    return None


class _Block(NamedTuple):
    """A block that waits; `size` in bytes of spool, its header with it."""

    end: Place
    messages: int
    size: int
    received_ms: int


def _blocks(view: View, ranges: list[Range]) -> Iterator[_Block]:
    for r in ranges:
        for header in view.headers(r.segment, r.start, r.end):
            end: Place = {"spool": r.spool, "segment": r.segment, "position": header.end}
            size = BLOCK_HEADER.size + header.end - header.start
            yield _Block(end, header.messages, size, header.received_ms)


@dataclass
class _Room:
    """What a micro-batch may still take."""

    rows: float
    size: float
    is_empty: bool = True

    def takes(self, block: _Block) -> bool:
        """Count a block that fits, or the first one of all; False when it does not fit."""
        if not self.is_empty and (block.messages > self.rows or block.size > self.size):
            return False
        self.rows -= block.messages
        self.size -= block.size
        self.is_empty = False
        return True

    def share(self, part: float) -> "_Room":
        return _Room(self.rows * part, self.size * part, self.is_empty)


def bytes_between(start: Mapping[str, Place], end: Mapping[str, Place], spools: Spools | Path) -> int:
    """Spool bytes between two offsets. Passes over what is gone."""
    ranges = SpoolTree(spools, fail_on_data_loss=False).ranges(dict(start), dict(end))
    return sum(r.end - r.start for r in ranges)


class Lag(Place):
    """A durable place, and how many bytes of the spool lie before it that were not read."""

    lagBytes: int


def lag_behind(end: Mapping[str, Place], spools: Spools | Path) -> dict[str, Lag]:
    """The durable places now, each with the bytes since `end`, up to where its spool was read."""
    latest = SpoolTree(spools, fail_on_data_loss=False).latest()
    read = {name: {name: end[name]} if name in end else {} for name in latest}
    return {
        name: {**place, "lagBytes": bytes_between(read[name], {name: place}, spools)} for name, place in latest.items()
    }
