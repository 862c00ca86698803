"""Five-minute windows per device and metric: partial sums are merged into the table, and windows are never closed."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
from deltalake import CommitProperties, write_deltalake

from ..tables.delta import WRITER, Delta
from ..tables.schemas import TIMESTAMP, WINDOWS_SCHEMA
from .gold_state import exploded

APPLICATION_ID = "umqtt/gold"
WINDOW_US = 300_000_000
_HOUR_US = 3_600_000_000
_MOST_SPANS = 48

_KEYS = ["device_id", "window_start", "metric"]
_NAMES = {"n_sum": "n", "min_min": "min", "max_max": "max", "sum_sum": "sum", "last_last": "last"}
_NAMES |= {"last_ts_last": "last_ts"}


def windows_of(rows: pa.Table, placed_us: np.ndarray) -> pa.Table:
    """Return the windows of readings, in WINDOWS_SCHEMA.

    :param rows: device_id and metrics of readings.
    :param placed_us: when each reading was taken, Unix microseconds.
    """
    parent, names, values = exploded(rows["metrics"])
    event = placed_us[parent]
    start = event // WINDOW_US * WINDOW_US
    value = pa.array(values)
    table = {
        "device_id": rows["device_id"].take(pa.array(parent)),
        "window_start": _timestamps(start),
        "metric": names,
        "n": pa.array(np.ones(len(parent), dtype=np.int64)),
        "last_ts": _timestamps(event),
        **dict.fromkeys(("min", "max", "sum", "last"), value),
    }
    return merged(pa.table(table))


def merged(parts: pa.Table) -> pa.Table:
    """Merge windows of the same device, start and metric.

    The last value of a merged window is the newest one, and the largest of equally new ones.
    """
    order = pc.call_function("sort_indices", [parts], pc.SortOptions([("last_ts", "ascending"), ("last", "ascending")]))
    sums = [("n", "sum"), ("min", "min"), ("max", "max"), ("sum", "sum"), ("last", "last"), ("last_ts", "last")]
    one = parts.take(order).group_by(_KEYS, use_threads=False).aggregate(sums)
    one = one.rename_columns([_NAMES.get(name, name) for name in one.column_names])
    # The values are finite, but their sum may be beyond the doubles: then the nearest double stands for it.
    total = np.nan_to_num(one["sum"].to_numpy())
    mean = np.clip(total / one["n"].to_numpy(), one["min"].to_numpy(), one["max"].to_numpy())
    one = one.set_column(one.column_names.index("sum"), "sum", pa.array(total)).append_column("mean", pa.array(mean))
    one = one.append_column("window_date", one["window_start"].cast(pa.date32()))
    one = one.append_column("window_hour", pc.call_function("hour", [one["window_start"]]))
    return one.select(WINDOWS_SCHEMA.names).cast(WINDOWS_SCHEMA)


def merge_into(table: Delta, new: pa.Table, replaced: pa.Table, was: int, properties: CommitProperties) -> None:
    """Merge windows into the table in one commit, which may be empty.

    :param new: windows to be added to those of the same key.
    :param replaced: device_id and window_start of windows that `new` replaces completely.
    :param was: the serial that the table must have.
    :param properties: the commit's properties, with the serial that the table will have.
    :raises TablesTaken: the table has another serial.
    """
    starts = _distinct([new["window_start"], replaced["window_start"]])
    if not len(starts):
        delta = table.upon(APPLICATION_ID, was)
        partitions = delta.metadata().partition_columns
        delta.create_write_transaction([], "append", delta.schema(), partitions, commit_properties=properties)
        return
    # A commit rewrites the files that it changes. A file holds at most one partition: an hour.
    for width in (WINDOW_US, _HOUR_US, 24 * _HOUR_US):
        begins = np.unique(starts // width) * width
        if len(begins) <= _MOST_SPANS:
            break
    spans = _spans(begins, width)
    field = pa_dataset.field("window_start")
    where = None
    for begin, end in spans:
        span = (field >= _scalar(begin)) & (field < _scalar(end))
        where = span if where is None else where | span
    held = table.scan(WINDOWS_SCHEMA.names, where).cast(WINDOWS_SCHEMA)
    if replaced.num_rows and held.num_rows:
        held = held.join(replaced, keys=["device_id", "window_start"], join_type="left anti")
    rows = merged(pa.concat_tables([held.select(WINDOWS_SCHEMA.names), new])) if held.num_rows else new
    predicate = " OR ".join(
        f"(window_start >= '{_text(begin)}' AND window_start < '{_text(end)}')" for begin, end in spans
    )
    delta = table.upon(APPLICATION_ID, was)
    write_deltalake(
        delta, rows, mode="overwrite", predicate=predicate, writer_properties=WRITER, commit_properties=properties
    )


def _distinct(columns: Iterable[pa.ChunkedArray]) -> np.ndarray:
    parts = [column.cast(pa.int64()).to_numpy() for column in columns]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)


def _spans(begins: np.ndarray, width: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for begin in begins.tolist():
        if spans and spans[-1][1] == begin:
            spans[-1] = (spans[-1][0], begin + width)
        else:
            spans.append((begin, begin + width))
    return spans


def _timestamps(us: np.ndarray) -> pa.Array:
    return pa.array(us, pa.int64()).cast(TIMESTAMP)


def _scalar(us: int) -> pa.Scalar:
    return pa.scalar(us, pa.int64()).cast(TIMESTAMP)


def _text(us: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).strftime("%Y-%m-%dT%H:%M:%SZ")
