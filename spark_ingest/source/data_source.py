"""The data source ``format("mqtt")``: reads messages from collectors' spools; :mod:`sink` publishes to a broker. ::

    from spark_ingest import MqttDataSource
    spark.dataSource.register(MqttDataSource)
    messages = spark.readStream.format("mqtt").option("path", "spool").load()

Columns: topic, payload, received_ts, qos, retain, dup, collector, spool, segment, position; with includeHeaders also
headers and properties. (spool, segment, position) identifies one received PUBLISH; the same message may have been
received twice (QoS 1).

docs/spark-source.md documents the options, the offsets and the errors. Two queries may read one spool only if neither
removes segments (retentionHours) that the other still needs.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..errors import UsageError
from .offsets import Offset, Range, SpoolTree, lag_behind
from .options import Options, flag
from .rows import HEADERS_SPARK_SCHEMA, SPARK_SCHEMA, read_range

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .sink import MqttStreamWriter, MqttWriter

_REMOVE_EVERY_S = 10.0


class MqttDataSource(DataSource):
    """The data source; see the module. Its constructor has no side effects, as Spark builds and pickles it freely."""

    @classmethod
    def name(cls) -> str:
        # Spark asks for it when the source is registered, before it notes which Python runs the source.
        _run_with_this_python()
        return "mqtt"

    def schema(self) -> str:
        # All options are checked by the reader; a writer has others.
        given = {name.lower(): value for name, value in self.options.items()}
        has_headers = flag(given, "includeHeaders", default=False)
        return f"{SPARK_SCHEMA}, {HEADERS_SPARK_SCHEMA}" if has_headers else SPARK_SCHEMA

    def reader(self, schema: "StructType") -> "MqttReader":
        return MqttReader(Options(self.options))

    def streamReader(self, schema: "StructType") -> "MqttStreamReader":
        return MqttStreamReader(Options(self.options))

    def writer(self, schema: "StructType", overwrite: bool) -> "MqttWriter":
        if overwrite:
            raise UsageError("format mqtt cannot overwrite what was published: write with mode append")
        from .sink import MqttWriter, SinkOptions

        return MqttWriter(SinkOptions(self.options, schema))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "MqttStreamWriter":
        from .sink import MqttStreamWriter, SinkOptions

        return MqttStreamWriter(SinkOptions(self.options, schema))


def _run_with_this_python() -> None:
    """Let a local Spark run its workers with this interpreter, which has this package.

    By default they take ``python3`` from PATH, which is another one where no environment is activated. A choice of the
    user's is left alone, and so is a cluster, where this interpreter may have another path.
    """
    session = None if "PYSPARK_PYTHON" in os.environ else SparkSession.getActiveSession()
    if session is not None:
        context = session.sparkContext
        if str(context.master).startswith("local") and context.pythonExec == "python3":
            context.pythonExec = sys.executable


class RangesDataSource(MqttDataSource):
    """The pipeline's source: its rows are ranges of the spools, in RANGE_COLUMNS, which tasks then read themselves.

    So payloads pass from Python to Java at no time. It has the options, offsets and limits of ``format("mqtt")``.
    """

    @classmethod
    def name(cls) -> str:
        return "mqtt_ranges"

    def schema(self) -> str:
        return RANGE_COLUMNS

    def streamReader(self, schema: "StructType") -> "RangesStreamReader":
        return RangesStreamReader(Options(self.options))


RANGE_COLUMNS = "collector string, spool string, segment bigint, start bigint, end bigint, parts int"
"""`parts`: how many parts each bucket of readings is divided into, so that one fits into the memory of a task; 0 if the
micro-batch has this partition alone."""
_RANGES_SCHEMA = pa.schema(
    [
        ("collector", pa.string()),
        ("spool", pa.string()),
        ("segment", pa.int64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("parts", pa.int32()),
    ]
)
# A micro-batch up to this size is one partition: a shuffle would take longer than the work on it.
_ONE_TASK_BYTES = 2 << 20
_RANGES_BYTES = 32 << 20


class MqttPartition(InputPartition):
    """A partition: the byte ranges that one task reads, in order."""

    def __init__(self, ranges: tuple[Range, ...], parts: int = 1) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.parts = parts


def _read(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, MqttPartition)
    return read_ranges(options, partition.ranges)


def read_ranges(options: Options, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
    """Yield the messages in byte ranges of the spools as record batches, in the order of `ranges`.

    :raises DataLoss, SpoolDamaged: as :func:`read_range`.
    """
    for r in ranges:
        view = options.spools.view(r.collector)
        wanted, headers = options.wanted, options.include_headers
        yield from read_range(view, r.spool, r.segment, r.start, r.end, wanted=wanted, headers=headers)


def messages_in(options: Options, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the messages in ranges, as record batches.

    :param rows: RANGE_COLUMNS.
    :raises DataLoss, SpoolDamaged: as :func:`read_range`.
    """
    for batch in rows:
        places = batch.select([field.name for field in fields(Range)])
        yield from read_ranges(options, (Range(**row) for row in places.to_pylist()))


def _cut(tree: SpoolTree, options: Options, start: Offset, end: Offset) -> list[tuple[Range, ...]]:
    return tree.cut(tree.ranges(start, end), options.min_partitions, max_rows=options.max_rows_of_partition)


class MqttReader(DataSourceReader):
    """The batch reader: reads everything between startingOffsets and endingOffsets."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        tree = self._options.tree()
        start = tree.starting(self._options.starting_offsets)
        end = tree.starting(self._options.ending_offsets or "latest", "endingOffsets")
        parts = _cut(tree, self._options, start, end)
        # Spark rejects a reader without partitions.
        return [MqttPartition(part) for part in parts] or [MqttPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class MqttStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming reader. One instance lives as long as the query, in a Python process that the JVM starts."""

    def __init__(self, options: Options) -> None:
        if options.ending_offsets is not None:
            raise UsageError("endingOffsets is for batch reads (spark.read); a stream has no end")
        if options.ending_ms is not None:
            raise UsageError("endingTimestamp is for batch reads (spark.read); a stream has no end")
        self._options = options
        self._target: Offset | None = None
        self._end: Offset | None = None
        self._triggered_at = time.monotonic()
        # Start offset, end offset, and the number of messages between them.
        self._counted: tuple[Offset, Offset, int] = {}, {}, 0
        self._removed_at = time.monotonic()

    def initialOffset(self) -> dict:
        tree = self._options.tree()
        start = tree.starting(self._options.starting_offsets)
        # Check that the offset exists: Spark stores it in the checkpoint, and would fail with it at every start.
        tree.ranges(start, start)
        return start

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        if time.monotonic() - self._removed_at > _REMOVE_EVERY_S:
            # `start` is the end of the newest committed micro-batch. Spark does not call commit() for it while the
            # stream is idle, so without this a collector that waits for room would wait for ever.
            self._remove_before(start)
        tree = self._options.tree()
        target = tree.latest() if self._target is None else self._target
        if self._target is None and not self._is_due(tree, start, target):
            self._end = start
        elif isinstance(limit, ReadAllAvailable):
            self._end = tree.advance(start, target)
        else:
            # Spark passes only one limit; if both options are given, both apply.
            self._end = tree.advance(start, target, max_rows=self._options.max_rows, max_bytes=self._options.max_bytes)
        if self._end != start:
            self._triggered_at = time.monotonic()
        return self._end

    def _is_due(self, tree: SpoolTree, start: Offset, target: Offset) -> bool:
        """Return whether minOffsetsPerTrigger messages wait, or maxTriggerDelay has passed since the last batch."""
        wanted = self._options.min_rows
        if wanted is None or time.monotonic() - self._triggered_at >= self._options.longest_delay_s:
            return True
        since, counted_to, count = self._counted
        # Spark asks up to a hundred times a second, so only new messages are counted.
        count = count + tree.messages(counted_to, target) if since == start else tree.messages(start, target)
        self._counted = start, target, count
        return count >= wanted

    def reportLatestOffset(self) -> dict:
        """Return the durable positions, which Spark shows as `latestOffset` in the query's progress.

        Once a micro-batch is planned, each position also has ``lagBytes``: the number of bytes of its spool between the
        end of that micro-batch and the position.
        """
        if self._end is None:
            return SpoolTree(self._options.spools).latest()
        return lag_behind(self._end, self._options.spools)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._options.tree().latest()

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        return [MqttPartition(part) for part in _cut(self._options.tree(), self._options, start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def commit(self, end: dict) -> None:
        # Spark calls this for a micro-batch only when it builds the next one, so everything before `end` is in the
        # tables.
        self._remove_before(end)

    def stop(self) -> None:
        if isinstance(sys.exception(), (EOFError, OSError)):
            # Spark has closed the connection to this process. Reporting that to Spark would fail, and print the
            # traceback of a broken pipe on the user's terminal. Errors that Spark can still receive are not hidden.
            sys.excepthook = lambda *_error: None

    def _remove_before(self, place: dict) -> None:
        hours = self._options.retention_hours
        if hours is not None:
            self._removed_at = time.monotonic()
            self._options.tree().remove_before(place, read_for_s=hours * 3600)


class RangesStreamReader(MqttStreamReader):
    """The streaming reader of :class:`RangesDataSource`."""

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        tree = self._options.tree()
        ranges = tree.ranges(start, end)
        if sum(r.end - r.start for r in ranges) <= _ONE_TASK_BYTES:
            # Also a micro-batch without messages has a task, which carries the sets of readings seen on.
            return [MqttPartition(tuple(ranges), parts=0)]
        cut = tree.cut(ranges, self._options.min_partitions, partition_bytes=_RANGES_BYTES)
        # A part of a bucket fits into the memory of a task, however large the micro-batch.
        parts = max(1, len(cut) // (self._options.min_partitions or 1))
        return [MqttPartition(ranges, parts) for ranges in cut]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MqttPartition)
        rows = [{**asdict(r), "parts": partition.parts} for r in partition.ranges]
        yield pa.RecordBatch.from_pylist(rows, schema=_RANGES_SCHEMA)
