"""Makes copies of a store while the broker runs, checks them, and restores them.

No function here leaves an incomplete file at the requested name: a copy is made beside it, checked, synced and renamed.
"""

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import StoreError
from . import schema
from .lock import StoreLock

# Endings of the files that SQLite keeps beside a database: the log of commits that are not yet in it, and its index.
_COMPANIONS = ("-wal", "-shm")


class StoreInfo(NamedTuple):
    """The contents of a store, in numbers.

    version: of its tables. size: bytes on disk, including the log. queued: messages in queues, including those in
    flight. queued_bytes: their payload bytes.
    """

    version: int
    size: int
    sessions: int
    subscriptions: int
    queued: int
    queued_bytes: int
    retained: int
    wills: int


def info(path: str) -> StoreInfo:
    """Return what the store at `path` contains, also while a broker has it open. Raises StoreError."""
    with _reading(path) as database:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        counts = [
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("session", "subscription", "delivery", "retained")
        ]
        payload = "coalesce((SELECT length(m.payload) FROM message m WHERE m.number = message), length(payload))"
        wills = database.execute("SELECT count(*) FROM will").fetchone()[0]
        queued_bytes = database.execute(f"SELECT coalesce(sum({payload}), 0) FROM delivery").fetchone()[0]
    path = os.path.realpath(path)
    size = sum(os.path.getsize(path + end) for end in ("", *_COMPANIONS) if os.path.exists(path + end))
    return StoreInfo(version, size, counts[0], counts[1], counts[2], queued_bytes, counts[3], wills)


def backup(store_path: str, to: str) -> StoreInfo:
    """Copy the store at `store_path` to the file `to`, also while a broker has it open.

    The copy contains everything that was acknowledged before the call. An older backup at `to` is replaced; any other
    file there is an error. Returns what the copy contains. Raises StoreError; then `to` is unchanged.
    """
    if os.path.exists(to):
        if os.path.exists(store_path) and os.path.samefile(store_path, to):
            raise StoreError(f"{to} is the store itself — name another file")
        with _reading(to):
            pass  # a store or a backup: it may be replaced
    with _reading(store_path) as database, new_file(to) as partial:
        _copy(database, partial)
        return info(partial)


def restore(source: str, store_path: str) -> str | None:
    """Replace the store at `store_path` by the backup `source`.

    Returns the path at which the old store is kept, None if there was none. Raises StoreError, also while a broker has
    the store open and if `source` is not a complete backup; then the store is unchanged.
    """
    if os.path.islink(store_path):
        # Replace the file and not the link: SQLite keeps the log beside the file.
        store_path = os.path.realpath(store_path)
    held = StoreLock(store_path)
    try:
        with _reading(source) as database, new_file(store_path) as partial:
            if os.path.exists(store_path) and os.path.samefile(source, store_path):
                raise StoreError(f"{source} is the store itself — name the backup")
            _copy(database, partial)
            kept = keep_old(store_path, "replaced")
        return kept
    finally:
        held.close()


@contextlib.contextmanager
def _reading(path: str) -> Iterator[sqlite3.Connection]:
    """Open an existing store of this broker, for reading. Raises StoreError, also for SQLite's errors."""
    if os.path.isdir(path):
        raise StoreError(f"{path} is a folder — name a file in it")
    if not os.path.isfile(path):
        raise StoreError(f"there is no store {path} — name it with --store")
    try:
        schema.check_file(path)
        database = sqlite3.connect(f"{Path(os.path.abspath(path)).as_uri()}?mode=rw", uri=True, isolation_level=None)
        try:
            if not schema.check(database, path):
                raise StoreError(f"{path} is empty — name a store or a backup of one")
            yield database
        finally:
            database.close()
    except sqlite3.Error as error:
        raise StoreError(f"cannot read store {path} ({error}) — name a store or a backup of one") from error


@contextlib.contextmanager
def new_file(path: str) -> Iterator[str]:
    """Yield the name of a new file beside `path`. It replaces `path`, durably, when the context ends without an error.

    Raises StoreError.
    """
    partial = f"{path}.partial-{os.getpid()}"
    try:
        # Only the owner may read the messages.
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"cannot write {partial} ({error.strerror}) — name another place") from error
    try:
        yield partial
        _sync(partial)
        # SQLite would take the log of the replaced file for this one's.
        for end in _COMPANIONS:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + end)
        os.rename(partial, path)
        schema.sync_folder(path)
    except OSError as error:
        raise StoreError(f"cannot write {path} ({error.strerror}) — make room, or name another place") from error
    finally:
        for end in ("", "-journal", *_COMPANIONS):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial + end)


def _copy(database: sqlite3.Connection, to: str) -> None:
    """Copy a database as it is at one point in time, into one file without a log, and check the copy."""
    copy = sqlite3.connect(to, isolation_level=None)
    try:
        # In one step, so that the copy is consistent; meanwhile the broker continues to write to its log.
        database.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
        if schema.check(copy, to):
            # The copy must not be compared with the lock file of its store, which counts later commits (see lock).
            copy.execute("UPDATE broker SET run = x''")
        if damage := schema.first_damage(copy):
            raise StoreError(f"the copy {to} is damaged ({damage}) — the disk or the file it was made from is broken")
    finally:
        copy.close()


def keep_old(store_path: str, why: str) -> str | None:
    """Give the store and its log a second name that contains `why`, so that it is kept when the first is replaced.

    Returns that name, None if there is no store. A log without its store is kept too.
    """
    if not any(os.path.exists(store_path + end) for end in ("", *_COMPANIONS)):
        return None
    name = kept = f"{store_path}.{why}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while os.path.exists(kept):
        number += 1
        kept = f"{name}-{number}"
    for end in ("", *_COMPANIONS):
        if not os.path.exists(store_path + end):
            continue
        try:
            os.link(store_path + end, kept + end)
        except OSError:
            # A file system without hard links: make a copy, which takes longer.
            shutil.copy2(store_path + end, kept + end)
            _sync(kept + end)
    schema.sync_folder(kept)
    return kept


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
