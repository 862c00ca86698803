"""How much a spool may hold: a limit of its own, and what must stay free on its disk.

Nothing is ever dropped to stay below them. A collector without room ends its connection, and the broker keeps the
messages until Spark has read enough for segments to be removed.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from ..durable import sync_data, write_all
from ..spool.blocks import segment_numbers, segment_path

# Collecting goes on only with this much below the limits, or every removed segment would be a connection of its own.
_MARGIN = 0.1
_LOOK_EVERY_BYTES = 4 << 20
_LOOK_EVERY_S = 1.0
_PROBE_BYTES = 1 << 20


class NoRoom(Exception):
    """The spool is at one of its limits; the text says at which."""


class Room:
    """Watches one spool's size and its disk.

    :param max_bytes: of the spool's segments; 0: no limit. It is exceeded by one group at most.
    :param min_free_bytes: of the file system, left to others: to Spark on the same disk first of all, which would
        otherwise have no room to free any.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        min_free_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._unlooked = 0
        self._looked_at = float("-inf")
        self.used = 0
        self.lacks()

    def note(self, appended: int) -> None:
        """Count `appended` bytes. :raises NoRoom: that was the last group for now."""
        self.used += appended
        self._unlooked += appended
        over = self._max_bytes and self.used >= self._max_bytes
        due = self._unlooked >= _LOOK_EVERY_BYTES or self._clock() - self._looked_at >= _LOOK_EVERY_S
        # Retention removes segments without telling: what was counted is only an upper bound.
        if over or due:
            reason = self.lacks()
            if reason is not None:
                raise NoRoom(reason)

    def lacks(self, *, margin: bool = False) -> str | None:
        """Look at the disk: which limit is reached, in words, or None.

        :param margin: ask for a tenth more, before collecting begins again.
        """
        self._unlooked, self._looked_at = 0, self._clock()
        try:
            self.used = spool_bytes(self._folder)
            disk = os.statvfs(self._folder)
        except OSError as error:
            # A folder that was removed under a running collector: its open files would take messages into nowhere.
            return f"the spool {self._folder} cannot be read: {error.strerror or error}; put it back"
        if self._max_bytes and self.used >= self._max_bytes * (1 - _MARGIN * margin):
            return (
                f"the spool {self._folder} holds {self.used} bytes and may hold {self._max_bytes}: "
                "it goes on when Spark has read segments and retention removed them"
            )
        free = disk.f_bavail * disk.f_frsize
        if free < self._min_free_bytes * (1 + _MARGIN * margin):
            return f"the disk of {self._folder} has {free} bytes free and must keep {self._min_free_bytes}: make room"
        return None

    def probe(self) -> str | None:
        """Find out by doing whether the disk takes a megabyte; what it says, or None."""
        path = self._folder / ".probe"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                write_all(fd, bytes(_PROBE_BYTES))
                sync_data(fd)
            finally:
                os.close(fd)
                path.unlink()
        except OSError as error:
            return f"the disk of {self._folder} takes no data: {error.strerror or error}"
        return None


def spool_bytes(folder: Path) -> int:
    """Bytes in the segments of a spool."""
    total = 0
    for segment in segment_numbers(folder):
        try:
            total += os.stat(segment_path(folder, segment)).st_size
        except FileNotFoundError:
            # Retention removed it since it was listed.
            continue
    return total
