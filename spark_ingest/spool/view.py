"""Read access to spools: their runs, durable positions, segments and bytes.

All objects can be pickled, because Spark builds a reader in one process and reads in others. Readers run while the
collector appends. They never lock or write anything, except that retention marks and removes segments.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataLoss, SpoolDamaged, UsageError
from .blocks import (
    BlockHeader,
    Position,
    Run,
    block_headers,
    damage_message,
    decode_position,
    known_runs,
    read_mark,
    retired_places,
    segment_numbers,
    segment_path,
    spool_of,
)

_TORN_READS = 100


class SpoolView:
    """A reader's view of the spool in `folder`. Its `name` is the collector's name, which is also the folder's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name

    @property
    def where(self) -> str:
        """The folder, for messages."""
        return str(self.folder)

    def durable(self) -> Position | None:
        """Return the current durable position; None if no collector has opened the spool yet, or it is gone.

        :raises SpoolDamaged: the `pos` file fails its checksum.
        """
        path = self.folder / "pos"
        # A read may overlap with the collector's overwrite of these 40 bytes; then the checksum is wrong, and this
        # reads again.
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
        """Return the runs that may still have segments, in order; an empty list if the spool is gone.

        :raises SpoolDamaged: ``spool.json`` is damaged.
        """
        try:
            return known_runs(self.folder)
        except FileNotFoundError:
            return []

    def retired(self) -> list[Position]:
        """Return the positions up to which retired spools of this name had been read."""
        try:
            return retired_places(self.folder)
        except OSError:
            return []

    def segments(self) -> list[int]:
        """Return the numbers of the existing segments, in order; an empty list if the spool is gone."""
        try:
            return segment_numbers(self.folder)
        except FileNotFoundError:
            return []

    def segment_end(self, segment: int, durable: Position) -> int:
        """Return the end of the readable part of `segment` in bytes: `durable` if that is in it, else its length.

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
        """Return the bytes [`start`, `end`) of a segment.

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
            # One read returns at most 2 GiB, and less on a network file system.
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
        """Yield the headers of the blocks in [`start`, `end`), both block boundaries; data is not checked.

        :raises DataLoss: the segment is gone.
        :raises SpoolDamaged: the range does not consist of complete blocks.
        """
        path = segment_path(self.folder, segment)
        try:
            yield from block_headers(path, start, end)
        except FileNotFoundError:
            raise _gone(path) from None

    def remove_before(self, place: Position, *, read_for_s: float) -> int:
        """Mark the segments before `place.segment` as read; remove those marked at least `read_for_s` seconds ago.

        Returns the number of removed segments. Does nothing if `place.segment` does not belong to the run
        `place.spool`.
        """
        durable = self.durable()
        if durable is None or spool_of(self.runs(), place.segment) != place.spool:
            return 0
        # Never remove the segment that the collector is writing.
        read = [segment for segment in self.segments() if segment < min(place.segment, durable.segment)]
        for segment in reversed(read):
            if not self._note_read(segment):
                break
        removed = 0
        # Remove the oldest first and stop at the first to keep, so that the numbers stay without gaps.
        for segment in read:
            mark = read_mark(self.folder, segment)
            # A mark that could not be made, on a full disk, counts as made just now.
            read_s = max(0.0, time.time() - mark.stat().st_mtime) if mark.exists() else 0.0
            if read_s < read_for_s:
                break
            # Another query's retention may have removed it already.
            mark.unlink(missing_ok=True)
            segment_path(self.folder, segment).unlink(missing_ok=True)
            removed += 1
        return removed

    def _note_read(self, segment: int) -> bool:
        """Mark a segment as read; return False if it was marked already."""
        mark = read_mark(self.folder, segment)
        if mark.exists():
            return False
        with contextlib.suppress(OSError):
            mark.touch()
        return True


class Spools:
    """The spools in the folder `root`, which is the collectors' ``--spool``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Return the names of the spools that a collector has opened, in order.

        :raises UsageError: `root` does not exist, cannot be read, or is itself one spool.
        """
        try:
            names = [name for name in self.folders() if (self.root / name / "pos").exists()]
        except OSError as error:
            where = error.filename or self.root
            raise UsageError(
                f"cannot read the spool folder {where}: {error.strerror}; give the --spool folder of the collector"
            ) from error
        if not names and os.path.isfile(self.root / "pos"):
            above = self.root.absolute().parent
            raise UsageError(f"{self.root} is the spool of one collector: give {above}, which has the spools of all")
        return names

    def folders(self) -> list[str]:
        """Return the names of all folders of present or retired spools, in order.

        :raises OSError: `root` cannot be read.
        """
        return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())

    def view(self, name: str) -> SpoolView:
        """Return the spool called `name`, without checking that it exists: ``durable()`` is None if it does not."""
        return SpoolView(self.root / name)


def _gone(path: Path) -> DataLoss:
    return DataLoss(f"{path} was removed before it was read")
