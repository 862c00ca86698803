"""Copies spools to an object store, or to another folder, while their collector runs; ``copied`` has the layout.

Only what is durable is copied. New bytes become a new piece. Pieces of similar size are merged, so a segment has few
pieces however often something is copied, and each byte is written a few times at most. Everything that the copy's state
names is complete, so the copier may be killed at any moment: it continues where the state ends.
"""

import os
from pathlib import Path

from ..durable import replace_checked, replace_file
from ..errors import DataLoss, UsageError
from ..location import Location
from ..lock import FolderLock
from .access import LocalSpools
from .blocks import BlockHeader, Position, spool_of
from .copied import NAMES, CopyState, index_path, piece_path, read_marks, read_state, remove_segment
from .view import SpoolView

PIECE_BYTES = 32 << 20
"""About this many bytes of blocks are copied at a time; a single larger block is one piece."""


class Copier:
    """Copies the spool of one collector; as a context manager it keeps others from copying it.

    :param view: the spool.
    :param root: where the copies are; :class:`copied.CopiedSpools` reads them there.
    :param keep_s: seconds that a copied segment stays in the spool's folder; None: for ever. Readers of the folder
        itself may miss removed segments.
    :raises UsageError: on entering, if somebody else copies the spool, or the copies would mix with spools.
    """

    def __init__(self, view: SpoolView, root: Location, *, keep_s: float | None = None) -> None:
        self._view = view
        self._root = root
        self._place = root / view.name
        self._keep_s = keep_s
        self._state: CopyState | None = None
        self._lock = FolderLock(view.folder, "SPOOL", "umqtt spool copy")

    def __enter__(self) -> "Copier":
        self._require_separate()
        self._lock.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(None, None, None)

    def copy(self) -> int:
        """Copy what is new; return the number of copied bytes.

        :raises UsageError: the spool does not continue what was copied before.
        :raises DataLoss: a segment was removed from the folder before it was copied.
        :raises SpoolDamaged: the spool or the copy is damaged.
        :raises OSError: the store does not answer, or the folder cannot be read. Call again to go on.
        """
        durable = self._view.durable()
        if durable is None:
            return 0
        # If this is interrupted, the next call begins with what the store has.
        state, self._state = self._state or self._begin(), None
        size = 0
        if state.durable != durable:
            self._require_continuation(state.durable, durable)
            for segment in self._missing(state, durable):
                size += self._copy_segment(state, segment, durable)
            state.durable = durable
            self._write(state, durable)
        self._state = state
        if self._keep_s is not None:
            self._view.remove_before(durable, read_for_s=self._keep_s)
        return size

    def _require_separate(self) -> None:
        """Check that the copies do not mix with spools: readers would take a collector's folder for copies."""
        if self._view.name == NAMES:
            raise UsageError(f"a spool called {NAMES} cannot be copied: give the collector another --name")
        if not isinstance(self._root, Path):
            return
        source, target = (Path(os.path.realpath(path)) for path in (self._view.folder.parent, self._root))
        if source == target or source in target.parents or target in source.parents:
            raise UsageError(f"--to {self._root} is, or contains, or lies in {source}, the spool folder: give another")
        # Links and mounts may give a spool folder a second path.
        if self._root.is_dir() and (names := LocalSpools(self._root).names()):
            raise UsageError(f"--to {self._root} is a spool folder, with the spool of {names[0]}: give another")

    def _begin(self) -> CopyState:
        """Return the state of the copy, an empty one if nothing is copied yet."""
        state = read_state(self._place)
        if state.durable is None:
            _put(self._root / NAMES / self._view.name, b"\n")
        return state

    def _require_continuation(self, before: Position | None, durable: Position) -> None:
        if before is not None and (
            before.spool != spool_of(self._view.runs(), before.segment) or before[1:] > durable[1:]
        ):
            raise UsageError(
                f"the spool {self._view.where} does not continue the copy {self._place}, as if it had been removed or "
                "restored from a backup: copy it to another place, and read both"
            )

    def _missing(self, state: CopyState, durable: Position) -> list[int]:
        """Return the segments of which something is to be copied. Raises DataLoss."""
        there = self._view.segments()
        if state.durable is None:
            return there
        wanted = range(state.durable.segment, durable.segment + 1)
        for segment in wanted:
            if segment not in there:
                raise DataLoss(f"segment {segment} of {self._view.where} was removed before it was copied")
        return list(wanted)

    def _copy_segment(self, state: CopyState, segment: int, durable: Position) -> int:
        ends = state.ends.setdefault(segment, {})
        copied = max(ends.values(), default=0)
        end = self._view.segment_end(segment, durable)
        size, headers = 0, []
        for header in self._view.headers(segment, copied, end):
            headers.append(header)
            if header.end - copied >= PIECE_BYTES:
                size += self._add(state, segment, durable, copied, headers)
                copied, headers = header.end, []
        if headers:
            size += self._add(state, segment, durable, copied, headers)
        return size

    def _add(self, state: CopyState, segment: int, durable: Position, start: int, headers: list[BlockHeader]) -> int:
        """Copy the blocks that follow what is copied of a segment; return the number of their bytes.

        The pieces before the blocks are merged with them, from the last one on, as long as a piece is at most twice as
        large as everything behind it and the merged piece has at most PIECE_BYTES.
        """
        ends = state.ends[segment]
        end = headers[-1].end
        size, merged = end - start, []
        for before in sorted(ends, reverse=True):
            if end - before > PIECE_BYTES or ends[before] - before > 2 * (end - start):
                break
            start = before
            merged.append(before)
        spool = spool_of(self._view.runs(), segment) or ""
        piece = piece_path(self._place, spool, segment, start)
        if merged:
            headers = list(self._view.headers(segment, start, end))
        # Write the index first, so that a reader that finds the longer piece also finds its headers.
        _put(index_path(piece), b"".join(header.encode() for header in headers), checked=True)
        _put(piece, self._view.read(segment, start, end))
        for before in merged:
            del ends[before]
        ends[start] = end
        state.durable = Position(spool, segment, end)
        self._write(state, durable)
        for before in merged:
            if before != start:
                old = piece_path(self._place, spool, segment, before)
                for path in (old, index_path(old)):
                    path.unlink(missing_ok=True)
        return size

    def _write(self, state: CopyState, durable: Position) -> None:
        """Write the state, without the segments that retention has removed from the copy."""
        first = read_marks(self._place).first
        state.runs, state.retired = self._view.runs(), self._view.retired()
        state.times = [times for times in self._view.times() if times.segment < durable.segment]
        gone = [segment for segment in state.ends if segment < first]
        for segment in gone:
            del state.ends[segment]
        state.write(self._place)
        for segment in gone:
            # Retention may have been killed before it had removed the whole segment.
            remove_segment(self._place, segment)


def _put(path: Location, data: bytes, *, checked: bool = False) -> None:
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
    (replace_checked if checked else replace_file)(path, data)
