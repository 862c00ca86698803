"""Decide which pipeline may write the tables: the one whose number the tables have.

The checkpoint stores its number. A pipeline is refused if the tables have another number: then another pipeline has
written to them since, so they contain readings that the checkpoint does not know.

Each start of a pipeline claims its tables with a new number. A folder has a lock, so only one pipeline writes at a
time, and the number is in a file. An object store has no lock: there the number is committed to each table as the
version of the application ``umqtt/writer``, and again with each append. Delta itself refuses these appends once
another pipeline has claimed the table.

A new checkpoint may always claim the tables, because it reads them before it writes. A command that must not run
beside a pipeline claims the tables with the negative of the current number: a running pipeline stops, and may be
started again afterwards.
"""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from deltalake.exceptions import CommitFailedError

from ...durable import read_checked_json, replace_checked
from ...errors import FileDamaged, UsageError
from ...location import Location
from ...lock import FolderLock
from ...tables.delta import WRITER_ID, Delta, commit_claim
from ...tables.upkeep import existing

CLAIMED = ("bronze", "silver", "quarantine", "duplicates", "status", "logs")
"""The tables to which a pipeline appends."""

_FILE = "writers.json"
_IN_FOLDER = "umqtt.writer"
# No checkpoint has this number.
_NOBODY = 0


def claim(tables: Mapping[str, Delta], location: Location, checkpoint: Path) -> None:
    """Claim the tables for a pipeline that starts.

    The caller holds the lock of the checkpoint and, if `location` is a folder, the lock of that folder.

    :raises UsageError: another pipeline has written to the tables since this checkpoint's pipeline did.
    """
    path = checkpoint / "umqtt" / _FILE
    if isinstance(location, Path):
        found = _writers_in(location / _IN_FOLDER)
    else:
        found = {
            abs(held) for table in tables.values() if (held := table.delta.transaction_version(WRITER_ID)) is not None
        }
    mine: list[int] = []
    try:
        mine = read_checked_json(path)["writers"]
        is_new = False
    except FileNotFoundError:
        is_new = not (checkpoint / "metadata").exists()
    except (FileDamaged, KeyError):
        is_new = False
    if not is_new and not found <= set(mine):
        raise UsageError(
            f"another pipeline has written to the tables {location} since this one did: give a new --checkpoint; the "
            "spool is read again from its beginning, and what the tables have is skipped"
        )
    writer = 1 + secrets.randbits(62)
    # A pipeline killed between two tables leaves its number in some of them and its predecessor's in the others, so
    # both are stored until all tables are claimed.
    path.parent.mkdir(exist_ok=True)
    replace_checked(path, json.dumps({"writers": [*found, writer]}).encode())
    if isinstance(location, Path):
        replace_checked(location / _IN_FOLDER, json.dumps({"writer": writer}).encode())
    else:
        try:
            for table in tables.values():
                table.claim(writer)
        except CommitFailedError as error:
            raise UsageError(f"another pipeline is starting on the tables {location}: stop one of them") from error
    replace_checked(path, json.dumps({"writers": [writer]}).encode())


def _writers_in(path: Path) -> set[int]:
    """Return the number in a folder's file, as a set; empty if there is no file yet, {_NOBODY} if it is damaged."""
    try:
        return {read_checked_json(path)["writer"]}
    except FileNotFoundError:
        return set()
    except (FileDamaged, KeyError):
        return {_NOBODY}


def pipeline_lock(tables: Location) -> AbstractContextManager[None]:
    """Return a lock that keeps other pipelines out of a folder. On an object store, :func:`claim` does this."""
    return FolderLock(tables, "--tables", "a pipeline") if isinstance(tables, Path) else _nothing()


@contextmanager
def tables_at_rest(tables: Location, command: str) -> Iterator[None]:
    """Keep pipelines from writing while a command changes the tables.

    :param command: name of the command, for people.
    :raises UsageError: a pipeline holds the folder. On an object store, a running pipeline is stopped instead.
    """
    if isinstance(tables, Path):
        with FolderLock(tables, "--tables", command):
            yield
        return
    for _, table in existing(tables, CLAIMED):
        writer = table.transaction_version(WRITER_ID)
        if writer is not None and writer > 0:
            commit_claim(table, -writer)
    yield


@contextmanager
def _nothing() -> Iterator[None]:
    yield
