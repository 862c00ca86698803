"""The pipeline: from a collector's spool to the tables bronze, silver, those beside it, and gold. ::

    python -m spark_ingest.pipeline --spool spool --tables tables --checkpoint checkpoint

prints ``ready`` on standard output once the query runs. SIGTERM and SIGINT let the micro-batch in progress
finish, stop Spark and exit with 0. ``--once`` takes what is there now and exits. ``--json`` prints the
status as the last line.

``--status FILE`` has these keys:

=================  =====================================================================================
state              starting, running, stopping, stopped or failed
batches            micro-batches since the start
messages           MQTT messages in them
replayed           of these, what bronze already had: a micro-batch repeated, or a new checkpoint
rows_bronze        rows appended to bronze
rows_silver        rows appended to silver
rows_quarantined   rows appended to quarantine
rows_status        rows appended to status
rows_logs          rows appended to logs
duplicates         rows appended to duplicates: readings that were received again
boots, open_gaps   size of the deduplication state: boots known, and ranges of seq that are missing
alerts             alerts that last, in the newest gold; null without gold
alerts_by_rule     likewise, by the rule's name
alerts_waiting     beginnings and ends of alerts that somebody is still to be told of
alerts_failing     destinations of alerts that took nothing the last time
gold_ms            duration of the newest update of gold, milliseconds
gold_failing       whether gold cannot be updated; null without gold
last_batch_ms      duration of the newest micro-batch with messages, milliseconds, all in all
rows_per_second    messages a second in it
lag_bytes          spool bytes that are durable and not yet in the tables
waiting_since_ms   since when messages wait without a micro-batch that ends, Unix milliseconds; null: none waits
updated_ms         Unix milliseconds of this status
=================  =====================================================================================
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import IngestError, SparkEnded, UsageError
from ..location import StorePath, may_pass
from ..lock import FolderLock
from ..printable import remark
from .claim import claim, pipeline_lock
from .config import PipelineConfig
from .process import (
    StopBetweenBatches,
    explained,
    java_ended,
    panics_as_errors,
    require_checkpoint,
    require_format,
    require_whole,
    require_writable,
    scratch_folder,
    stop_session,
    write_failure,
)
from .session import began_too_slowly, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ..spool.access import Spools
    from ..tables.table import Table
    from .batch import BatchWriter
    from .cluster import ClusterWriter
    from .upkeep import Upkeep

_POLL_S = 0.25
_STOP_PATIENCE_S = 60.0
_STARTS = 5
_SPARK_STARTS = 4
_LOOK_S = 60.0
_STORE_DELAYS_S = (1.0, 2.0, 5.0, 10.0)


class Pipeline:
    """One query and what is told about it.

    :param on_stage: see :class:`spark_ingest.pipeline.batch.BatchWriter`.
    """

    def __init__(self, config: PipelineConfig, *, on_stage: Callable[[str], None] = lambda _stage: None) -> None:
        self.config = config
        self._on_stage = on_stage
        self._state = "starting"
        self._stop_requested = threading.Event()
        self._refuses_batches = False
        self._writing = threading.Lock()
        self._writer: BatchWriter | ClusterWriter | None = None
        self._upkeep: Upkeep | None = None
        self._spools: Spools | None = None
        self._query_id: str | None = None
        self._last_batch_ms = 0
        self._rows_per_second = 0
        self._lag_bytes: int | None = None
        self._waiting_since_ms: int | None = None
        self._newest_batch = -1
        self._next_look = 0.0

    def stop(self) -> None:
        """Ask :meth:`run` to finish the micro-batch in progress and return; for signal handlers too."""
        self._stop_requested.set()

    def status(self) -> dict[str, object]:
        """The keys of the status file."""
        totals = asdict(self._writer.totals) if self._writer else {}
        return {
            "state": self._state,
            **totals,
            **(self._upkeep.figures() if self._upkeep else {}),
            "last_batch_ms": self._last_batch_ms,
            "rows_per_second": self._rows_per_second,
            "lag_bytes": self._lag_bytes,
            "waiting_since_ms": self._waiting_since_ms,
        }

    def run(self, on_ready: Callable[[], None]) -> None:
        """Run until stopped, or until everything is read with ``once``.

        :raises IngestError: it could not start, or the query failed.
        """
        config = self.config
        for folder in (config.tables, config.checkpoint):
            require_writable(folder)
        if config.spool is not None and not config.spool.is_dir():
            raise UsageError(f"the spool folder {config.spool} does not exist: give the collector's --spool")
        require_whole(config.tables)
        require_format(config.tables, config.format)
        if config.on_executors and config.format != "delta":
            raise UsageError("executors write Delta tables only: give --write-path driver, or leave out --format")
        self._catch_signals()
        with (
            FolderLock(config.checkpoint, "--checkpoint", "a pipeline"),
            pipeline_lock(config.tables),
        ):
            for starts_left in reversed(range(_SPARK_STARTS)):
                try:
                    with scratch_folder(config.checkpoint) as scratch:
                        self._run_session(scratch, on_ready)
                    return
                except IngestError as error:
                    if not isinstance(error, SparkEnded) or self._stop_requested.is_set() or not starts_left:
                        self._state = "failed"
                        raise
                    remark(f"{error}. Starting Spark again")
                self._state, self._refuses_batches, on_ready = "starting", False, lambda: None

    def _run_session(self, scratch: Path, on_ready: Callable[[], None]) -> None:
        """Run the query in a Spark session of its own.

        :raises SparkEnded: Java is gone, and no micro-batch of it is being written any more.
        """
        config = self.config
        session = start_session(scratch, cores=config.cores, master=config.master, settings=config.settings)
        # Again: Spark has put a handler in the place of ours that raises KeyboardInterrupt anywhere.
        self._catch_signals()
        try:
            if not self._stop_requested.is_set():
                self._run_query(session, on_ready)
        except IngestError:
            raise
        except Exception as error:
            ended = java_ended(session)
            if ended is None:
                raise
            # A micro-batch that Spark began may still be written, by a thread that notices nothing.
            with self._writing:
                self._refuses_batches = True
            raise ended from error
        finally:
            if self._upkeep is not None:
                self._upkeep.close()
            stop_session(session)

    def _catch_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())

    def _run_query(self, session: "SparkSession", on_ready: Callable[[], None]) -> None:
        from deltalake.exceptions import DeltaError

        from ..source.data_source import MqttDataSource
        from ..source.options import Options
        from .batch import MESSAGE_COLUMNS
        from .plan import drop_oversized_plan
        from .upkeep import Upkeep

        config = self.config
        options = config.source_options()
        self._spools = Options(options).spools
        try:
            before, self._writer = self._writer, self._new_writer()
            if before is not None:
                self._writer.totals = before.totals
            self._upkeep = Upkeep(config, on_stage=self._on_stage)
        except (OSError, DeltaError) as error:
            raise write_failure(error, config.tables) from error
        dropped = drop_oversized_plan(config.checkpoint, self._spools, config.max_bytes, self._writer.has_written)
        if dropped is not None:
            remark(dropped)
        session.dataSource.register(MqttDataSource)
        messages = session.readStream.format("mqtt").options(**options).load().select(*MESSAGE_COLUMNS)
        writer = messages.writeStream.foreachBatch(self._write_batch)
        writer = writer.option("checkpointLocation", str(config.checkpoint.absolute()))
        if config.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{config.interval_ms} milliseconds")
        query, starts = writer.start(), 1
        self._state = "running"
        on_ready()
        try:
            while not self._stop_requested.wait(_POLL_S):
                if not query.isActive:
                    if starts == _STARTS or not began_too_slowly(query):
                        break
                    remark("a Python process took Spark too long to start; trying again")
                    query, starts = writer.start(), starts + 1
                self._observe(query)
                self._upkeep.step(self._lag_bytes)
                self._require_tables()
            if self._stop_requested.is_set():
                self._state = "stopping"
        finally:
            self._stop_between_batches(query)
        self._raise_failure(query)
        self._upkeep.finish(self._lag_bytes)
        self._state = "stopped"

    def _new_writer(self) -> "BatchWriter | ClusterWriter":
        from .batch import BatchWriter
        from .cluster import ClusterWriter

        config, state = self.config, self.config.checkpoint / "umqtt"

        def on_open(tables: "Mapping[str, Table]") -> None:
            require_checkpoint(config.checkpoint, tables["silver"].identity)
            claim(tables, config.tables, config.checkpoint)

        options: dict[str, Any] = {"rules": config.rules, "on_open": on_open, "on_stage": self._on_stage}
        if config.on_executors:
            return ClusterWriter(config.tables, state, buckets=config.buckets, **options)
        return BatchWriter(config.tables, state, format=config.format, **options)

    def _write_batch(self, frame: "DataFrame", batch_id: int) -> None:
        with self._writing, panics_as_errors(f"micro-batch {batch_id}"):
            self._write(frame, batch_id)

    def _write(self, frame: "DataFrame", batch_id: int) -> None:
        if self._stop_requested.is_set() or self._refuses_batches:
            # Spark asks for the next micro-batch before it can be told to stop. Returning would commit it
            # unwritten.
            raise StopBetweenBatches(f"stopping before micro-batch {batch_id}")
        from deltalake.exceptions import CommitFailedError, DeltaError

        from .batch import BatchWriter

        assert self._writer is not None
        # Spark writes this file before the first micro-batch; the id is the checkpoint's, not this run's.
        query_id = self._query_id or json.loads((self.config.checkpoint / "metadata").read_bytes())["id"]
        self._query_id = query_id
        rows = frame.toArrow() if isinstance(self._writer, BatchWriter) else frame
        for delay_s in chain(_STORE_DELAYS_S, repeat(_STORE_DELAYS_S[-1])):
            try:
                self._writer.write(rows, batch_id, query_id)
                break
            except (OSError, DeltaError) as error:
                failure = write_failure(error, self.config.tables)
                # A commit whose answer was lost was repeated, and conflicts with itself.
                passes = may_pass(error) or isinstance(error, CommitFailedError)
                if not isinstance(self.config.tables, StorePath) or not passes:
                    raise failure from error
                if delay_s == _STORE_DELAYS_S[0]:
                    remark(f"{failure.args[0].partition(';')[0]}; waiting for the store, nothing is lost")
            if self._stop_requested.wait(delay_s):
                raise StopBetweenBatches(f"stopping in micro-batch {batch_id}, which is repeated")

    def _observe(self, query: "StreamingQuery") -> None:
        """Take the figures of the newest micro-batch, and the lag."""
        from ..source.offsets import lag_behind

        progress = query.lastProgress
        if progress is None:
            return
        if progress["numInputRows"]:
            self._last_batch_ms = int(progress["durationMs"]["triggerExecution"])
            self._rows_per_second = round(progress["numInputRows"] * 1000 / max(1, self._last_batch_ms))
        end = progress["sources"][0]["endOffset"]
        if end is not None:
            end = json.loads(end) if isinstance(end, str) else end
            assert self._spools is not None
            self._lag_bytes = sum(place["lagBytes"] for place in lag_behind(end, self._spools).values())
        if not self._lag_bytes:
            self._waiting_since_ms = None
        elif self._waiting_since_ms is None or progress["batchId"] != self._newest_batch:
            self._waiting_since_ms = time.time_ns() // 1_000_000
        self._newest_batch = progress["batchId"]

    def _require_tables(self) -> None:
        """End a pipeline without messages, too, when another one has taken over its tables."""
        from ..tables.delta import Delta

        silver = self._writer.tables["silver"] if self._writer is not None else None
        if isinstance(silver, Delta) and silver.writer is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_S
            silver.look_for_another()

    def _stop_between_batches(self, query: "StreamingQuery") -> None:
        self._refuses_batches = True
        deadline = time.monotonic() + _STOP_PATIENCE_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.02)
        self._observe(query)
        query.stop()

    def _raise_failure(self, query: "StreamingQuery") -> None:
        failure = query.exception()
        if failure is None or StopBetweenBatches.__name__ in str(failure):
            return
        raise explained(str(failure), self.config.checkpoint)
