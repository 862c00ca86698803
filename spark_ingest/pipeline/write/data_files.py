"""Data files of tables: tasks write them where the rows are, and the driver commits them once.

A file that was written but never committed (a killed executor, a repeated task, a driver that died in between) is in
no version of the table, so nobody reads it. ``umqtt tables vacuum`` removes such files; nothing here deletes one.
"""

import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from umqtt_cli.durable import sync_data

from ...durable import sync_directory
from ...location import Location, StorePath
from ...tables.table import DataFile

_LONGEST_BOUND = 256
# These grow from row to row, so their differences take a third less time and bytes than their values.
_AS_DIFFERENCES = frozenset(("position", "seq", "ts", "event_ts", "up_ms", "received_ts"))
# A dictionary for a column whose values do not repeat takes time and a third of the bytes of a file, for nothing.
_WITHOUT_DICTIONARY = _AS_DIFFERENCES | {"payload", "payload_crc"}


class FileWriter:
    """Writes the rows of one task into data files of a table: one file for each value of `partition_by`.

    Each call of :meth:`add` makes a row group, so the rows are never in memory together.

    :param folder: the table's folder.
    :param partition_by: a date column, which goes into the folder's name and not into the file; None: one file.
    :param prefix: the beginning of the files' names.
    """

    def __init__(self, folder: Location, partition_by: str | None, prefix: str = "part-") -> None:
        self._folder = folder
        self._partition_by = partition_by
        self._prefix = prefix
        self._open: dict[str | None, _OpenFile] = {}
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        """Append rows, which all have the same schema.

        :raises OSError: a file cannot be written.
        """
        for value, some in _by_date(rows, self._partition_by):
            if value not in self._open:
                subfolder = "" if value is None else f"{self._partition_by}={value}/"
                # Every attempt has its own file name: a repeated task never touches the file of an earlier attempt.
                name = f"{subfolder}{self._prefix}{uuid.uuid4()}.zstd.parquet"
                partition = {} if value is None or self._partition_by is None else {self._partition_by: value}
                self._open[value] = _OpenFile(self._folder, name, partition, some.schema)
            self._open[value].add(some)
            self.rows += some.num_rows

    def close(self) -> list[DataFile]:
        """Complete the files durably and return them.

        :raises OSError: a file cannot be written.
        """
        files = [file.close() for file in self._open.values()]
        self._open = {}
        return files


def write_files(folder: Location, rows: pa.Table, partition_by: str | None) -> list[DataFile]:
    """Write `rows` as :class:`FileWriter` does; return the files.

    :raises OSError: a file cannot be written.
    """
    writer = FileWriter(folder, partition_by)
    writer.add(rows)
    return writer.close()


def _by_date(rows: pa.Table, partition_by: str | None) -> Iterator[tuple[str | None, pa.Table]]:
    if not rows.num_rows:
        return
    if partition_by is None:
        yield None, rows
        return
    dates, rest = rows[partition_by], rows.drop_columns([partition_by])
    ends = pc.call_function("min_max", [dates])
    if ends["min"] == ends["max"]:
        yield ends["min"].as_py().isoformat(), rest
        return
    for date in pc.call_function("unique", [dates]):
        yield date.as_py().isoformat(), rest.filter(pc.call_function("equal", [dates, date]))


class _OpenFile:
    """A Parquet file that is being written, and the statistics of its rows."""

    def __init__(self, folder: Location, name: str, partition: dict[str, str], schema: pa.Schema) -> None:
        self._path = folder / name
        self._name = name
        self._partition = partition
        self._statistics = _Statistics(schema)
        self._file: Any = None
        if isinstance(self._path, StorePath):
            self._file = sink = pa.BufferOutputStream()
        else:
            if not self._path.parent.exists():
                self._path.parent.mkdir(parents=True, exist_ok=True)
                sync_directory(self._path.parent.parent)
            self._file = sink = self._path.open("wb")
        dictionary = [field.name for field in schema if field.name not in _WITHOUT_DICTIONARY]
        self._writer = pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=_with_inner_paths(schema, dictionary),
            column_encoding=dict.fromkeys(_AS_DIFFERENCES & {*schema.names}, "DELTA_BINARY_PACKED"),
        )

    def add(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self._statistics.add(rows)

    def close(self) -> DataFile:
        self._writer.close()
        if isinstance(self._path, StorePath):
            content = self._file.getvalue()
            self._path.write_bytes(memoryview(content))
            size = content.size
        else:
            self._file.flush()
            sync_data(self._file.fileno())
            size = os.fstat(self._file.fileno()).st_size
            self._file.close()
            sync_directory(self._path.parent)
        return {
            "path": self._name,
            "size": size,
            "partition": self._partition,
            "rows": self._statistics.rows,
            "stats": self._statistics.to_json(),
        }


def _with_inner_paths(schema: pa.Schema, names: list[str]) -> list[str]:
    """Return the Parquet columns of some Arrow columns: a map has one for its keys and one for its values."""
    paths: list[str] = []
    for name in names:
        if pa.types.is_map(schema.field(name).type):
            paths += [f"{name}.key_value.key", f"{name}.key_value.value"]
        else:
            paths.append(name)
    return paths


class _Statistics:
    """The bounds of a file's columns as Delta's protocol writes them; they let a reader skip the file."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self._nulls = {field.name: 0 for field in schema if _has_bounds(field.type)}
        self._ends: dict[str, tuple[Any, Any]] = {}

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for name in self._nulls:
            self._nulls[name] += rows[name].null_count
            ends = pc.call_function("min_max", [rows[name]])
            low, high = ends["min"].as_py(), ends["max"].as_py()
            if low is not None:
                first, last = self._ends.get(name, (low, high))
                self._ends[name] = min(low, first), max(high, last)

    def to_json(self) -> str:
        low = {name: _bound(ends[0]) for name, ends in self._ends.items()}
        high = {name: _bound(ends[1]) for name, ends in self._ends.items()}
        known = [name for name in low if low[name] is not None and high[name] is not None]
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: low[name] for name in known},
                "maxValues": {name: high[name] for name in known},
                "nullCount": self._nulls,
            }
        )


def _has_bounds(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_timestamp(kind)


def _bound(value: Any) -> object:
    if hasattr(value, "strftime"):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    # A bound may be left out but not shortened: a shortened maximum would hide the rows above it.
    return None if isinstance(value, str) and len(value) > _LONGEST_BOUND else value
