"""``format("mqtt")``: MQTT messages from a collector's spool, as a streaming and a batch source. ::

    from spark_ingest.source import MqttDataSource
    spark.dataSource.register(MqttDataSource)
    messages = spark.readStream.format("mqtt").option("path", "spool").load()

Columns: topic, payload, received_ts, qos, retain, dup, collector, spool, segment, position. (spool, segment,
position) identifies a PUBLISH as it was received; the same message may have been received twice (QoS 1).

====================  ========================================================================================
option                meaning (names and defaults as in Spark's Kafka source, where it has them)
====================  ========================================================================================
path                  the folder given to the collectors as ``--spool``; required
startingOffsets       earliest (default: what lies in a spool was acknowledged and nobody else has it),
latest, or an offset as JSON; used only when a query starts without a checkpoint endingOffsets         batch
only: latest (default) or an offset as JSON maxOffsetsPerTrigger  messages a micro-batch, kept to the block;
default no limit maxBytesPerTrigger    bytes a micro-batch, likewise minPartitions         cut a micro-batch
into at least so many partitions failOnDataLoss        true (default): stop when messages are gone that an
offset still names; false: go on retentionHours        remove segments that the query has committed and that
are older; default: keep all
====================  ========================================================================================

Two queries may read one spool only if neither removes segments (retentionHours) that the other still needs.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from .errors import UsageError
from .offsets import Offset, Range, SpoolTree, cut
from .rows import SPARK_SCHEMA, read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_OPTIONS = (
    "path",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "retentionHours",
)


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


class Options:
    """The options above, checked.

    :raises UsageError: an unknown option, or a value that does not fit.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {key.lower(): value for key, value in options.items()}
        unknown = set(given) - {name.lower() for name in _OPTIONS}
        if unknown:
            raise UsageError(f"format mqtt has no option {', '.join(sorted(unknown))}; it has {', '.join(_OPTIONS)}")
        if not given.get("path"):
            raise UsageError("format mqtt needs option path: the folder given to the collectors as --spool")
        self.path = Path(given["path"])
        self.starting_offsets = given.get("startingoffsets", "earliest")
        self.ending_offsets = given.get("endingoffsets", "latest")
        self.max_rows = _positive(given, "maxOffsetsPerTrigger")
        self.max_bytes = _positive(given, "maxBytesPerTrigger")
        self.min_partitions = _positive(given, "minPartitions")
        loss = given.get("failondataloss", "true").lower()
        if loss not in ("true", "false"):
            raise UsageError(f"failOnDataLoss must be true or false, not {loss}")
        self.fail_on_data_loss = loss == "true"
        self.retention_hours = _retention(given)

    def tree(self) -> SpoolTree:
        """The spools below `path`."""
        return SpoolTree(self.path, fail_on_data_loss=self.fail_on_data_loss)


def _positive(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name.lower())
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"{name} must be a whole number from 1, not {value}")
    return int(value)


def _retention(given: Mapping[str, str]) -> float | None:
    value = given.get("retentionhours")
    try:
        hours = None if value is None else float(value)
    except ValueError:
        hours = -1.0
    if hours is not None and not hours >= 0:
        raise UsageError(f"retentionHours must be a number from 0, not {value}")
    return hours


class MqttPartition(InputPartition):
    """Byte ranges that one task reads, in order."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def _read(partition: InputPartition) -> Iterator["pa.RecordBatch"]:
    assert isinstance(partition, MqttPartition)
    for r in partition.ranges:
        yield from read_range(Path(r.folder), r.collector, r.spool, r.segment, r.start, r.end)


class MqttReader(DataSourceReader):
    """Batch: everything between startingOffsets and endingOffsets."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        tree = self._options.tree()
        start = tree.starting(self._options.starting_offsets)
        end = tree.starting(self._options.ending_offsets)
        parts = cut(tree.ranges(start, end), self._options.min_partitions)
        # Spark refuses a reader without partitions.
        return [MqttPartition(part) for part in parts] or [MqttPartition(())]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition)


class MqttStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming. One instance lives in a process of the JVM for as long as the query runs."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._target: Offset | None = None

    def initialOffset(self) -> dict:
        return self._options.tree().starting(self._options.starting_offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        tree = self._options.tree()
        target = tree.latest() if self._target is None else self._target
        if isinstance(limit, ReadAllAvailable):
            return tree.advance(start, target)
        # Spark passes one limit on; when both options are given, both hold.
        return tree.advance(start, target, max_rows=self._options.max_rows, max_bytes=self._options.max_bytes)

    def reportLatestOffset(self) -> dict:
        return self._options.tree().latest()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._options.tree().latest()

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        ranges = self._options.tree().ranges(start, end)
        return [MqttPartition(part) for part in cut(ranges, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition)

    def commit(self, end: dict) -> None:
        # Spark calls this for a micro-batch only once the next one is built: what `end` covers is in the
        # tables.
        hours = self._options.retention_hours
        if hours is not None:
            self._options.tree().remove_before(end, older_than=time.time() - hours * 3600)
