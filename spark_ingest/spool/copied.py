"""Copies of spools in an object store, or in another folder: their layout, and ``CopiedSpools``, which readers use.

``copier`` writes them. Below one place, for each spool::

    names/NAME                       empty: there is a copy of this name
    NAME/copy.json                   the state, after a line with its checksum; replaced as a whole
    NAME/0000000007/UUID.START       bytes of segment 7 from START on, complete blocks as in the spool itself
    NAME/0000000007/UUID.START.index the headers of these blocks, one after the other, after a line with their checksum
    NAME/read.json                   written by retention: which segments were read and when, and which are gone

The state names what is complete, so it is always written last. A piece may be replaced by a longer one that begins at
the same byte; then the pieces behind it are removed. A reader that misses one of them reads the state again. If an
index is damaged or missing, a reader takes the headers from the blocks.
"""

import json
import math
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeVar

from ..durable import read_checked, read_checked_json, replace_checked
from ..errors import DataLoss, FileDamaged, SpoolDamaged, SpoolUnreachable, UsageError
from ..escape import remark
from ..location import Location, StorePath, may_pass, reason, remove_tree
from .access import STATE, LocalSpools, Spools, only_one_spool
from .blocks import (
    BLOCK_HEADER,
    BlockHeader,
    Position,
    Run,
    Times,
    checked_blocks,
    decode_block_header,
    spool_of,
)

FORMAT_VERSION = 1
NAMES = "names"
"""The folder below a place of copies that has an empty file for each of them."""


@dataclass
class CopyState:
    """What is copied of one spool.

    :ivar durable: the position up to which everything is copied; None: nothing yet.
    :ivar runs: the spool's runs; `retired` and `times` as in :class:`access.View`.
    :ivar ends: for each segment, its pieces in order, as the byte where a piece begins to the byte where it ends.
    """

    durable: Position | None = None
    runs: list[Run] = field(default_factory=list)
    retired: list[Position] = field(default_factory=list)
    times: list[Times] = field(default_factory=list)
    ends: dict[int, dict[int, int]] = field(default_factory=dict)

    def write(self, place: Location) -> None:
        """Replace the state of the copy at `place`."""
        content = {
            "format": FORMAT_VERSION,
            "durable": self.durable,
            "runs": self.runs,
            "retired": self.retired,
            "times": self.times,
            "ends": [[segment, list(pieces.items())] for segment, pieces in sorted(self.ends.items())],
        }
        replace_checked(place / STATE, json.dumps(content).encode())


def read_state(place: Location) -> CopyState:
    """Read the state of the copy at `place`; an empty one if there is no copy yet.

    :raises SpoolDamaged: the state is damaged.
    :raises UsageError: it has another format.
    :raises OSError: it cannot be read.
    """
    try:
        found = read_checked_json(place / STATE)
        if found["format"] != FORMAT_VERSION:
            found_format = f"the copy {place} has format {found['format']}, not {FORMAT_VERSION}"
            raise UsageError(f"{found_format}: copy the spool to another place")
        return CopyState(
            None if found["durable"] is None else Position(*found["durable"]),
            [Run(*run) for run in found["runs"]],
            [Position(*position) for position in found["retired"]],
            [Times(*times) for times in found["times"]],
            {segment: dict(map(tuple, pieces)) for segment, pieces in found["ends"]},
        )
    except FileNotFoundError:
        return CopyState()
    except (FileDamaged, KeyError, TypeError, ValueError) as error:
        raise SpoolDamaged(f"{place / STATE} is damaged: restore it from a copy") from error


@dataclass
class ReadMarks:
    """What retention has done to a copy.

    :ivar first: the number of the first segment that is kept.
    :ivar read: Unix seconds at which each kept segment was found to be read.
    """

    first: int = 0
    read: dict[int, float] = field(default_factory=dict)

    def write(self, place: Location) -> None:
        """Replace the marks of the copy at `place`."""
        content = {"first": self.first, "read": list(self.read.items())}
        replace_checked(place / "read.json", json.dumps(content).encode())


def read_marks(place: Location) -> ReadMarks:
    """Read the marks of the copy at `place`; none if retention has never run, or if they are damaged.

    Without marks, segments count as read later than they were, and those that are gone are not read again.
    """
    try:
        found = read_checked_json(place / "read.json")
        return ReadMarks(int(found["first"]), {int(segment): float(at) for segment, at in found["read"]})
    except (FileNotFoundError, FileDamaged, KeyError, TypeError, ValueError):
        return ReadMarks()


def piece_path(place: Location, spool: str, segment: int, start: int) -> Location:
    """Return the location of the piece that begins at byte `start` of a segment."""
    return place / f"{segment:010d}" / f"{spool}.{start}"


def index_path(piece: Location) -> Location:
    """Return the location of the block headers of a piece."""
    return _sibling(piece, ".index")


def remove_segment(place: Location, segment: int) -> None:
    """Remove what is copied of a segment; it is no error if nothing is."""
    remove_tree(place / f"{segment:010d}")


class _Piece(NamedTuple):
    path: Location
    start: int
    end: int


_Found = TypeVar("_Found")


class CopiedView:
    """One copied spool, as a :class:`access.View`. Every method may raise :class:`SpoolUnreachable`.

    :param refresh_s: seconds for which a durable position is returned again without asking the store.
    """

    def __init__(self, place: Location, *, refresh_s: float = 0) -> None:
        self._place = place
        self._refresh_s = refresh_s
        self._loaded_at = -math.inf
        self._state: CopyState | None = None
        self._first = 0
        self.name = place.name

    def __getstate__(self) -> dict[str, Any]:
        # A monotonic time of one machine means nothing on another.
        return self.__dict__ | {"_loaded_at": -math.inf}

    def __repr__(self) -> str:
        return f"CopiedView({self.where!r})"

    @property
    def where(self) -> str:
        """The location of the copy, for messages."""
        return str(self._place)

    def durable(self) -> Position | None:
        """Return the position up to which the spool is copied now; None if nothing is."""
        is_fresh = self._state is not None and time.monotonic() - self._loaded_at < self._refresh_s
        return (self._known() if is_fresh else self._load()).durable

    def runs(self) -> list[Run]:
        """Return the runs, in order; an empty list if there is no copy."""
        return self._known().runs

    def retired(self) -> list[Position]:
        """Return the positions up to which retired spools of this name had been read."""
        return self._known().retired

    def segments(self) -> list[int]:
        """Return the numbers of the segments of which something is copied and kept, in order."""
        return [segment for segment in sorted(self._known().ends) if segment >= self._first]

    def times(self) -> list[Times]:
        """Return when the blocks of finished segments were received."""
        return [times for times in self._known().times if times.segment >= self._first]

    def segment_end(self, segment: int, durable: Position) -> int:
        """Return the end of the readable part of `segment` in bytes: `durable` if that is in it, else its length.

        :raises DataLoss: the segment is gone.
        """
        if segment == durable.segment:
            return durable.position
        return max(self._pieces(segment)[1].values(), default=0)

    def read(self, segment: int, start: int, end: int) -> bytes:
        """Return the bytes [`start`, `end`) of a segment.

        :raises DataLoss: the segment is gone.
        :raises SpoolDamaged: it is shorter than `end`.
        """

        def read(pieces: list[_Piece]) -> bytes:
            parts = [_read_range(p.path, max(start, p.start) - p.start, min(end, p.end) - p.start) for p in pieces]
            return parts[0] if len(parts) == 1 else b"".join(parts)

        return b"" if start == end else self._on_pieces(segment, start, end, read)

    def headers(self, segment: int, start: int, end: int) -> Iterator[BlockHeader]:
        """Yield the headers of the blocks in [`start`, `end`), both block boundaries; their data is not read.

        :raises DataLoss: the segment is gone.
        :raises SpoolDamaged: the range does not consist of complete blocks.
        """

        def read(pieces: list[_Piece]) -> list[BlockHeader]:
            headers = [header for piece in pieces for header in _headers(piece)]
            found = [header for header in headers if start < header.start and header.end <= end]
            if not found or found[-1].end != end:
                raise SpoolDamaged(f"segment {segment} of {self._place} has no block that ends at byte {end}")
            return found

        if start < end:
            yield from self._on_pieces(segment, start, end, read)

    def damaged_indexes(self, segment: int, end: int) -> list[Location]:
        """Return the locations of the damaged indexes of a segment's pieces before byte `end`.

        :raises DataLoss: the segment is gone.
        """

        def read(pieces: list[_Piece]) -> list[Location]:
            found: list[Location] = []
            for piece in pieces:
                try:
                    _read_index(piece)
                except FileDamaged:
                    found.append(index_path(piece.path))
            return found

        return self._on_pieces(segment, 0, end, read) if end else []

    def remove_before(self, place: Position, *, read_for_s: float) -> int:
        """Mark the segments before `place.segment` as read; remove those marked at least `read_for_s` seconds ago.

        Returns the number of removed segments. Does nothing if `place.segment` does not belong to the run
        `place.spool`.
        """
        state = self._load()
        if state.durable is None or spool_of(state.runs, place.segment) != place.spool:
            return 0
        with _asking(self._place):
            marks, now = read_marks(self._place), time.time()
        read = [segment for segment in self.segments() if segment < min(place.segment, state.durable.segment)]
        kept = {segment: marks.read.get(segment, now) for segment in read}
        # Remove the oldest first and stop at the first to keep, so that the numbers stay without gaps.
        gone = read
        for count, segment in enumerate(read):
            if now - kept[segment] < read_for_s:
                gone = read[:count]
                break
        first = gone[-1] + 1 if gone else marks.first
        kept = {segment: at for segment, at in kept.items() if segment >= first}
        with _asking(self._place):
            if ReadMarks(first, kept) != marks:
                # Write the marks first, so that no reader looks for pieces that are being removed.
                ReadMarks(first, kept).write(self._place)
            for segment in gone:
                remove_segment(self._place, segment)
        self._first = first
        return len(gone)

    def _load(self) -> CopyState:
        with _asking(self._place):
            self._state = read_state(self._place)
            self._first = read_marks(self._place).first
        self._loaded_at = time.monotonic()
        return self._state

    def _known(self) -> CopyState:
        return self._state or self._load()

    def _spool(self, segment: int) -> str:
        return spool_of(self._known().runs, segment) or ""

    def _pieces(self, segment: int) -> tuple[str, dict[int, int]]:
        """Return the UUID of a segment's run, and the segment's pieces. Raises DataLoss if the segment is gone."""
        for is_fresh in (False, True):
            state = self._load() if is_fresh else self._known()
            if segment >= self._first and segment in state.ends:
                return self._spool(segment), state.ends[segment]
        raise DataLoss(f"segment {segment} of {self._place} was removed before it was read")

    def _on_pieces(self, segment: int, start: int, end: int, read: Callable[[list["_Piece"]], _Found]) -> _Found:
        """Return what `read` returns for the pieces that have bytes in [`start`, `end`).

        A piece that became part of another one is looked for again.
        """
        for is_fresh in (False, True, True):
            if is_fresh:
                self._load()
            spool, ends = self._pieces(segment)
            starts = sorted(ends)
            wanted = starts[max(0, bisect_right(starts, start) - 1) :]
            pieces = [_Piece(piece_path(self._place, spool, segment, at), at, ends[at]) for at in wanted if at < end]
            if pieces and pieces[-1].end >= end:
                with suppress(FileNotFoundError), _asking(self._place):
                    return read(pieces)
        raise SpoolDamaged(f"segment {segment} of {self._place} lacks bytes below its durable position")


class CopiedSpools:
    """The copies at one place, as :class:`access.Spools`. What it knows is at most two seconds old.

    Spark asks up to a hundred times a second what is new, and a store charges for each answer.
    """

    _REFRESH_S = 2.0

    def __init__(self, root: Location) -> None:
        self.root = root
        self._views: dict[str, CopiedView] = {}
        self._names: list[str] = []
        self._listed_at = -math.inf

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_listed_at": -math.inf}

    def __repr__(self) -> str:
        return f"CopiedSpools({str(self.root)!r})"

    def names(self) -> list[str]:
        """Return the names of the copied spools, in order.

        :raises SpoolUnreachable: the store does not answer, or refuses.
        :raises UsageError: this is the place of one copy.
        """
        if time.monotonic() - self._listed_at >= self._REFRESH_S:
            try:
                with _asking(self.root):
                    self._names = sorted(entry.name for entry in (self.root / NAMES).iterdir())
                    if not self._names and (self.root / STATE).exists():
                        raise only_one_spool(self.root)
            except FileNotFoundError:
                self._names = []
            self._listed_at = time.monotonic()
        return self._names

    def view(self, name: str) -> CopiedView:
        """Return the copy called `name`, without checking that it exists."""
        return self._views.setdefault(name, CopiedView(self.root / name, refresh_s=self._REFRESH_S))


@contextmanager
def _asking(place: Location) -> Iterator[None]:
    """Turn errors of the store into SpoolUnreachable, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        refused = isinstance(place, StorePath) and not may_pass(error)
        raise SpoolUnreachable(f"cannot read {place}: {reason(error)}", refused=refused) from error


def _sibling(path: Location, suffix: str) -> Location:
    return StorePath(f"{path}{suffix}") if isinstance(path, StorePath) else path.with_name(path.name + suffix)


def _headers(piece: _Piece) -> list[BlockHeader]:
    """Return the headers of a piece's blocks: from its index, or from the blocks if that cannot be used.

    :raises SpoolDamaged: the index cannot be used, and a block is damaged.
    """
    try:
        headers = _read_index(piece)
    except FileDamaged as error:
        _remark_once(f"{error}: its headers are taken from the blocks, which takes longer; remove it")
        headers = None
    if headers is None:
        data = _read_range(piece.path, 0, piece.end - piece.start)
        headers = [header for header, _ in checked_blocks(data, piece.start)]
        if not headers or headers[-1].end != piece.end:
            raise SpoolDamaged(f"{piece.path} is damaged: restore it from a copy")
    return headers


def _read_index(piece: _Piece) -> list[BlockHeader] | None:
    """Return the headers in a piece's index; None if there is none.

    :raises FileDamaged: the index is damaged.
    """
    path, headers, position = index_path(piece.path), [], piece.start
    try:
        raw = bytes(read_checked(path))
    except FileNotFoundError:
        return None
    for at in range(0, len(raw), BLOCK_HEADER.size):
        header = decode_block_header(raw[at : at + BLOCK_HEADER.size], position)
        # The index of a longer piece, which has just replaced this one, goes on behind it.
        if header is None or position == piece.end:
            break
        headers.append(header)
        position = header.end
    if position != piece.end:
        raise FileDamaged(f"{path} is damaged")
    return headers


# A stream reads the same index several times a second.
_remark_once = cache(remark)


def _read_range(path: Location, start: int, end: int) -> bytes:
    """Return the bytes [`start`, `end`) of a piece. Raises SpoolDamaged if it is shorter."""
    if isinstance(path, StorePath):
        data = path.read_range(start, end)
    else:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
    if len(data) < end - start:
        raise SpoolDamaged(f"{path} is shorter than {end} bytes: restore it from a copy")
    return data


def spools_at(place: Location) -> Spools:
    """Return the spools at a location: copies in an object store or a folder, or the folder of collectors itself.

    :raises UsageError: the folder has both, so messages would be missing from what is read as copies.
    """
    if isinstance(place, StorePath):
        return CopiedSpools(place)
    spools = LocalSpools(place)
    # A collector may be called "names". A path that cannot be looked at is left to LocalSpools, which says why.
    if not os.path.isdir(place / NAMES) or os.path.exists(place / NAMES / "lock"):
        return spools
    if live := spools.names():
        raise UsageError(
            f"{place} is a spool folder, with the spool of {live[0]}, and copies were made into it: give umqtt spool "
            f"copy another --to, and move the folder {place / NAMES} away"
        )
    return CopiedSpools(place)
