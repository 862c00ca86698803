"""The Spark program: what happens to the rows of a micro-batch, step by step.

========  ======================================================================================================
ranges    the rows of the source: ranges of the spools, cut for as many tasks as Spark runs at once
decode    each task reads its ranges and decodes them; it writes bronze and everything that is no reading
shuffle   the readings go to the bucket of their device, as Arrow tables: a few rows for Spark
dedup     each bucket finds the readings that are new
transform the job of ``transform`` in ingest.toml, a function from DataFrame to DataFrame, if there is one
write     the readings are written as rows of silver
========  ======================================================================================================

A micro-batch of one partition needs no shuffle: one task does everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.taskcontext import TaskContext

from ..errors import StoreAway
from ..source.data_source import messages_in
from ..tables.schemas import EXTRA, METRICS, SILVER_SCHEMA, TIMESTAMP
from . import tasks
from .job import Job
from .process import own_error
from .tasks import SHUFFLE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..source.options import Options
    from .transform import Transform

_SPARK_TYPES = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    METRICS: "map<string, double>",
    EXTRA: "map<string, string>",
}
SILVER_COLUMNS = ", ".join(f"{field.name} {_SPARK_TYPES[field.type]}" for field in SILVER_SCHEMA)
_NOTHING = "nothing int"
_INDETERMINATE = "A shuffle map stage with indeterminate output was failed and retried"
_ATTEMPTS = 4


class _Steps:
    """The steps as functions of a task. Spark pickles the object into each task."""

    def __init__(self, job: Job, options: Options, add: Callable[[Any], None], silver: pa.Schema) -> None:
        self._job = job
        self._options = options
        self._add = add
        self._silver = silver
        self.parts = 1

    def decode(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        messages = messages_in(self._options, ranges)
        partition, attempt = _task()
        return tasks.decode(self._job, partition, messages, self._report, parts=self.parts, attempt=attempt)

    def deduplicate(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        bucket, attempt = _task()
        return tasks.deduplicate(self._job, bucket, rows, self._report, attempt=attempt)

    def in_one_task(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        messages = messages_in(self._options, ranges)
        return tasks.in_one_task(self._job, messages, self._report, attempt=_task()[1])

    def write(self, tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        number, attempt = _task()
        columns = self._silver
        some = (table.select(columns.names).cast(columns) for table in tables if table.num_rows)
        tasks.write(self._job, number, some, self._report, attempt=attempt)
        yield from ()

    def _report(self, name: str, done: dict[str, Any]) -> None:
        self._add({name: done})


class MicroBatches:
    """Runs the tasks of micro-batches with Spark.

    :param options: the options of the source.
    :param transform: a function of the user's from new readings to what is written of them.
    :param silver: the columns of silver, which `transform` returns.
    """

    STEPS = _Steps

    def __init__(
        self,
        session: SparkSession,
        options: Options,
        *,
        transform: Transform | None = None,
        silver: pa.Schema | None = None,
    ) -> None:
        self._options = options
        self._transform = transform
        self._silver = silver or SILVER_SCHEMA
        self._cores = session.sparkContext.defaultParallelism
        self._reports = session.sparkContext.accumulator({}, _Reports())

    def run(self, ranges: DataFrame, job: Job) -> dict[str, dict[str, Any]]:
        """Run the tasks of a micro-batch; return the report of each by its name.

        :param ranges: the micro-batch as Spark passes it to foreachBatch: RANGE_COLUMNS.
        :raises StoreAway: the object store of the tables did not answer a task.
        """
        from py4j.protocol import Py4JJavaError

        self._reports.value = {}
        written = self._steps(ranges, job)
        for attempt in range(_ATTEMPTS):
            try:
                written.collect()
                break
            except Py4JJavaError as error:
                # An executor died and its shuffle output was lost. Spark recomputes the output and compares checksums.
                # They differ, because Arrow's padding does, so Spark fails the job. The job can be repeated.
                text = str(error)
                if StoreAway.__name__ in text:
                    raise StoreAway(own_error(text)) from error
                if _INDETERMINATE not in text or attempt == _ATTEMPTS - 1:
                    raise
        return self._reports.value

    def _steps(self, ranges: DataFrame, job: Job) -> DataFrame:
        step = self.STEPS(job, self._options, self._reports.add, self._silver)
        partitions = ranges.rdd.getNumPartitions()
        if partitions == 1:
            in_one_task = step.in_one_task
            if self._transform is None:
                return ranges.mapInArrow(lambda rows: step.write(in_one_task(rows)), _NOTHING)
            new = ranges.mapInArrow(lambda rows: _batches(in_one_task(rows)), SILVER_COLUMNS)
        else:
            # A part of a bucket fits into the memory of a task, however large the micro-batch.
            step.parts = max(1, partitions // self._cores)
            decoded = ranges.mapInArrow(step.decode, SHUFFLE_COLUMNS)
            # Partition by the bucket's number, not by its hash: each bucket has one task, even if it has no rows.
            by_bucket = decoded.repartitionById(job.buckets, "bucket").sortWithinPartitions("part", "source", "number")
            if self._transform is None:
                return by_bucket.mapInArrow(lambda rows: step.write(step.deduplicate(rows)), _NOTHING)
            new = by_bucket.mapInArrow(lambda rows: _batches(step.deduplicate(rows)), SILVER_COLUMNS)
        return self._transform(new).mapInArrow(lambda rows: step.write(map(_table, rows)), _NOTHING)


class _Reports(AccumulatorParam[dict[str, Any]]):
    """Joins the reports of tasks; of a task that Spark has repeated, the last report stays."""

    def zero(self, value: dict[str, Any]) -> dict[str, Any]:
        return {}

    def addInPlace(self, value1: dict[str, Any], value2: dict[str, Any]) -> dict[str, Any]:
        return {**value1, **value2}


def _task() -> tuple[int, int]:
    """Return the partition's number and Spark's number of this task's attempt."""
    context = TaskContext.get()
    assert context is not None
    return context.partitionId(), context.taskAttemptId()


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _batches(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.to_batches()
