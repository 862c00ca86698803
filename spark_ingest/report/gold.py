"""Reading the gold tables with delta-rs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ..errors import IngestError, UsageError
from ..tables.schemas import SCHEMAS


class Gold:
    """The gold tables below `tables`, each at its newest version.

    :ivar absent: names of tables that do not exist; they read as empty.
    :raises UsageError: there are none at all.
    """

    def __init__(self, tables: Path) -> None:
        self._folder = tables / "gold"
        names = [name.removeprefix("gold/") for name in SCHEMAS if name.startswith("gold/")]
        self._tables = {name: opened for name in names if (opened := self._open(name)) is not None}
        self.absent = [name for name in names if name not in self._tables]
        if self._tables:
            return
        if DeltaTable.is_deltatable(str(tables / "silver")):
            raise UsageError(
                f"{tables} has readings but no gold tables: umqtt tables rebuild --tables {tables} makes them"
            )
        raise UsageError(f"no gold tables in {self._folder}: give the --tables of umqtt ingest")

    def read(self, name: str) -> pa.Table:
        """The whole table with the columns of SCHEMAS; those that an older release did not write are null."""
        schema = SCHEMAS[f"gold/{name}"]
        if name not in self._tables:
            return schema.empty_table()
        try:
            found = self._tables[name].to_pyarrow_table()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._unreadable(name, error) from error
        columns = [
            found[field.name].cast(field.type) if field.name in found.column_names else pa.nulls(len(found), field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    def batches(self, name: str, columns: Sequence[str], wanted: pc.Expression) -> Iterator[pa.RecordBatch]:
        """Some columns of some rows, piece by piece: for the one table that may be larger than memory."""
        if name not in self._tables:
            return
        try:
            yield from self._tables[name].to_pyarrow_dataset().to_batches(columns=list(columns), filter=wanted)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._unreadable(name, error) from error

    def _open(self, name: str) -> DeltaTable | None:
        path = str(self._folder / name)
        try:
            return DeltaTable(path) if DeltaTable.is_deltatable(path) else None
        except (DeltaError, OSError) as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: Exception) -> IngestError:
        reason = str(error).splitlines()[0]
        return IngestError(
            f"cannot read {self._folder / name}: {reason}; umqtt tables rebuild makes the gold tables anew"
        )
