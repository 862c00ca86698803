"""Maintenance of Delta tables: list their contents, join small files, remove old rows and unused files."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.dataset as pa_dataset
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from ..durable import read_checked, replace_checked
from ..errors import FileDamaged, UsageError
from ..location import Location, StorePath, is_table, open_table, reason
from .delta import REMOVED, WRITER
from .schemas import PARTITIONED_BY, PLACE_COLUMNS, SCHEMAS
from .table import places

COMPACT_BYTES = 128 << 20
"""A compaction leaves files of at least this size alone."""
KEEP_HOURS = 24.0
"""A vacuum removes files that no version within this time uses."""
_HOUR_S = 3600.0


class Listed(NamedTuple):
    """The size of a table in its newest version.

    :ivar name: its folder below the tables.
    :ivar rows: number of rows.
    :ivar files: number of files.
    :ivar size: bytes of these files.
    :ivar dead: bytes of files that the newest version does not use; a vacuum removes them once they are old enough.
    :ivar version: the newest version.
    """

    name: str
    rows: int
    files: int
    size: int
    dead: int
    version: int


class Compacted(NamedTuple):
    """The result of compacting one table: its number of files before and after."""

    name: str
    files_before: int
    files_after: int


def existing(tables: Location, names: Iterable[str] = SCHEMAS) -> Iterator[tuple[str, DeltaTable]]:
    """Yield (folder, table) for each Delta table that exists, at its newest version.

    :param names: the folders to look at.
    :raises UsageError: there are no Delta tables, or one cannot be opened.
    """
    require_delta(tables)
    for name in names:
        path = tables / name
        try:
            if not is_table(path):
                continue
            table = open_table(path)
        except (DeltaError, OSError) as error:
            raise UsageError(f"cannot open the table {path}: {reason(error)}") from error
        yield name, table


def require_delta(tables: Location) -> None:
    """Check that `tables` contains Delta tables.

    :raises UsageError: it contains none, or cannot be read.
    """
    try:
        is_delta = any((tables / name / "_delta_log").is_dir() for name in SCHEMAS)
    except OSError as error:
        raise UsageError(f"cannot read the tables {tables}: {reason(error)}") from error
    if not is_delta:
        raise UsageError(f"there are no tables in {tables}: give the --tables folder of umqtt ingest")


def listed(tables: Location) -> list[Listed]:
    """Return the size of every table."""
    rows = []
    for name, table in existing(tables):
        actions = table.get_add_actions(flatten=True)
        sizes = pa.table(actions)["size_bytes"].to_pylist()
        dead = _data_bytes(tables / name) - sum(sizes)
        rows.append(Listed(name, table.count(), len(sizes), sum(sizes), max(0, dead), table.version()))
    return rows


def _data_bytes(table: Location) -> int:
    if isinstance(table, StorePath):
        files = table.files()
        return sum(size for name, size in files if name.endswith(".parquet") and not name.startswith("_delta_log/"))
    total = 0
    for folder, _, names in os.walk(table):
        for name in names if "_delta_log" not in folder else ():
            if name.endswith(".parquet"):
                # A pipeline's vacuum may remove the file meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(os.path.join(folder, name)).st_size
    return total


def compact(tables: Location, target_bytes: int = COMPACT_BYTES) -> list[Compacted]:
    """Join small files; rows, transactions and readers of older versions are unaffected. Safe while a pipeline runs.

    :raises UsageError: another process changed a table meanwhile in a way that conflicts with the compaction.
    """
    done = []
    for name, table in existing(tables):
        before = len(table.file_uris())
        try:
            table.optimize.compact(target_size=target_bytes, writer_properties=WRITER)
        except CommitFailedError:
            raise UsageError(f"{tables / name} was being rewritten by another process: run it again") from None
        done.append(Compacted(name, before, len(table.file_uris())))
    return done


def vacuum(tables: Location, keep_hours: float = KEEP_HOURS, *, dry_run: bool = False) -> dict[str, int]:
    """Remove files that no version of the last `keep_hours` uses; return the number of files by table.

    Readers of older versions fail afterwards, and so do executors of a cluster that have been writing for longer.

    :param dry_run: only count the files.
    """
    removed = {}
    for name, table in existing(tables):
        # vacuum() takes whole hours; round up so that no file is removed too early.
        hours = math.ceil(keep_hours)
        # full: also remove files that no commit ever named, which killed writers leave behind.
        gone = table.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
        removed[name] = len(gone)
    return removed


def vacuum_hourly(tables: Location, keep_hours: float) -> bool:
    """Call :func:`vacuum` unless a process has done so within the last hour; return whether it was called."""
    mark = tables / "umqtt.vacuumed"
    try:
        since_s = time.time() - float(bytes(read_checked(mark)))
    except (FileNotFoundError, FileDamaged, ValueError):
        since_s = math.inf
    if 0 <= since_s < _HOUR_S:
        return False
    vacuum(tables, keep_hours)
    replace_checked(mark, str(time.time()).encode())
    return True


def retain(tables: Location, days: int, now: datetime | None = None) -> dict[str, int]:
    """Remove rows received before the last `days` days (windows: those that started before); return rows by table.

    The other gold tables keep what they have counted. The files are removed by a vacuum once they are old enough.
    """
    oldest = (now or datetime.now(UTC)) - timedelta(days=days)
    removed = {}
    for name, table in existing(tables):
        column = {"gold/windows": "window_start", "gold/traffic": "minute"}.get(name, "received_ts")
        if column not in (field.name for field in table.schema().fields):
            continue
        # Remove whole days, the same in every table. Where days are partitions, this drops files and rewrites none.
        partition = PARTITIONED_BY.get(name)
        where = (
            f"{column} < '{oldest:%Y-%m-%dT00:00:00Z}'" if partition is None else f"{partition} < '{oldest:%Y-%m-%d}'"
        )
        properties = _removed_up_to(table, oldest.date()) if name == "bronze" else None
        removed[name] = deleted(table, where, properties)
    return removed


def deleted(table: DeltaTable, where: str, properties: CommitProperties | None = None) -> int:
    """Remove the rows for which `where` is true; return how many were removed."""
    # Delta does not count the rows of a partition that is removed as a whole.
    before = table.count()
    # table.delete() is not used: it rewrites files with string views, which Arrow cannot filter.
    empty = pa.schema(table.schema().to_arrow()).empty_table()
    write_deltalake(
        table, empty, mode="overwrite", predicate=where, writer_properties=WRITER, commit_properties=properties
    )
    return before - table.count()


def _removed_up_to(bronze: DeltaTable, day: date) -> CommitProperties:
    """Return properties for the commit that removes rows: up to which place of each spool rows are removed.

    A new checkpoint skips the messages up to there.
    """
    old = pa_dataset.field("received_date") < day
    rows = bronze.to_pyarrow_dataset().to_table(list(PLACE_COLUMNS), filter=old)
    ends = pa.table({"spool": rows["spool"], "place": places(rows)}).group_by("spool").aggregate([("place", "max")])
    up_to = {REMOVED + end["spool"]: end["place_max"] for end in ends.to_pylist()}
    marks = [Transaction(app, max(end, bronze.transaction_version(app) or 0)) for app, end in up_to.items()]
    return CommitProperties(app_transactions=marks)


class SmallFiles:
    """The compaction beside a running pipeline: joins the files of a table once there are many.

    :param most: number of new versions of a table after which its files are joined.
    :param report: called with one line for a person.
    """

    def __init__(self, tables: Location, report: Callable[[str], None], *, most: int = 300) -> None:
        self._tables = tables
        self._report = report
        self._most = most
        self._joined_at: dict[str, int] = {}

    def step(self) -> int:
        """Join the files of the first table that is due; return 1 if there was one, else 0."""
        for name in ("bronze", "silver", "quarantine", "duplicates", "status", "logs", "gold/windows"):
            path = self._tables / name
            newest = _newest_version(path, self._joined_at.get(name))
            if newest is None:
                continue
            if newest - self._joined_at.setdefault(name, newest - newest % self._most) < self._most:
                continue
            self._joined_at[name] = newest
            # Join windows of past days only: an update of a joined file of today would rewrite all of it.
            over = [(PARTITIONED_BY[name], "<", f"{datetime.now(UTC):%Y-%m-%d}")] if name == "gold/windows" else None
            try:
                # Join small files only, so that files of some megabytes are not rewritten again and again.
                open_table(path).optimize.compact(over, target_size=16 << 20, writer_properties=WRITER)
            except CommitFailedError as error:
                self._report(f"{path} was not compacted this time: {reason(error)}")
            return 1
        return 0


def _newest_version(path: Location, after: int | None) -> int | None:
    if not is_table(path):
        return None
    if after is None:
        try:
            return open_table(path).version()
        except DeltaError:
            return None
    version = after
    while (path / "_delta_log" / f"{version + 1:020d}.json").exists():
        version += 1
    return version
