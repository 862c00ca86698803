"""Writes files so that they survive a power cut."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def _choose_sync() -> Callable[[int], None]:
    # macOS has no fdatasync, and its fsync leaves the bytes in the drive's cache; F_FULLFSYNC does not.
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:

        def sync_through_drive_cache(fd: int) -> None:
            fcntl.fcntl(fd, full_sync)

        return sync_through_drive_cache
    return os.fdatasync


sync_data: Callable[[int], None] = _choose_sync()
"""``sync_data(fd)``: returns when the file's bytes and length are on the disk; raises OSError."""


def sync_directory(folder: Path) -> None:
    """Make creations, renames and removals in `folder` durable; raises OSError."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data` to a file descriptor; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_file(path: Path, data: bytes | memoryview, *, durable: bool = True, mode: int | None = None) -> None:
    """Write `data` to `path` atomically: a reader finds the old or the new content, also after a crash.

    :param durable: whether the new content must survive a power cut, as state must; False for files that can be made
        again, such as status files.
    :param mode: the permissions of a file, whatever the umask; None: those that the umask leaves of 0644.
    :raises OSError: it cannot be written; the old content stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # Never through a link that somebody else has put there.
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644 if mode is None else 0o600)
    try:
        try:
            if mode is not None:
                os.fchmod(fd, mode)
            write_all(fd, data)
            if durable:
                sync_data(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)
