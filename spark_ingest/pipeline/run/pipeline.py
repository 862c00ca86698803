"""The pipeline: from a collector's spool to the tables bronze, silver, those beside it, and gold. ::

    python -m spark_ingest.pipeline --spool spool --tables tables --checkpoint checkpoint

prints ``ready`` on standard output once the query runs, also after Spark was started again. On SIGTERM and SIGINT, it
finishes the micro-batch in progress, stops Spark and exits with 0. ``--once`` reads what is there now and exits.
``--json`` prints the status as the last line.

The file of ``--status FILE`` has these keys:

=================  =====================================================================================
state              starting, running, stopping, stopped or failed
batches            micro-batches since the start
messages           MQTT messages in them
replayed           of these, those that bronze already had: a repeated micro-batch, or a new checkpoint
rows_bronze        rows appended to bronze
rows_silver        rows appended to silver
rows_in_silver     rows that silver has
rows_quarantined   rows appended to quarantine
rows_status        rows appended to status
rows_logs          rows appended to logs
ignored            messages in bronze alone: there is no value in them, or a rule leaves them out
duplicates         rows appended to duplicates: readings that were received again
boots, open_gaps   size of the deduplication state: boots known, and ranges of seq that are missing
alerts             open alerts in the newest gold; null without gold
alerts_by_rule     open alerts by the rule's name; null without gold
alerts_waiting     beginnings and ends of alerts that are still to be sent; null without gold
alerts_failing     destinations of alerts that failed the last time; null without gold
gold_ms            duration of the newest update of gold, milliseconds; null without gold
gold_failing       whether gold cannot be updated; null without gold
last_batch_ms      total duration of the newest micro-batch with messages, milliseconds
rows_per_second    messages per second in the newest micro-batch with messages
lag_bytes          spool bytes that are durable and not yet in the tables; null until known
waiting_since_ms   since when messages wait while no micro-batch ends, Unix milliseconds; null if none wait
updated_ms         Unix milliseconds of this status
=================  =====================================================================================
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umqtt_cli.escape import remark

from ...durable import replace_file
from ...errors import IngestError, SparkEnded, StoreAway, UsageError
from ...location import StorePath, may_pass
from ...lock import FolderLock
from ...spool.view import Spools
from ..process import (
    READ_UP_TO,
    StopBetweenBatches,
    explained,
    java_ended,
    panics_as_errors,
    remove_first_plan_cut_short,
    require_checkpoint,
    require_whole,
    require_writable,
    scratch_folder,
    stop_session,
    write_failure,
)
from .claim import claim, pipeline_lock
from .config import PipelineConfig
from .session import began_too_slowly, is_cluster, start_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from ...tables.delta import Delta
    from ..write.batch import BatchWriter, Reports
    from ..write.job import Job
    from .upkeep import Upkeep

_POLL_S = 0.25
_STOP_PATIENCE_S = 60.0
_STARTS = 5
_LOOK_S = 60.0
_CLUSTER_BUCKETS = 8
_STORE_DELAYS_S = (1.0, 2.0, 5.0, 10.0)


class Pipeline:
    """One streaming query, its upkeep and its status.

    :param on_stage: see :class:`spark_ingest.pipeline.write.batch.BatchWriter`.
    """

    def __init__(self, config: PipelineConfig, *, on_stage: Callable[[str], None] = lambda _stage: None) -> None:
        self.config = config
        self._on_stage = on_stage
        self._state = "starting"
        self._stop_requested = threading.Event()
        self._refuses_batches = False
        self._writing = threading.Lock()
        self._writer: BatchWriter | None = None
        self._upkeep: Upkeep | None = None
        self._spools: Spools | None = None
        # Micro-batch to its number of messages, for the newest two.
        self._written: dict[int, int] = {}
        self._silver_before = 0
        self._query: Future[StreamingQuery] = Future()
        self._read_up_to = ""
        self._last_batch_ms = 0
        self._rows_per_second = 0
        self._lag_bytes: int | None = None
        self._waiting_since_ms: int | None = None
        self._newest_batch = -1
        self._next_look = 0.0

    def stop(self) -> None:
        """Ask :meth:`run` to finish the micro-batch in progress and return; safe to call in a signal handler."""
        self._stop_requested.set()

    def status(self) -> dict[str, object]:
        """Return the keys of the status file, except `updated_ms`."""
        totals = asdict(self._writer.totals) if self._writer else {}
        return {
            "state": self._state,
            **totals,
            **({"rows_in_silver": self._silver_before + totals["rows_silver"]} if totals else {}),
            **(self._upkeep.figures() if self._upkeep else {}),
            "last_batch_ms": self._last_batch_ms,
            "rows_per_second": self._rows_per_second,
            "lag_bytes": self._lag_bytes,
            "waiting_since_ms": self._waiting_since_ms,
        }

    def run(self, on_ready: Callable[[], None]) -> None:
        """Run until stopped or, with ``once``, until everything is read.

        :param on_ready: called when the query runs.
        :raises SparkEnded: Java has ended: a new process can go on.
        :raises IngestError: the pipeline could not start, or the query failed.
        """
        config = self.config
        self._require_different_folders()
        for folder in (config.tables, config.checkpoint):
            require_writable(folder)
        if not config.spool.is_dir():
            raise UsageError(f"the spool folder {config.spool} does not exist: give the collector's --spool")
        Spools(config.spool).names()  # for the errors, before Spark starts
        require_whole(config.tables)
        self._catch_signals()
        with (
            FolderLock(config.checkpoint, "--checkpoint", "a pipeline"),
            pipeline_lock(config.tables),
            scratch_folder(config.checkpoint) as scratch,
        ):
            try:
                self._run_session(scratch, on_ready)
            except IngestError as error:
                self._state = "failed"
                if isinstance(error, SparkEnded) and self._stop_requested.is_set():
                    raise IngestError(str(error)) from error
                raise

    def _require_different_folders(self) -> None:
        """Check that spool, tables and checkpoint are three places.

        :raises UsageError: two of them are one.
        """
        given = {"--spool": self.config.spool, "--tables": self.config.tables, "--checkpoint": self.config.checkpoint}
        options: dict[str, str] = {}
        for option, place in given.items():
            if place is None:
                continue
            real = os.path.realpath(place) if isinstance(place, Path) else str(place)
            if real in options:
                raise UsageError(f"{options[real]} and {option} are both {place}: give each a place of its own")
            options[real] = option

    def _run_session(self, scratch: Path, on_ready: Callable[[], None]) -> None:
        """Run the query in a new Spark session.

        :raises SparkEnded: Java has ended, and none of its micro-batches is being written any more.
        """
        config = self.config
        session = start_session(scratch, cores=config.cores, master=config.master, settings=config.settings)
        # Set our handlers again: Spark has replaced them by one that raises KeyboardInterrupt anywhere.
        self._catch_signals()
        try:
            if not self._stop_requested.is_set():
                self._run_query(session, on_ready)
        except IngestError:
            raise
        except Exception as error:
            ended = java_ended()
            if ended is None:
                raise
            # A thread that does not notice the end of Java may still be writing a micro-batch: wait for it.
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

        from ...source.options import Options
        from ..write.stream import MicroBatches
        from ..write.transform import columns_of, load
        from .upkeep import Upkeep

        config = self.config
        options = config.source_options()
        options["minPartitions"] = str(session.sparkContext.defaultParallelism)
        try:
            self._spools = Options(options).spools
            transform = load(config.transform) if config.transform else None
            silver = columns_of(session, transform) if transform else None
            batches = MicroBatches(session, options, transform=transform, silver=silver)
            self._writer = self._new_writer(batches.run, is_cluster(session.sparkContext.master or "local"), silver)
            self._silver_before = self._writer.tables["silver"].count()
            self._upkeep = Upkeep(config, on_stage=self._on_stage)
        except (OSError, DeltaError) as error:
            raise write_failure(error, config.tables) from error
        remove_first_plan_cut_short(config.checkpoint)
        writer = batches.stream().writeStream.foreachBatch(self._write_batch)
        writer = writer.option("checkpointLocation", str(config.checkpoint.absolute()))
        if config.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{config.interval_ms} milliseconds")
        query, starts = self._start(writer), 1
        self._state = "running"
        on_ready()
        try:
            while not self._stop_requested.wait(_POLL_S):
                if not query.isActive:
                    if starts == _STARTS or not began_too_slowly(query):
                        break
                    remark("a Python process took Spark too long to start; trying again")
                    query, starts = self._start(writer), starts + 1
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

    def _start(self, writer: "DataStreamWriter") -> "StreamingQuery":
        self._query = Future()
        query = writer.start()
        self._query.set_result(query)
        return query

    def _new_writer(
        self, run: "Callable[[DataFrame, Job], Reports]", on_cluster: bool, silver: "pa.Schema | None"
    ) -> "BatchWriter":
        from ..write.batch import BatchWriter

        config = self.config

        def on_open(tables: "Mapping[str, Delta]") -> None:
            require_checkpoint(config.checkpoint, tables["silver"].identity)
            claim(tables, config.tables, config.checkpoint)

        return BatchWriter(
            config.tables,
            config.checkpoint / "umqtt",
            buckets=config.buckets or (_CLUSTER_BUCKETS if on_cluster else config.cores),
            rules=config.rules,
            on_open=on_open,
            on_stage=self._on_stage,
            run=run,
            silver_schema=silver,
        )

    def _write_batch(self, frame: "DataFrame", batch_id: int) -> None:
        with self._writing, panics_as_errors(f"micro-batch {batch_id}"):
            self._write(frame, batch_id)

    def _write(self, frame: "DataFrame", batch_id: int) -> None:
        if self._stop_requested.is_set() or self._refuses_batches:
            # Spark may start the next micro-batch before it is told to stop. If this returned, Spark would commit it
            # although it was not written.
            raise StopBetweenBatches(f"stopping before micro-batch {batch_id}")
        from deltalake.exceptions import CommitFailedError, DeltaError

        assert self._writer is not None
        # The id is the checkpoint's, not this run's.
        query_id = self._query.result().id
        before = self._writer.totals.messages
        for delay_s in chain(_STORE_DELAYS_S, repeat(_STORE_DELAYS_S[-1])):
            try:
                self._writer.write(frame, batch_id, query_id)
                break
            except (OSError, DeltaError, StoreAway) as error:
                is_away = isinstance(error, StoreAway)
                failure = error if is_away else write_failure(error, self.config.tables)
                # If the answer to a commit was lost, the commit was repeated and conflicts with itself.
                passes = is_away or may_pass(error) or isinstance(error, CommitFailedError)
                if not isinstance(self.config.tables, StorePath) or not passes:
                    raise failure from error
                if delay_s == _STORE_DELAYS_S[0]:
                    remark(f"{failure.args[0].partition(';')[0]}; waiting for the store, nothing is lost")
            if self._stop_requested.wait(delay_s):
                raise StopBetweenBatches(f"stopping in micro-batch {batch_id}, which is repeated")
        # Spark counts no rows of a frame that is not read. Its progress may be one micro-batch behind.
        self._written = {batch_id: self._writer.totals.messages - before, **dict([*self._written.items()][:1])}

    def _observe(self, query: "StreamingQuery") -> None:
        """Update the status with the figures of the newest micro-batch and the lag."""
        from ...source.offsets import lag_behind

        progress = query.lastProgress
        if progress is None:
            return
        if messages := self._written.get(progress["batchId"]):
            self._last_batch_ms = int(progress["durationMs"]["triggerExecution"])
            self._rows_per_second = round(messages * 1000 / max(1, self._last_batch_ms))
        end = progress["sources"][0]["endOffset"]
        if end is not None:
            end = json.loads(end) if isinstance(end, str) else end
            self._note_read(end)
            assert self._spools is not None
            self._lag_bytes = sum(place["lagBytes"] for place in lag_behind(end, self._spools).values())
        if not self._lag_bytes:
            self._waiting_since_ms = None
        elif self._waiting_since_ms is None or progress["batchId"] != self._newest_batch:
            self._waiting_since_ms = time.time_ns() // 1_000_000
        self._newest_batch = progress["batchId"]

    def _note_read(self, end: dict[str, Any]) -> None:
        """Write the offset up to which messages are in the tables, for `umqtt spool retire`."""
        text = json.dumps(end)
        if text != self._read_up_to:
            # On a full disk the query fails by itself, with a better message.
            with suppress(OSError):
                replace_file(self.config.checkpoint / "umqtt" / READ_UP_TO, text.encode(), durable=False)
            self._read_up_to = text

    def _require_tables(self) -> None:
        """Check now and then that no other pipeline has taken over the tables, so that an idle one ends too.

        :raises TablesTaken: another pipeline has.
        """
        silver = self._writer.tables["silver"] if self._writer is not None else None
        if silver is not None and silver.writer is not None and time.monotonic() >= self._next_look:
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
