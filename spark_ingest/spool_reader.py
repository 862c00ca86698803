"""What a reader may see of a spool: its identity, its durable position, its segments.

Readers never lock and never write (removal by retention apart); they run while the collector appends.
"""

import os
from pathlib import Path

from .errors import SpoolDamaged, UsageError
from .spool_format import Position, decode_position, segment_numbers, segment_path

_TORN_READS = 100


class SpoolView:
    """A reader's view of the spool in `folder`.

    :param name: the collector's name, which is the folder's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name

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

    def segments(self) -> list[int]:
        """Numbers of the segments that exist, in order."""
        return segment_numbers(self.folder)

    def segment_end(self, segment: int, durable: Position) -> int:
        """Where the readable part of `segment` ends: its length, or the durable position in the newest."""
        if segment == durable.segment:
            return durable.position
        return os.stat(segment_path(self.folder, segment)).st_size


def spools_in(root: Path) -> list[SpoolView]:
    """The spools below `root`, by name: every folder in it that a collector has opened.

    :raises UsageError: `root` does not exist or cannot be read.
    """
    try:
        entries = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError as error:
        raise UsageError(
            f"cannot read the spool folder {root}: {error.strerror}; give the --spool folder of the collector"
        ) from error
    return [SpoolView(root / name) for name in entries if (root / name / "pos").exists()]
