"""Who may write a folder: one pipeline, or one command that needs the pipeline to rest."""

import fcntl
import os
from pathlib import Path
from types import TracebackType

from .errors import UsageError


class FolderLock:
    """Held while a process writes `folder`; the kernel lets go of it when the process ends.

    Compaction and vacuum of tables need no lock: Delta settles them with a pipeline that goes on.

    :param option: of the command line, which names the folder: ``--tables``, ``--checkpoint``.
    :param who: what holds it, for people: ``a pipeline``, ``umqtt tables rebuild``.
    :raises UsageError: on entering, when another process holds it.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
