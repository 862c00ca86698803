"""Runs the pipeline in the tests' own Spark session, so that Java starts only once for dozens of runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_ingest.pipeline.run import command
from spark_ingest.pipeline.run import pipeline as pipeline_module
from spark_ingest.pipeline.write.batch import Reports, run_here
from spark_ingest.pipeline.write.job import Job
from spark_ingest.pipeline.write.stream import MicroBatches
from spark_ingest.source.data_source import RangesDataSource, messages_in
from spark_ingest.source.rows import ARROW_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ended(Exception):
    """Raised at a stage where the process is to end. No handler of the pipeline catches it; Spark's callback does."""


def run_pipeline(spark: SparkSession, *arguments: object, on_stage: Callable[[str], None] | None = None) -> int:
    """Run ``python -m spark_ingest.pipeline ARGUMENTS`` in this process and this session; return the exit code.

    Its standard streams are this process's. Tests that need a separate process, to kill it or to see it start and
    stop Java, start one.
    """
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_module, "start_session", lambda *_, **__: spark)
        patch.setattr(pipeline_module, "stop_session", lambda _session: None)
        try:
            return command.main([str(each) for each in arguments], on_stage=on_stage)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def tasks_here() -> Iterator[None]:
    """Run the tasks of micro-batches in this process, where they can be changed; Spark reads the ranges alone."""

    def stream(batches: MicroBatches) -> DataFrame:
        session = batches._session
        session.dataSource.register(RangesDataSource)
        return session.readStream.format(RangesDataSource.name()).options(**batches._source).load()

    def run(batches: MicroBatches, ranges: DataFrame, job: Job) -> Reports:
        read = messages_in(batches._steps._options, ranges.toArrow().to_batches())
        messages = pa.Table.from_batches(read, ARROW_SCHEMA)
        return run_here(messages, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MicroBatches, "stream", stream)
        patch.setattr(MicroBatches, "run", run)
        yield


def ended_at(spark: SparkSession, stage: str, times: int, *arguments: object) -> None:
    """Run the pipeline until a stage is reached for the N-th time, and break off its micro-batch there."""
    left = times

    def end(reached: str) -> None:
        nonlocal left
        if reached == stage:
            left -= 1
            if not left:
                raise Ended(stage)

    # Gold is updated in this thread; micro-batches run in a callback of Spark's, whose errors become an exit code.
    with suppress(Ended):
        assert run_pipeline(spark, *arguments, on_stage=end) != 0
    assert not left, f"{stage!r} was not reached {times} times"
