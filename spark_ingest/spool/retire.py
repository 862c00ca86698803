"""Removal of a spool whose collector will not come back.

The offsets in Spark's checkpoints name the spool, and a missing spool counts as data loss. Therefore empty files stay
behind whose names record the positions up to which it was read: a query at one of them has lost nothing.
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from umqtt_cli.durable import sync_directory

from ..errors import SpoolInUse, UsageError
from .blocks import Position, retired_path, retired_places
from .view import SpoolView

_KEPT = (".retired", "lock")


def retire(view: SpoolView, read_to: Sequence[Position]) -> int:
    """Remove a spool that has been read to its end; return the number of removed bytes.

    If this is interrupted, call it again.

    :param read_to: the position up to which each query has read the spool; the caller has checked that it is the end.
    :raises SpoolInUse: its collector is running.
    :raises UsageError: there is no such spool, or it cannot be removed.
    """
    folder = view.folder
    try:
        with (folder / "lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SpoolInUse(f"the collector of the spool {folder} runs: stop it first") from None
            return _remove(folder, read_to)
    except FileNotFoundError:
        raise UsageError(f"there is no spool {folder}") from None
    except OSError as error:
        raise UsageError(f"cannot remove the spool {folder}: {error.strerror or error}") from error


def _remove(folder: Path, read_to: Sequence[Position]) -> int:
    for place in read_to:
        os.close(os.open(retired_path(folder, place), os.O_WRONLY | os.O_CREAT, 0o600))
    sync_directory(folder)
    if not retired_places(folder):
        raise UsageError(f"the spool {folder} has never been read")
    size = 0
    # The durable position is removed first: from then on, the spool is gone for readers.
    for path in sorted(folder.iterdir(), key=lambda path: path.name != "pos"):
        if not path.name.endswith(_KEPT):
            size += path.stat().st_size
            path.unlink()
    sync_directory(folder)
    return size
