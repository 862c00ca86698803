"""Makes copies of a store while the broker runs, checks them, and restores them.

Nothing here ever leaves half a file at the name asked for: a copy is made beside it, checked, synced and renamed.
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

# What SQLite keeps beside a database: the log of what is committed but not yet in the file, and its index.
_COMPANIONS = ("-wal", "-shm")


class StoreInfo(NamedTuple):
    """What a store holds. `size`: bytes on disk, with its log. `queued_bytes`: payload bytes of the queued messages."""

    version: int
    size: int
    sessions: int
    subscriptions: int
    queued: int
    queued_bytes: int
    retained: int
    wills: int


def info(path: str) -> StoreInfo:
    """Say what the store at `path` holds, also while a broker has it open. Raises StoreError."""
    with _reading(path) as database:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        counts = [
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("session", "subscription", "delivery", "retained")
        ]
        payload, wills = "length(payload)", 0
        if version >= 2:
            payload = "coalesce((SELECT length(m.payload) FROM message m WHERE m.number = message), length(payload))"
            wills = database.execute("SELECT count(*) FROM will").fetchone()[0]
        queued_bytes = database.execute(f"SELECT coalesce(sum({payload}), 0) FROM delivery").fetchone()[0]
    path = os.path.realpath(path)
    size = sum(os.path.getsize(path + end) for end in ("", *_COMPANIONS) if os.path.exists(path + end))
    return StoreInfo(version, size, counts[0], counts[1], counts[2], queued_bytes, counts[3], wills)


def backup(store_path: str, to: str) -> StoreInfo:
    """Copy the store at `store_path` to the file `to`, also while a broker has it open.

    The copy holds everything that was acknowledged before this was called. An older backup at `to` is replaced, any
    other file refused. Returns what the copy holds. Raises StoreError; then `to` is what it was before.
    """
    with new_copy(store_path, to) as partial:
        return info(partial)


@contextlib.contextmanager
def new_copy(store_path: str, to: str) -> Iterator[str]:
    """Yield the name of a checked copy of the store, which takes the name `to` if all goes well. See backup()."""
    if os.path.exists(to):
        if os.path.exists(store_path) and os.path.samefile(store_path, to):
            raise StoreError(f"{to} is the store itself — name another file")
        with _reading(to):
            pass  # ours: it may be replaced
    with _reading(store_path) as database, new_file(to) as partial:
        _copy(database, partial)
        yield partial


def restore(source: str, store_path: str) -> str | None:
    """Put the backup `source` in the place of the store at `store_path`.

    Returns where the old store is kept, None if there was none. Refuses while a broker has the store open, and
    anything that is not a whole backup. Raises StoreError; then the store is what it was before.
    """
    if os.path.islink(store_path):
        # The file itself is replaced: SQLite keeps the log beside it and not beside a link.
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
    """Open a store that must exist and be ours. SQLite's errors become StoreError."""
    if os.path.isdir(path):
        raise StoreError(f"{path} is a folder — name a file in it")
    if not os.path.isfile(path):
        raise StoreError(f"there is no store {path} — name it with --store")
    try:
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
    """Yield the name of a new file beside `path` that takes its place, durably, if all goes well."""
    partial = f"{path}.partial-{os.getpid()}"
    try:
        # Only the owner may read the messages.
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"cannot write {partial} ({error.strerror}) — name another place") from error
    try:
        yield partial
        _sync(partial)
        # The log of an older file would be taken for this one's.
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
    """Copy a database as it is at one moment, into one file without companions, and check the copy."""
    copy = sqlite3.connect(to, isolation_level=None)
    try:
        # In one step: one moment's state, however busy the broker is; it goes on writing to its log meanwhile.
        database.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
        if schema.check(copy, to) >= schema.COUNTS_COMMITS:
            # The copy is behind the lock file of its store as soon as that goes on; it is put back all the same.
            copy.execute("UPDATE broker SET run = x''")
        if damage := schema.first_damage(copy):
            raise StoreError(f"the copy {to} is damaged ({damage}) — the disk or the file it was made from is broken")
    finally:
        copy.close()


def keep_old(store_path: str, why: str) -> str | None:
    """Give the old store and its log a second name with `why` in it, so that it survives. Returns that name."""
    if not os.path.exists(store_path):
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
            # A file system without hard links: a copy takes longer, but is as good.
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
