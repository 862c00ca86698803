"""How a reader reaches spools, wherever they lie: the two protocols, and the spools below a local folder.

``remote`` has the other implementation, for spools that a collector serves over HTTPS. Both pickle (Spark builds
a reader in one process and reads in others), and neither locks or writes anything, removal by retention apart.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ..errors import UsageError
from .blocks import BlockHeader, Position, Run, Times
from .view import SpoolView


class View(Protocol):
    """One spool as a reader sees it.

    Every method may raise :class:`DataLoss` when the segment that it is asked about is gone and
    :class:`SpoolDamaged` when bytes are not what was written; a remote one :class:`SpoolUnreachable` too.
    """

    @property
    def name(self) -> str:
        """The collector's name: the spool's key in an offset."""
        ...

    @property
    def where(self) -> str:
        """What a person calls this spool, for messages: a folder, or NAME at HOST:PORT."""
        ...

    def durable(self) -> Position | None:
        """The durable position now; None when no collector has opened the spool yet, or it is gone."""
        ...

    def runs(self) -> list[Run]:
        """The runs whose segments may be there, in order; none when the spool is gone."""
        ...

    def retired(self) -> list[Position]:
        """Up to where the spools that had this name were read when they were retired; see ``spool.retire``."""
        ...

    def segments(self) -> list[int]:
        """Numbers of the segments that exist, in order."""
        ...

    def times(self) -> list[Times]:
        """When the blocks of segments were received, for those of which it is known without reading them."""
        ...

    def segment_end(self, segment: int, durable: Position) -> int:
        """Where the readable part of `segment` ends, in bytes: `durable` when that lies in it, else its length."""
        ...

    def read(self, segment: int, start: int, end: int) -> bytes:
        """The bytes [`start`, `end`) of a segment, all of them; below the durable position is the caller's care."""
        ...

    def headers(self, segment: int, start: int, end: int) -> Iterator[BlockHeader]:
        """The headers of the blocks in [`start`, `end`), which lie between two blocks; no data is checked."""
        ...

    def remove_before(self, place: Position, *, read_for_s: float) -> int:
        """Note that the segments before `place.segment` have been read, remove those read `read_for_s` ago; how many.

        Does nothing when `place.segment` is not of the run `place.spool`.
        """
        ...


class Spools(Protocol):
    """A tree of spools: what several collectors keep in one folder, or one or several servers hand out."""

    def names(self) -> list[str]:
        """The names of the spools that a collector has opened, in order."""
        ...

    def view(self, name: str) -> View:
        """The spool called `name`; does not ask whether it exists (``durable()`` is None if not)."""
        ...


class LocalSpools:
    """The spools below the folder `root`, which is the collectors' ``--spool``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """:raises UsageError: `root` does not exist or cannot be read."""
        try:
            return [name for name in self.folders() if (self.root / name / "pos").exists()]
        except OSError as error:
            where = error.filename or self.root
            raise UsageError(
                f"cannot read the spool folder {where}: {error.strerror}; give the --spool folder of the collector"
            ) from error

    def folders(self) -> list[str]:
        """The names of the spools that there are or were, in order. :raises OSError: `root` cannot be read."""
        return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())

    def view(self, name: str) -> SpoolView:
        return SpoolView(self.root / name)
