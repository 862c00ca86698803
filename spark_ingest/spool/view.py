"""What a reader may see of a spool: its identity, its durable position, its segments.

Readers never lock and never write (removal by retention apart); they run while the collector appends.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataLoss, SpoolDamaged
from .blocks import (
    BlockHeader,
    Position,
    Run,
    Times,
    block_headers,
    damage_message,
    decode_position,
    known_runs,
    known_times,
    read_mark,
    retired_places,
    segment_numbers,
    segment_path,
    spool_of,
    times_path,
)

_TORN_READS = 100


class SpoolView:
    """A reader's view of the spool in `folder`.

    :param name: the collector's name, which is the folder's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name

    @property
    def where(self) -> str:
        """What a person calls this spool."""
        return str(self.folder)

    def durable(self) -> Position | None:
        """The durable position now; None when no collector has opened the spool yet.

        :raises SpoolDamaged: the `pos` file fails its checksum.
        """
        path = self.folder / "pos"
        # A read may overlap the collector's overwrite of these 40 bytes; the checksum tells, and reading
        # again mends it.
        for _ in range(_TORN_READS):
            try:
                raw = path.read_bytes()
            except FileNotFoundError:
                return None
            place = decode_position(raw)
            if place is not None:
                return place
            if not raw:
                return None
        raise SpoolDamaged(f"{path} is damaged: stop the collector and restore it from a copy")

    def runs(self) -> list[Run]:
        """The runs whose segments may be there, in order; none when the spool is gone.

        :raises SpoolDamaged: ``spool.json`` is not what was written.
        """
        try:
            return known_runs(self.folder)
        except FileNotFoundError:
            return []

    def retired(self) -> list[Position]:
        """Up to where the spools that had this name were read when they were retired."""
        try:
            return retired_places(self.folder)
        except OSError:
            return []

    def segments(self) -> list[int]:
        """Numbers of the segments that exist, in order; none when the spool is gone."""
        try:
            return segment_numbers(self.folder)
        except FileNotFoundError:
            return []

    def times(self) -> list[Times]:
        """When the blocks of finished segments were received; none when the spool is gone."""
        try:
            return known_times(self.folder)
        except FileNotFoundError:
            return []

    def segment_end(self, segment: int, durable: Position) -> int:
        """Where the readable part of `segment` ends: its length, or the durable position in the newest.

        :raises DataLoss: the segment is gone.
        """
        if segment == durable.segment:
            return durable.position
        path = segment_path(self.folder, segment)
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            raise _gone(path) from None

    def read(self, segment: int, start: int, end: int) -> bytes:
        """The bytes [`start`, `end`) of a segment.

        :raises DataLoss: the segment is gone.
        :raises SpoolDamaged: it is shorter than `end`.
        """
        path = segment_path(self.folder, segment)
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise _gone(path) from None
        try:
            pieces: list[bytes] = []
            position = start
            # One read gives 2 GiB at most, and a network file system less.
            while position < end:
                data = os.pread(fd, end - position, position)
                if not data:
                    raise SpoolDamaged(damage_message(path, position))
                pieces.append(data)
                position += len(data)
        finally:
            os.close(fd)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def headers(self, segment: int, start: int, end: int) -> Iterator[BlockHeader]:
        """The headers of the blocks in [`start`, `end`), which lie between two blocks; no data is checked.

        :raises DataLoss: the segment is gone.
        :raises SpoolDamaged: the range does not consist of whole blocks.
        """
        path = segment_path(self.folder, segment)
        try:
            yield from block_headers(path, start, end)
        except FileNotFoundError:
            raise _gone(path) from None

    def remove_before(self, place: Position, *, read_for_s: float) -> int:
        """Note that the segments before `place.segment` have been read, and remove those read `read_for_s` ago.

        Nothing is done when `place.segment` is not of the run `place.spool`. Returns how many were removed.
        """
        durable = self.durable()
        if durable is None or spool_of(self.runs(), place.segment) != place.spool:
            return 0
        # The segment that the collector writes stays whatever is asked.
        read = [segment for segment in self.segments() if segment < min(place.segment, durable.segment)]
        for segment in reversed(read):
            if not self._note_read(segment):
                break
        removed, times = 0, {one.segment: one for one in self.times()}
        # Oldest first, and no gaps: what is left must stay one run of numbers.
        for segment in read:
            mark = read_mark(self.folder, segment)
            # Without its mark, on a full disk, it has been read just now.
            read_s = max(0.0, time.time() - mark.stat().st_mtime) if mark.exists() else 0.0
            if read_s < read_for_s:
                break
            # Another query's retention may have been faster.
            mark.unlink(missing_ok=True)
            segment_path(self.folder, segment).unlink(missing_ok=True)
            if segment in times:
                times_path(self.folder, times[segment]).unlink(missing_ok=True)
            removed += 1
        return removed

    def _note_read(self, segment: int) -> bool:
        """Leave the mark of a segment that has been read; False when it was there."""
        mark = read_mark(self.folder, segment)
        if mark.exists():
            return False
        with contextlib.suppress(OSError):
            mark.touch()
        return True


def _gone(path: Path) -> DataLoss:
    return DataLoss(f"{path} was removed before it was read")
