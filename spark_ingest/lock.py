"""The lock of a folder: only one pipeline, or one command that needs the pipeline stopped, may write it."""

import fcntl
import os
from pathlib import Path

from .errors import UsageError


class FolderLock:
    """A context manager that locks `folder` for writing; the kernel releases the lock when the process ends.

    Compaction and vacuum of tables need no lock, because Delta resolves their conflicts with a running pipeline.

    :param option: the command-line option that names the folder: ``--tables``, ``--checkpoint``.
    :param who: a description of the holder: ``a pipeline``, ``umqtt tables rebuild``.
    :raises UsageError: on entering, if another process holds the lock, or the folder cannot be written.
    """

    def __init__(self, folder: Path, option: str, who: str) -> None:
        self._folder = folder
        self._option = option
        self._who = who

    def __enter__(self) -> None:
        try:
            self._fd = os.open(self._folder / "umqtt.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            line = f"cannot write to {self._folder}: {error.strerror}; give another {self._option}"
            raise UsageError(line) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 200, 0).decode(errors="replace") or "another process"
            os.close(self._fd)
            raise UsageError(f"{self._option} {self._folder} is in use by {holder}: stop it first") from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{self._who} (process {os.getpid()})".encode(), 0)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
