"""The cases of the ingestion's bench that need Spark but no broker: reading the spool, a backfill."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from bench_rows import Row
from ingest_lab import Lab
from ingest_load import packets, readings
from ingest_plan import (
    BACKFILL,
    CEILING,
    READ,
    SPARK_STREAM,
    Scale,
    row,
)
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_ingest.pipeline.run.session import began_too_slowly
from spark_ingest.pipeline.write.batch import BatchWriter
from spark_ingest.pipeline.write.stream import MicroBatches
from spark_ingest.source.rows import ARROW_SCHEMA, SPARK_SCHEMA
from spark_ingest.spool.writer import Spool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_DEVICES = 1000
_PARTITIONS = 4
_GROUP = 2000
_BATCH_ROWS = 20_000
_BUCKETS = 2
_RECORD = "v INT, id STRING, boot STRING, seq BIGINT, ts BIGINT, up BIGINT, m MAP<STRING, DOUBLE>"

Measure = Callable[[], float]


def in_turn(contenders: Mapping[str, Measure], repetitions: int) -> dict[str, float]:
    """Return the median of each contender's runs, A B A B …, after one round that does not count."""
    runs: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(repetitions + 1):
        for name, measure in contenders.items():
            figure = measure()
            if number:
                runs[name].append(figure)
    return {name: statistics.median(each) for name, each in runs.items()}


def fill(folder: Path, messages: list[tuple[bytes, bytes]]) -> None:
    """Write a collector's spool with these messages, in groups as under load."""
    sent = packets(messages)
    with Spool(folder / "bench", sync=lambda _descriptor: None) as spool:
        for at in range(0, len(sent), _GROUP):
            group = sent[at : at + _GROUP]
            spool.append(b"".join(group), len(group), time.time_ns() // 1_000_000)


# Reading


class _EmptyPartition(InputPartition):
    def __init__(self, rows: int) -> None:
        super().__init__(None)
        self.rows = rows


class _Ceiling(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [_EmptyPartition(self._rows // _PARTITIONS) for _ in range(_PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _EmptyPartition)
        batch = _one_batch(_BATCH_ROWS)
        for at in range(0, partition.rows, _BATCH_ROWS):
            yield batch.slice(0, min(_BATCH_ROWS, partition.rows - at))


class CeilingSource(DataSource):
    """The upper bound for any Python Arrow source: rows like ours that are made once and returned again and again."""

    @classmethod
    def name(cls) -> str:
        return "bench_ceiling"

    def schema(self) -> str:
        return SPARK_SCHEMA

    def reader(self, schema: object) -> DataSourceReader:
        return _Ceiling(int(self.options["rows"]))


def _one_batch(rows: int) -> pa.RecordBatch:
    topic, payload = readings(1, 1)[0]
    values: dict[str, Any] = {"topic": topic.decode(), "payload": payload, "collector": "bench", "spool": "0" * 32}
    arrays = []
    for field in ARROW_SCHEMA:
        if field.name in values:
            arrays.append(pa.repeat(pa.scalar(values[field.name], field.type), rows))
        else:
            arrays.append(pa.array(np.ones(rows, dtype=np.int64)).cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def read_rows(lab: Lab, spark: SparkSession, scale: Scale) -> Iterator[Row]:
    """Measure Spark reading the spool and dropping the rows, beside the upper bound."""
    messages = readings(scale.read, _DEVICES)
    spool = lab.new_folder("spool")
    fill(spool, messages)
    spark.dataSource.register(CeilingSource)

    def rate(frame: DataFrame) -> float:
        begun = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return scale.read / (time.perf_counter() - begun)

    def ours() -> float:
        return rate(spark.read.format("mqtt").options(minPartitions=str(_PARTITIONS), path=str(spool)).load())

    contenders: dict[str, Measure] = {
        READ: ours,
        CEILING: lambda: rate(spark.read.format("bench_ceiling").option("rows", scale.read).load()),
    }
    medians = in_turn(contenders, scale.repetitions)
    yield row(READ, medians[READ], medians[CEILING], CEILING)


def backfill_rows(lab: Lab, spark: SparkSession, scale: Scale) -> Iterator[Row]:
    """Measure how fast a backlog gets into bronze and silver, beside what a user would write with Spark alone.

    Spark's stream reads the payloads from files, one for each micro-batch, and writes the readings alone.
    """
    messages = readings(scale.batch * scale.batches, _DEVICES)
    spool, source = lab.new_folder("spool"), lab.new_folder("json")
    fill(spool, messages)
    for number in range(scale.batches):
        lines = [payload for _, payload in messages[number * scale.batch : (number + 1) * scale.batch]]
        (source / f"{number}.json").write_bytes(b"\n".join(lines))
    medians = in_turn(
        {
            BACKFILL: lambda: _silver(lab, spark, spool, scale),
            SPARK_STREAM: lambda: _plain_stream(lab, spark, source),
        },
        scale.repetitions,
    )
    yield row(BACKFILL, medians[BACKFILL], medians[SPARK_STREAM], SPARK_STREAM)


def _plain_stream(lab: Lab, spark: SparkSession, source: Path) -> float:
    folder = lab.new_folder("stream")
    frame = spark.readStream.schema(_RECORD).option("maxFilesPerTrigger", "1").json(str(source))
    frame = frame.selectExpr("*", "timestamp_millis(ts) AS at").withWatermark("at", "1 hour")
    frame = frame.dropDuplicatesWithinWatermark(["id", "boot", "seq"])
    stream = frame.writeStream.format("parquet").option("path", str(folder / "table"))
    return _rows_a_second(stream.option("checkpointLocation", str(folder / "checkpoint")))


def _ended(query: StreamingQuery) -> StreamingQuery:
    with suppress(StreamingQueryException):  # query.exception() reports it
        query.awaitTermination()
    return query


def _silver(lab: Lab, spark: SparkSession, spool: Path, scale: Scale) -> float:
    """Return the readings a second into new tables.

    All micro-batches count but the first, which runs cold code without state.
    """
    folder = lab.new_folder("silver")
    given = {"path": str(spool), "maxOffsetsPerTrigger": str(scale.batch), "minPartitions": str(_BUCKETS)}
    batches, written = MicroBatches(spark, given), {}
    writer = BatchWriter(folder / "tables", folder / "state", buckets=_BUCKETS, run=batches.run)

    def write(rows: DataFrame, batch_id: int) -> None:
        before = writer.totals.messages
        writer.write(rows, batch_id, "bench")
        written[batch_id] = writer.totals.messages - before

    stream = batches.stream().writeStream.foreachBatch(write)
    stream = stream.option("checkpointLocation", str(folder / "checkpoint"))
    return _rows_a_second(stream, written)


def _rows_a_second(stream: DataStreamWriter, written: Mapping[int, int] | None = None) -> float:
    """Run a query to its end.

    :param written: the rows of each micro-batch, for a query whose rows Spark does not count.
    """
    stream = stream.trigger(availableNow=True)
    query = _ended(stream.start())
    while began_too_slowly(query):
        query = _ended(stream.start())
    if failure := query.exception():
        raise failure
    counted = ((written or {}).get(one["batchId"], one["numInputRows"]) for one in query.recentProgress)
    batches = [(rows, one) for rows, one in zip(counted, query.recentProgress, strict=True) if rows]
    warm = batches[1:] or batches
    return sum(rows for rows, _ in warm) * 1000 / sum(one["durationMs"]["triggerExecution"] for _, one in warm)
