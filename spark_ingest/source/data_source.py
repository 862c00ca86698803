"""``format("mqtt")``: MQTT messages from a collector's spool, streaming and batch; the other way: :mod:`sink`. ::

    from spark_ingest import MqttDataSource
    spark.dataSource.register(MqttDataSource)
    messages = spark.readStream.format("mqtt").option("path", "spool").load()

Columns: topic, payload, received_ts, qos, retain, dup, collector, spool, segment, position. (spool, segment,
position) identifies a PUBLISH as it was received; the same message may have been received twice (QoS 1).

The options, the offsets and what can go wrong: docs/spark-source.md. Two queries may read one spool only if neither
removes segments (retentionHours) that the other still needs.
"""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

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
from .options import Options
from .rows import SPARK_SCHEMA, read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .sink import MqttStreamWriter, MqttWriter

_REMOVE_EVERY_S = 10.0


class MqttDataSource(DataSource):
    """See the module. The constructor has no side effects: Spark builds and pickles it as it likes."""

    @classmethod
    def name(cls) -> str:
        return "mqtt"

    def schema(self) -> str:
        return SPARK_SCHEMA

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


class MqttPartition(InputPartition):
    """Byte ranges that one task reads, in order."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def _read(options: Options, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
    assert isinstance(partition, MqttPartition)
    for r in partition.ranges:
        view = options.spools.view(r.collector)
        yield from read_range(view, r.spool, r.segment, r.start, r.end, wanted=options.wanted)


def _cut(tree: SpoolTree, options: Options, start: Offset, end: Offset) -> list[tuple[Range, ...]]:
    return tree.cut(tree.ranges(start, end), options.min_partitions, max_rows=options.max_rows_of_partition)


class MqttReader(DataSourceReader):
    """Batch: everything between startingOffsets and endingOffsets."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        tree = self._options.tree()
        start = tree.starting(self._options.starting_offsets)
        end = tree.starting(self._options.ending_offsets or "latest", "endingOffsets")
        parts = _cut(tree, self._options, start, end)
        # Spark refuses a reader without partitions.
        return [MqttPartition(part) for part in parts] or [MqttPartition(())]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(self._options, partition)


class MqttStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming. One instance lives in a process of the JVM for as long as the query runs."""

    def __init__(self, options: Options) -> None:
        if options.ending_offsets is not None:
            raise UsageError("endingOffsets is for batch reads (spark.read); a stream has no end")
        if options.ending_ms is not None:
            raise UsageError("endingTimestamp is for batch reads (spark.read); a stream has no end")
        self._options = options
        self._target: Offset | None = None
        self._end: Offset | None = None
        self._triggered_at = time.monotonic()
        # Messages counted so far: how many lie between two offsets.
        self._counted: tuple[Offset, Offset, int] = {}, {}, 0
        self._removed_at = time.monotonic()

    def initialOffset(self) -> dict:
        tree = self._options.tree()
        start = tree.starting(self._options.starting_offsets)
        # What it names must be there: Spark keeps it in the checkpoint, and would stop at it every time.
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
            # `start` is where the newest committed micro-batch ended. An idle stream gets no commit() for it, and a
            # collector that waits for room would wait for ever.
            self._remove_before(start)
        tree = self._options.tree()
        target = tree.latest() if self._target is None else self._target
        if self._target is None and not self._is_due(tree, start, target):
            self._end = start
        elif isinstance(limit, ReadAllAvailable):
            self._end = tree.advance(start, target)
        else:
            # Spark passes one limit on; when both options are given, both hold.
            self._end = tree.advance(start, target, max_rows=self._options.max_rows, max_bytes=self._options.max_bytes)
        if self._end != start:
            self._triggered_at = time.monotonic()
        return self._end

    def _is_due(self, tree: SpoolTree, start: Offset, target: Offset) -> bool:
        """Whether there are minOffsetsPerTrigger messages, or maxTriggerDelay has passed since the last micro-batch."""
        wanted = self._options.min_rows
        if wanted is None or time.monotonic() - self._triggered_at >= self._options.longest_delay_s:
            return True
        since, counted_to, count = self._counted
        # Spark asks up to a hundred times a second: only what is new is counted.
        count = count + tree.messages(counted_to, target) if since == start else tree.messages(start, target)
        self._counted = start, target, count
        return count >= wanted

    def reportLatestOffset(self) -> dict:
        """What is durable now: `latestOffset` in the query's progress.

        Each place has ``lagBytes`` too: the bytes of spool between it and the end of the micro-batch just planned.
        """
        if self._end is None:
            return SpoolTree(self._options.spools).latest()
        return lag_behind(self._end, self._options.spools)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._options.tree().latest()

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        return [MqttPartition(part) for part in _cut(self._options.tree(), self._options, start, end)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(self._options, partition)

    def commit(self, end: dict) -> None:
        # Spark calls this for a micro-batch only once the next one is built: what `end` covers is in the
        # tables.
        self._remove_before(end)

    def stop(self) -> None:
        if isinstance(sys.exception(), (EOFError, OSError)):
            # Spark has closed the connection to this process, which would now tell Spark so, and die of that with the
            # traceback of a broken pipe on the user's terminal. An error of ours that Spark still hears is not lost.
            sys.excepthook = lambda *_error: None

    def _remove_before(self, place: dict) -> None:
        hours = self._options.retention_hours
        if hours is not None:
            self._removed_at = time.monotonic()
            self._options.tree().remove_before(place, read_for_s=hours * 3600)
