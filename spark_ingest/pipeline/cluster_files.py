"""Data files of Delta tables: executors write them where the rows are, and the driver commits them once.

A file that was written but never committed (a killed executor, a repeated task, a driver that died in between) is in
no version of the table, so nobody reads it. ``umqtt tables vacuum`` removes such files; nothing here deletes one.
"""

import json
import os
import time
import uuid
from collections.abc import Sequence
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction

from ..durable import sync_data, sync_directory
from ..errors import UsageError
from ..location import Location, StorePath
from ..tables.delta import Delta

_LONGEST_BOUND = 256


class DataFile(TypedDict):
    """A durable Parquet file, described in types that JSON can represent.

    :ivar path: relative to the table.
    :ivar size: in bytes.
    :ivar partition: partition column to value.
    :ivar rows: number of rows.
    :ivar stats: Delta's statistics of the file, as JSON text.
    """

    path: str
    size: int
    partition: dict[str, str]
    rows: int
    stats: str


def write_files(folder: Location, rows: pa.Table, partition_by: str | None) -> list[DataFile]:
    """Write `rows` below the table's `folder`, one durable file for each value of `partition_by`; return the files.

    :param partition_by: a date column, which goes into the folder's name and not into the file.
    :raises OSError: a file cannot be written.
    """
    if not rows.num_rows:
        return []
    if partition_by is None:
        return [_write(folder, "", rows, {})]
    files: list[DataFile] = []
    dates = rows[partition_by].combine_chunks()
    for date in pc.call_function("unique", [dates]):
        part = rows.filter(pc.call_function("equal", [dates, date])).drop_columns([partition_by])
        value = date.as_py().isoformat()
        files.append(_write(folder, f"{partition_by}={value}/", part, {partition_by: value}))
    return files


def commit_files(
    table: Delta, schema: pa.Schema, partition_by: str | None, files: Sequence[DataFile], transaction: tuple[str, int]
) -> bool:
    """Add `files` to `table` in one commit, unless `transaction` (application id, micro-batch) is committed already.

    :returns: whether the files were added.
    :raises UsageError: the driver does not see one of the files as it was written.
    """
    if not files or table.has(*transaction):
        return False
    for file in files:
        path = table.path / file["path"]
        if _size(path) != file["size"]:
            raise UsageError(
                f"an executor has written {path} and the driver does not see it: "
                "--tables must be a path on a disk that all nodes share; nothing was committed to this table"
            )
    now_ms = time.time_ns() // 1_000_000
    actions: list[AddAction | RemoveAction] = [
        AddAction(f["path"], f["size"], f["partition"], now_ms, True, f["stats"]) for f in files
    ]
    with table.committing(*transaction) as (delta, properties):
        delta.create_write_transaction(
            actions,
            "append",
            schema,
            [partition_by] if partition_by else [],
            commit_properties=properties,
            post_commithook_properties=table.hooks(),
        )
    return True


def _size(path: Location) -> int | None:
    if isinstance(path, StorePath):
        return path.size()
    return path.stat().st_size if path.is_file() else None


def _write(folder: Location, subfolder: str, rows: pa.Table, partition: dict[str, str]) -> DataFile:
    # Every attempt has its own file name: a repeated task never touches the file of an earlier attempt.
    name = f"{subfolder}part-{uuid.uuid4()}.zstd.parquet"
    path = folder / name
    if isinstance(path, StorePath):
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", compression_level=1)
        path.write_bytes(memoryview(sink.getvalue()))
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, compression="zstd", compression_level=1)
        fd = os.open(path, os.O_RDONLY)
        try:
            sync_data(fd)
        finally:
            os.close(fd)
        sync_directory(path.parent)
    return {
        "path": name,
        "size": _size(path) or 0,
        "partition": partition,
        "rows": rows.num_rows,
        "stats": json.dumps(_statistics(rows)),
    }


def _statistics(rows: pa.Table) -> dict[str, object]:
    """Return the bounds of the columns as Delta's protocol writes them; they let a reader skip the file."""
    low: dict[str, object] = {}
    high: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for field in rows.schema:
        kind = field.type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_timestamp(kind)):
            continue
        column = rows[field.name]
        nulls[field.name] = column.null_count
        ends = pc.call_function("min_max", [column])
        first, last = _bound(ends["min"]), _bound(ends["max"])
        if first is not None and last is not None:
            low[field.name], high[field.name] = first, last
    return {"numRecords": rows.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _bound(value: pa.Scalar) -> object:
    if not value.is_valid:
        return None
    if pa.types.is_timestamp(value.type):
        return value.as_py().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    bound = value.as_py()
    # A bound may be left out but not shortened: a shortened maximum would hide the rows above it.
    return None if isinstance(bound, str) and len(bound) > _LONGEST_BOUND else bound
