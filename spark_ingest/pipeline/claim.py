"""Who may write tables: the pipeline whose number they have.

The checkpoint remembers its number, and is refused when the tables have another one: somebody else has written to them
since, and which readings they have is not what the checkpoint knows.

Each start of a pipeline claims its tables. A folder has a lock, so one pipeline writes at a time, and the number is in
a file. An object store has none: a commit to each of them has a new number as the version of the application
``umqtt/writer``, and so has each of its appends: Delta itself refuses them once another has claimed the table.

A new checkpoint, which reads the tables before it writes, takes over. A command that needs the pipeline to rest claims
the tables with the same number, negative: a pipeline that runs is stopped, and may be started again afterwards.
"""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from deltalake.exceptions import CommitFailedError

from ..durable import read_checked_json, replace_checked
from ..errors import FileDamaged, UsageError
from ..location import Location
from ..lock import FolderLock
from ..tables.delta import WRITER_ID, Delta, commit_claim
from ..tables.table import Table
from ..tables.upkeep import existing

CLAIMED = ("bronze", "silver", "quarantine", "duplicates", "status", "logs")
"""The tables that are appended to."""

_FILE = "writers.json"
_IN_FOLDER = "umqtt.writer"
# No checkpoint has this number.
_NOBODY = 0


def claim(tables: Mapping[str, Table], location: Location, checkpoint: Path) -> None:
    """Claim the tables for a pipeline that starts; the caller holds the checkpoint's lock, and that of a folder.

    :raises UsageError: another pipeline has written to them since this checkpoint's did.
    """
    path = checkpoint / "umqtt" / _FILE
    deltas = [table for table in tables.values() if isinstance(table, Delta)]
    if isinstance(location, Path):
        found = _writers_in(location / _IN_FOLDER)
    else:
        found = {abs(held) for table in deltas if (held := table.delta.transaction_version(WRITER_ID)) is not None}
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
    # Killed between two tables, it finds itself in some of them, and whom it takes over from in the others.
    path.parent.mkdir(exist_ok=True)
    replace_checked(path, json.dumps({"writers": [*found, writer]}).encode())
    if isinstance(location, Path):
        replace_checked(location / _IN_FOLDER, json.dumps({"writer": writer}).encode())
    else:
        try:
            for table in deltas:
                table.claim(writer)
        except CommitFailedError as error:
            raise UsageError(f"another pipeline is starting on the tables {location}: stop one of them") from error
    replace_checked(path, json.dumps({"writers": [writer]}).encode())


def _writers_in(path: Path) -> set[int]:
    """The number that a folder has; none where no pipeline of this release has written."""
    try:
        return {read_checked_json(path)["writer"]}
    except FileNotFoundError:
        return set()
    except (FileDamaged, KeyError):
        return {_NOBODY}


def pipeline_lock(tables: Location) -> AbstractContextManager[None]:
    """Keep other pipelines out of a folder while this one runs. On an object store :func:`claim` does."""
    return FolderLock(tables, "--tables", "a pipeline") if isinstance(tables, Path) else _nothing()


@contextmanager
def tables_at_rest(tables: Location, command: str) -> Iterator[None]:
    """Let no pipeline write while a command changes the tables.

    :param command: for people.
    :raises UsageError: a pipeline holds the folder. On an object store a pipeline that runs stops instead.
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
