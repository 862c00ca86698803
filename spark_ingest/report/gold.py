"""Reads the tables with delta-rs."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ..errors import IngestError, UsageError
from ..location import Location, is_table, open_table, reason
from ..tables.schemas import SCHEMAS, TIMESTAMP
from .timeline import US

_GOLD = ("devices", "windows", "boots", "gaps", "traffic", "alerts")
_BELOW_GOLD = ("silver", "duplicates", "quarantine")
WINDOW_COLUMNS = ["device_id", "window_start", "metric", "n", "sum"]


class Gold:
    """The gold tables in `tables` that the report shows, and the tables that Silver reads, each at its newest version.

    :ivar absent: names of the gold tables that do not exist; they are read as empty.
    :raises UsageError: there is no gold table at all.
    :raises IngestError: a table cannot be opened.
    """

    def __init__(self, tables: Location) -> None:
        self._folder = tables
        wanted = [*(f"gold/{name}" for name in _GOLD), *_BELOW_GOLD]
        self._tables = {name: opened for name in wanted if (opened := self._open(name)) is not None}
        self.absent = [name for name in _GOLD if f"gold/{name}" not in self._tables]
        if len(self.absent) < len(_GOLD):
            return
        if "silver" in self._tables:
            raise UsageError(
                f"{tables} has readings but no gold tables: umqtt tables rebuild --tables {tables} makes them"
            )
        raise UsageError(f"no gold tables in {tables / 'gold'}: give the --tables of umqtt ingest")

    def read(self, name: str) -> pa.Table:
        """Read a whole table with the columns of SCHEMAS; columns that an older release did not write are null.

        :raises IngestError: the table cannot be read.
        """
        table = f"gold/{name}"
        schema = SCHEMAS[table]
        if table not in self._tables:
            return schema.empty_table()
        try:
            found = self._tables[table].to_pyarrow_table()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._unreadable(table, error) from error
        columns = [
            found[field.name].cast(field.type) if field.name in found.column_names else pa.nulls(len(found), field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    def windows(self, start_s: int) -> Iterator[pa.RecordBatch]:
        """Yield WINDOW_COLUMNS of gold/windows from `start_s` (Unix seconds) on, in batches."""
        start = pa.scalar(start_s * US, pa.int64()).cast(TIMESTAMP)
        yield from self.scan("gold/windows", WINDOW_COLUMNS, pc.field("window_start") >= start)

    def scan(self, table: str, columns: Sequence[str], wanted: pc.Expression) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the `wanted` rows in batches, since a table may be larger than memory.

        :raises IngestError: the table cannot be read.
        """
        if table not in self._tables:
            return
        try:
            yield from self._tables[table].to_pyarrow_dataset().to_batches(columns=list(columns), filter=wanted)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._unreadable(table, error) from error

    def _open(self, name: str) -> DeltaTable | None:
        path = self._folder / name
        try:
            return open_table(path) if is_table(path) else None
        except (DeltaError, OSError) as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, table: str, error: Exception) -> IngestError:
        remedy = "if it is damaged, umqtt tables rebuild makes it anew"
        return IngestError(f"cannot read {self._folder / table}: {reason(error)}; {remedy}")
