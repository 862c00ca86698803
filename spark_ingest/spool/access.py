"""Read access to spools: the protocols ``Spools`` and ``View``, and the spools in a local folder.

``copied`` implements the protocols for copies of spools. All these objects can be pickled, because Spark builds a
reader in one process and reads in others. None of them locks or writes anything, except that retention marks and
removes segments.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ..errors import UsageError
from ..location import Location
from .blocks import BlockHeader, Position, Run, Times
from .view import SpoolView

STATE = "copy.json"
"""The file in a copy of a spool that says what is copied."""


class View(Protocol):
    """One spool as a reader sees it.

    Every method raises :class:`DataLoss` if the segment it needs is gone, and :class:`SpoolDamaged` if bytes differ
    from what was written. Methods of a copied view also raise :class:`SpoolUnreachable`.
    """

    @property
    def name(self) -> str:
        """The collector's name, which is the spool's key in an offset."""
        ...

    @property
    def where(self) -> str:
        """The spool's location for messages: a folder, or the URL of a copy."""
        ...

    def durable(self) -> Position | None:
        """Return the current durable position; None if no collector has opened the spool yet, or it is gone."""
        ...

    def runs(self) -> list[Run]:
        """Return the runs that may still have segments, in order; an empty list if the spool is gone."""
        ...

    def retired(self) -> list[Position]:
        """Return the positions up to which retired spools of this name had been read; see ``spool.retire``."""
        ...

    def segments(self) -> list[int]:
        """Return the numbers of the existing segments, in order."""
        ...

    def times(self) -> list[Times]:
        """Return the receive times of segments, for those where they are known without reading the segment."""
        ...

    def segment_end(self, segment: int, durable: Position) -> int:
        """Return the end of the readable part of `segment`, in bytes: `durable` if that is in it, else its length."""
        ...

    def read(self, segment: int, start: int, end: int) -> bytes:
        """Return all bytes [`start`, `end`) of a segment; the caller must stay below the durable position."""
        ...

    def headers(self, segment: int, start: int, end: int) -> Iterator[BlockHeader]:
        """Yield the headers of the blocks in [`start`, `end`), both block boundaries; data is not checked."""
        ...

    def remove_before(self, place: Position, *, read_for_s: float) -> int:
        """Mark the segments before `place.segment` as read; remove those marked at least `read_for_s` seconds ago.

        Returns the number of removed segments. Does nothing if `place.segment` does not belong to the run
        `place.spool`.
        """
        ...


class Spools(Protocol):
    """A set of spools: those in the collectors' folder, or the copies at one place."""

    def names(self) -> list[str]:
        """Return the names of the spools that a collector has opened, in order."""
        ...

    def view(self, name: str) -> View:
        """Return the spool called `name`, without checking that it exists: ``durable()`` is None if it does not."""
        ...


def only_one_spool(place: Location) -> UsageError:
    """Return the error to raise for the location of one spool, or of its copy, where that of all is expected."""
    above = place.absolute().parent if isinstance(place, Path) else str(place).rpartition("/")[0]
    return UsageError(f"{place} is the spool of one collector: give {above}, which has the spools of all")


class LocalSpools:
    """The spools in the folder `root`, which is the collectors' ``--spool``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Return the names of the spools that a collector has opened, in order.

        :raises UsageError: `root` does not exist, cannot be read, or is itself one spool, or the copy of one.
        """
        try:
            names = [name for name in self.folders() if (self.root / name / "pos").exists()]
        except OSError as error:
            where = error.filename or self.root
            raise UsageError(
                f"cannot read the spool folder {where}: {error.strerror}; give the --spool folder of the collector"
            ) from error
        if not names and any(os.path.isfile(self.root / file) for file in ("pos", STATE)):
            raise only_one_spool(self.root)
        return names

    def folders(self) -> list[str]:
        """Return the names of all folders of present or retired spools, in order.

        :raises OSError: `root` cannot be read.
        """
        return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())

    def view(self, name: str) -> SpoolView:
        return SpoolView(self.root / name)
