"""The Spark program: what happens to the rows of a micro-batch, step by step (:class:`MicroBatches`).

========  ======================================================================================================
ranges    the rows of the source: ranges of the spools, cut for as many tasks as Spark runs at once
decode    each task reads its ranges and decodes them; it writes bronze and everything that is no reading
shuffle   the readings go to the bucket of their device, as Arrow tables: a few rows for Spark
dedup     each bucket finds the readings that are new
transform the job of ``transform`` in ingest.toml, a function from DataFrame to DataFrame, if there is one
write     the readings are written as rows of silver
========  ======================================================================================================

The query itself is ranges and decode, so Spark gets the function of that step once; the others are planned for each
micro-batch. One of one partition is not shuffled unless there is a transform: the task that decodes does all steps, and
takes all buckets. A second stage would cost more than the work on a few thousand rows.

What differs between micro-batches (:class:`Job`) comes to the tasks as a local property of Spark.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.taskcontext import TaskContext

from ...errors import StoreAway
from ...source.data_source import RangesDataSource, messages_in
from ...source.options import Options
from ...tables.schemas import EXTRA, METRICS, SILVER_SCHEMA, TIMESTAMP
from ..process import own_error
from . import tasks
from .job import Job
from .tasks import SHUFFLE_COLUMNS

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

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
# Spark reads the bytecode of the functions in an RDD before each job; this makes it leave out those of its own steps.
_WITHOUT_CLOSURES = {"spark.sql.execution.usePartitionEvaluator": "true"}
# Between the steps there are a few rows for each task: to compile code for them takes longer than to interpret it.
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_JOB = "umqtt.job"
_INDETERMINATE = "A shuffle map stage with indeterminate output was failed and retried"
_ATTEMPTS = 4


class _Steps:
    """The steps as functions of a task. Spark pickles the object into each task."""

    def __init__(self, options: Options, reports: Accumulator[dict[str, Any]], silver: pa.Schema) -> None:
        self._options = options
        self._reports = reports
        self._silver = silver

    def decode(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode; a task for all does the other steps too, but nothing at all if there are other partitions."""
        held = list(ranges)  # a partition has only a few
        job, partition, attempt = _task()
        parts = _parts(held)
        if job.in_one_task and parts:
            return iter(())
        messages = messages_in(self._options, held)
        rows = tasks.decode(job, partition, messages, self._report, parts=parts or 1, attempt=attempt)
        return self.write(self.deduplicate(rows)) if job.in_one_task else rows

    def deduplicate(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        job, bucket, attempt = _task()
        buckets = range(job.buckets) if job.in_one_task else [bucket]
        return tasks.deduplicate(job, buckets, rows, self._report, attempt=attempt)

    def write(self, tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        job, number, attempt = _task()
        columns = self._silver
        some = (table.select(columns.names).cast(columns) for table in tables if table.num_rows)
        tasks.write(job, number, some, self._report, attempt=attempt)
        yield from ()

    def _report(self, name: str, done: dict[str, Any]) -> None:
        self._reports.add({name: done})


class MicroBatches:
    """The steps of a query, and of its micro-batches.

    :param source: the options of the source.
    :param transform: a function of the user's from new readings to what is written of them.
    :param silver: the columns of silver, which `transform` returns.
    """

    def __init__(
        self,
        session: SparkSession,
        source: Mapping[str, str],
        *,
        transform: Transform | None = None,
        silver: pa.Schema | None = None,
    ) -> None:
        # A session of its own: other queries keep their settings.
        self._session = session.newSession()
        self._source = dict(source)
        self._transform = transform
        # A transform gets every reading as a row.
        for name, value in (_WITHOUT_CLOSURES if transform else _WITHOUT_CLOSURES | _INTERPRETED).items():
            self._session.conf.set(name, value)
        self._reports = session.sparkContext.accumulator({}, _Reports())
        self._steps = _Steps(Options(source), self._reports, silver or SILVER_SCHEMA)
        # A transform is a step of its own, after a shuffle.
        self._was_small = transform is None

    def stream(self) -> DataFrame:
        """Return the query, whose micro-batches :meth:`run` takes."""
        self._session.dataSource.register(RangesDataSource)
        ranges = self._session.readStream.format(RangesDataSource.name()).options(**self._source).load()
        return ranges.mapInArrow(self._steps.decode, SHUFFLE_COLUMNS)

    def run(self, rows: DataFrame, job: Job) -> dict[str, dict[str, Any]]:
        """Run the tasks of a micro-batch; return the report of each by its name.

        :param rows: of the query, as Spark passes them to foreachBatch.
        :raises StoreAway: the object store of the tables did not answer a task.
        """
        # Only the tasks know how many they are; to ask Spark takes a tenth of a small micro-batch. If they are several
        # although the micro-batch before had one, they do nothing, and run once more with a shuffle.
        for in_one_task in (True, False) if self._was_small else (False,):
            self._run(self._steps_of(rows, job.buckets, in_one_task), replace(job, in_one_task=in_one_task))
            if "partition 0" in self._reports.value:
                break
        self._was_small = self._transform is None and "partition 1" not in self._reports.value
        return self._reports.value

    def _steps_of(self, rows: DataFrame, buckets: int, in_one_task: bool) -> DataFrame:
        step = self._steps
        if in_one_task:
            # The one task has done all.
            return rows
        # Partition by the bucket's number, not by its hash: each task runs, even if it gets no rows.
        rows = rows.repartitionById(buckets, "bucket")
        if self._transform is None:
            return rows.mapInArrow(lambda some: step.write(step.deduplicate(some)), _NOTHING)
        readings = rows.mapInArrow(lambda some: _batches(step.deduplicate(some)), SILVER_COLUMNS)
        return self._transform(readings).mapInArrow(lambda some: step.write(map(_table, some)), _NOTHING)

    def _run(self, written: DataFrame, job: Job) -> None:
        from py4j.protocol import Py4JJavaError

        self._reports.value = {}
        self._session.sparkContext.setLocalProperty(_JOB, base64.b64encode(pickle.dumps(job)).decode())
        for attempt in range(_ATTEMPTS):
            try:
                # Not collect(): nothing is to be returned, and preparing that takes a sixth of a small micro-batch.
                written.write.format("noop").mode("append").save()
                return
            except Py4JJavaError as error:
                # An executor died and its shuffle output was lost. Spark recomputes the output and compares checksums.
                # They differ, because Arrow's padding does, so Spark fails the job. The job can be repeated.
                text = str(error)
                if StoreAway.__name__ in text:
                    raise StoreAway(own_error(text) or text) from error
                if _INDETERMINATE not in text or attempt == _ATTEMPTS - 1:
                    raise


class _Reports(AccumulatorParam[dict[str, Any]]):
    """Joins the reports of tasks; of a task that Spark has repeated, the last report stays."""

    def zero(self, value: dict[str, Any]) -> dict[str, Any]:
        return {}

    def addInPlace(self, value1: dict[str, Any], value2: dict[str, Any]) -> dict[str, Any]:
        return {**value1, **value2}


def _task() -> tuple[Job, int, int]:
    """Return the job, the partition's number, and Spark's number of this task's attempt."""
    context = TaskContext.get()
    assert context is not None
    job = pickle.loads(base64.b64decode(context.getLocalProperty(_JOB) or ""))  # written by this program's driver
    return job, context.partitionId(), context.taskAttemptId()


def _parts(ranges: list[pa.RecordBatch]) -> int:
    """Return the source's number of parts, which is the same in every range."""
    return next((int(batch["parts"][0].as_py()) for batch in ranges if batch.num_rows), 0)


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _batches(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.to_batches()
