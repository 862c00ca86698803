"""Offsets of the ``mqtt`` source: ``{collector: {"spool": UUID, "segment": number, "position": bytes}}``.

Pure planning on top of what the spools hold now: where to start, how far a micro-batch may go, and which
byte ranges its partitions read. Offsets always lie between two blocks, so limits are kept to the block: a
micro-batch ends with the block that reaches its limit, and never makes no progress at all.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from .errors import DataLoss, UsageError
from .spool_format import Position, block_headers, segment_path
from .spool_reader import SpoolView, spools_in

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
    folder: str
    spool: str
    segment: int
    start: int
    end: int


def to_place(position: Position) -> Place:
    """`position` as JSON can hold it."""
    return {"spool": position.spool, "segment": position.segment, "position": position.position}


class SpoolTree:
    """The spools below one folder, as the source sees them.

    :param fail_on_data_loss: whether an offset that names messages which are gone is an error (as in
        Spark's Kafka source) or is passed over.
    """

    def __init__(self, root: Path, *, fail_on_data_loss: bool = True) -> None:
        self._root = root
        self._fail_on_data_loss = fail_on_data_loss

    def latest(self) -> Offset:
        """The durable positions now."""
        places = ((view.name, view.durable()) for view in spools_in(self._root))
        return {name: to_place(durable) for name, durable in places if durable is not None}

    def earliest(self) -> Offset:
        """Where the oldest kept message of each spool begins."""
        offset: Offset = {}
        for view in spools_in(self._root):
            durable = view.durable()
            if durable is not None:
                offset[view.name] = to_place(self._first(view, durable))
        return offset

    def starting(self, option: str) -> Offset:
        """What ``startingOffsets`` or ``endingOffsets`` means: earliest, latest, or an offset as JSON.

        :raises UsageError: it is none of these.
        """
        if option == "earliest":
            return self.earliest()
        if option == "latest":
            return self.latest()
        try:
            given = json.loads(option)
            return {
                str(name): {
                    "spool": str(place["spool"]),
                    "segment": int(place["segment"]),
                    "position": int(place["position"]),
                }
                for name, place in given.items()
            }
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UsageError(
                f"startingOffsets {option!r} is not earliest, latest or an offset: "
                '{"COLLECTOR": {"spool": UUID, "segment": N, "position": N}}'
            ) from None

    def advance(
        self, start: Offset, target: Offset, *, max_rows: int | None = None, max_bytes: int | None = None
    ) -> Offset:
        """How far a micro-batch from `start` goes towards `target`, within the limits.

        The limits are shared among the collectors in proportion to what each has waiting.

        :raises DataLoss: `start` names what is gone.
        """
        end: Offset = dict(start)
        for name in start.keys() - target.keys():
            self._lost(f"the spool {self._root / name} is gone")
        waiting = {name: self._ranges_of(name, start.get(name), place) for name, place in target.items()}
        if max_rows is None and max_bytes is None:
            return {**end, **target}
        bytes_waiting = {name: sum(r.end - r.start for r in ranges) for name, ranges in waiting.items()}
        total = sum(bytes_waiting.values())
        for name, ranges in waiting.items():
            if not bytes_waiting[name]:
                end[name] = target[name]
                continue
            share = bytes_waiting[name] / total
            end[name] = _within_limits(
                ranges,
                target[name],
                max_rows=None if max_rows is None else max(1, round(max_rows * share)),
                max_bytes=None if max_bytes is None else max(1, round(max_bytes * share)),
            )
        return end

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """The byte ranges between two offsets, in the order in which their messages were received.

        :raises DataLoss: some of it is gone.
        """
        return [r for name, place in sorted(end.items()) for r in self._ranges_of(name, start.get(name), place)]

    def remove_before(self, end: Offset, *, older_than: float) -> int:
        """Remove segments that lie wholly before `end` and were last written before `older_than`; how many.

        :param older_than: Unix seconds.
        """
        removed = 0
        for view in spools_in(self._root):
            place, durable = end.get(view.name), view.durable()
            if place is None or durable is None or durable.spool != place["spool"]:
                continue
            for segment in view.segments():
                path = segment_path(view.folder, segment)
                # Oldest first, and no gaps: what is left must stay one run of numbers.
                if segment >= place["segment"] or path.stat().st_mtime >= older_than:
                    break
                path.unlink()
                removed += 1
        return removed

    def _first(self, view: SpoolView, durable: Position) -> Position:
        segments = view.segments()
        return Position(durable.spool, segments[0] if segments else durable.segment, 0)

    def _ranges_of(self, name: str, start: Place | None, end: Place) -> list[Range]:
        view = SpoolView(self._root / name)
        durable = view.durable()
        if durable is None:
            return self._lost(f"the spool {view.folder} is gone")
        if durable.spool != end["spool"]:
            return self._lost(f"the spool {view.folder} was made anew: it is {durable.spool}, not {end['spool']}")
        if (end["segment"], end["position"]) > (durable.segment, durable.position):
            return self._lost(f"the spool {view.folder} ends before an offset that was read from it")
        if start is not None and start["spool"] != durable.spool:
            self._lost(f"the spool {view.folder} was made anew: it is {durable.spool}, not {start['spool']}")
            start = None
        segments = view.segments()
        first, position = (start["segment"], start["position"]) if start else (segments[0], 0)
        ranges: list[Range] = []
        present = set(segments)
        for segment in range(first, end["segment"] + 1):
            if segment not in present:
                self._lost(f"{segment_path(view.folder, segment)} was removed before it was read")
                continue
            begin = position if segment == first else 0
            stop = end["position"] if segment == end["segment"] else view.segment_end(segment, durable)
            if begin < stop:
                ranges.append(Range(name, str(view.folder), durable.spool, segment, begin, stop))
            elif begin > stop:
                self._lost(f"{segment_path(view.folder, segment)} is shorter than an offset that was read from it")
        return ranges

    def _lost(self, what: str) -> list[Range]:
        if self._fail_on_data_loss:
            raise DataLoss(
                f"{what}; messages may be lost. Put the spool back, or go on without them with "
                "option failOnDataLoss=false (of the pipeline: --allow-data-loss)"
            )
        return []


def _within_limits(ranges: list[Range], target: Place, *, max_rows: int | None, max_bytes: int | None) -> Place:
    """The end of the first block that reaches a limit, or `target`."""
    rows = size = 0
    for r in ranges:
        for header in block_headers(segment_path(Path(r.folder), r.segment), r.start, r.end):
            rows += header.messages
            size += header.end - header.start
            if (max_rows is not None and rows >= max_rows) or (max_bytes is not None and size >= max_bytes):
                return {"spool": r.spool, "segment": r.segment, "position": header.end}
    return target


def cut(ranges: list[Range], min_partitions: int | None) -> list[tuple[Range, ...]]:
    """Cut `ranges` into partitions of about equal size, between blocks, keeping their order.

    Small ranges share a partition and large ones are cut: about 8 MiB each at most, and about `min_partitions` or
    more where there are enough blocks (blocks differ in size, so it may be one less, as in Spark's Kafka source).
    """
    total = sum(r.end - r.start for r in ranges)
    wanted = max(min_partitions or 1, -(-total // _PARTITION_BYTES))
    if wanted == 1:
        return [tuple(ranges)] if ranges else []
    partitions: list[tuple[Range, ...]] = []
    current: list[Range] = []
    passed = 0
    for r in ranges:
        begin = r.start
        for header in block_headers(segment_path(Path(r.folder), r.segment), r.start, r.end):
            # Against the share of the whole, not of one partition: rounding up would otherwise add up.
            if (passed + header.end - r.start) * wanted >= total * (len(partitions) + 1):
                partitions.append((*current, replace(r, start=begin, end=header.end)))
                current, begin = [], header.end
        if begin < r.end:
            current.append(replace(r, start=begin))
        passed += r.end - r.start
    return [*partitions, tuple(current)] if current else partitions


def bytes_between(start: Mapping[str, Place], latest: Mapping[str, Place], root: Path) -> int:
    """Spool bytes between an offset and the durable positions: the lag. Passes over what is gone."""
    ranges = SpoolTree(root, fail_on_data_loss=False).ranges(dict(start), dict(latest))
    return sum(r.end - r.start for r in ranges)
