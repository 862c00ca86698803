"""Limits on disk use: the largest size of a spool, and the space that must stay free on its disk.

No message is ever dropped to stay within these limits. A collector without room ends its connection, and the broker
keeps the messages until Spark has read enough for segments to be removed.
"""

import os
import time
from pathlib import Path

from umqtt_cli.durable import sync_data, write_all

from ..spool.blocks import segment_numbers, segment_path

# Collecting resumes only this far below the limits; otherwise every removed segment would cause a reconnect.
_MARGIN = 0.1
_LOOK_EVERY_BYTES = 4 << 20
_LOOK_EVERY_S = 1.0
_PROBE_BYTES = 1 << 20


class QuotaReached(Exception):
    """The spool has reached one of its limits; the text says which."""


class DiskQuota:
    """A monitor of one spool's size and of the free space on its disk.

    :param folder: the spool.
    :param max_bytes: limit of the size of all segments; 0 for no limit. At most one group exceeds it.
    :param min_free_bytes: bytes of the file system to leave free, mainly for Spark on the same disk: without
        them Spark could not work, and so never free any space.
    """

    def __init__(self, folder: Path, *, max_bytes: int, min_free_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._unlooked = 0
        self._looked_at = float("-inf")
        self.used = 0
        self.lacks()

    def note(self, appended: int) -> None:
        """Count `appended` bytes.

        :raises QuotaReached: a limit is reached; the appended group was the last one for now.
        """
        self.used += appended
        self._unlooked += appended
        over = self._max_bytes and self.used >= self._max_bytes
        due = self._unlooked >= _LOOK_EVERY_BYTES or time.monotonic() - self._looked_at >= _LOOK_EVERY_S
        # Retention may have removed segments meanwhile, so the count is only an upper bound.
        if over or due:
            reason = self.lacks()
            if reason is not None:
                raise QuotaReached(reason)

    def lacks(self, *, margin: bool = False) -> str | None:
        """Look at the disk; return a line that says which limit is reached, else None.

        :param margin: stay a tenth away from the limits, as required before collecting resumes.
        """
        self._unlooked, self._looked_at = 0, time.monotonic()
        try:
            self.used = spool_bytes(self._folder)
            disk = os.statvfs(self._folder)
        except OSError as error:
            # The folder was removed under a running collector: messages written to its open files would be lost.
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
        """Write 1 MiB to the disk as a test; return a line with the error, or None if it worked."""
        path = self._folder / ".probe"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
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
    """Return the size of all segments of a spool, in bytes."""
    total = 0
    for segment in segment_numbers(folder):
        try:
            total += os.stat(segment_path(folder, segment)).st_size
        except FileNotFoundError:
            # Retention has removed it since the listing.
            continue
    return total
