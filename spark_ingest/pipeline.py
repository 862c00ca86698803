"""The pipeline: from a collector's spool to the tables ``silver`` and ``quarantine``. ::

    python -m spark_ingest.pipeline --spool spool --tables tables --checkpoint checkpoint

prints ``ready`` on standard output once the query runs. SIGTERM and SIGINT let the micro-batch in progress
finish, stop Spark and exit with 0. ``--once`` takes what is there now and exits. ``--json`` prints the
status as the last line.

``--status FILE`` has these keys:

=================  =====================================================================================
state              starting, running, stopping, stopped or failed
batches            micro-batches since the start
messages           MQTT messages in them
rows_silver        rows appended to silver
rows_quarantined   rows appended to quarantine
duplicates         readings that silver already had
boots, open_gaps   size of the deduplication state: boots known, and ranges of seq that are missing
last_batch_ms      duration of the newest micro-batch with messages, milliseconds, all in all
rows_per_second    messages a second in it
lag_bytes          spool bytes that are durable and not yet in the tables
updated_ms         Unix milliseconds of this status
=================  =====================================================================================
"""

import argparse
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .durable import replace_file
from .errors import IngestError, UsageError
from .session import require_java, start_session
from .status import StatusFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .batch import BatchWriter

_POLL_S = 0.25
_STOP_PATIENCE_S = 60.0


@dataclass(frozen=True)
class PipelineConfig:
    """What a pipeline is started with; `interval_ms` is the time between the beginnings of micro-batches."""

    spool: Path
    tables: Path
    checkpoint: Path
    once: bool = False
    interval_ms: int = 500
    max_rows: int = 500_000
    cores: int = 2
    allow_data_loss: bool = False


class Pipeline:
    """One query and what is told about it.

    :param on_stage: see :class:`spark_ingest.batch.BatchWriter`.
    """

    def __init__(self, config: PipelineConfig, *, on_stage: Callable[[str], None] = lambda _stage: None) -> None:
        self.config = config
        self._on_stage = on_stage
        self._state = "starting"
        self._stop_requested = threading.Event()
        self._writer: BatchWriter | None = None
        self._query_id: str | None = None
        self._last_batch_ms = 0
        self._rows_per_second = 0
        self._lag_bytes: int | None = None

    def stop(self) -> None:
        """Ask :meth:`run` to finish the micro-batch in progress and return; for signal handlers too."""
        self._stop_requested.set()

    def status(self) -> dict[str, object]:
        """The keys of the status file."""
        totals = asdict(self._writer.totals) if self._writer else {}
        return {
            "state": self._state,
            **totals,
            "last_batch_ms": self._last_batch_ms,
            "rows_per_second": self._rows_per_second,
            "lag_bytes": self._lag_bytes,
        }

    def run(self, on_ready: Callable[[], None]) -> None:
        """Run until stopped, or until everything is read with ``once``.

        :raises IngestError: it could not start, or the query failed.
        """
        config = self.config
        for folder in (config.tables, config.checkpoint):
            _require_writable(folder)
        if not config.spool.is_dir():
            raise UsageError(f"the spool folder {config.spool} does not exist: give the collector's --spool")
        self._catch_signals()
        with _Lock(config.checkpoint):
            scratch = Path(tempfile.mkdtemp(prefix="umqtt-ingest-"))
            try:
                session = start_session(scratch, cores=config.cores)
                # Again: Spark has put a handler in the place of ours that raises KeyboardInterrupt anywhere.
                self._catch_signals()
                try:
                    if not self._stop_requested.is_set():
                        self._run_query(session, on_ready)
                finally:
                    _stop_session(session)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    def _catch_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())

    def _run_query(self, session: "SparkSession", on_ready: Callable[[], None]) -> None:
        from .batch import MESSAGE_COLUMNS, BatchWriter
        from .source import MqttDataSource

        config = self.config
        self._writer = BatchWriter(config.tables, config.checkpoint / "umqtt", on_stage=self._on_stage)
        session.dataSource.register(MqttDataSource)
        messages = (
            session.readStream.format("mqtt")
            .option("path", str(config.spool.absolute()))
            .option("failOnDataLoss", str(not config.allow_data_loss).lower())
            .option("maxOffsetsPerTrigger", config.max_rows)
            .load()
            .select(*MESSAGE_COLUMNS)
        )
        writer = messages.writeStream.foreachBatch(self._write_batch)
        writer = writer.option("checkpointLocation", str(config.checkpoint.absolute()))
        if config.once:
            query = writer.trigger(availableNow=True).start()
        else:
            query = writer.trigger(processingTime=f"{config.interval_ms} milliseconds").start()
        self._state = "running"
        on_ready()
        while query.isActive and not self._stop_requested.wait(_POLL_S):
            self._observe(query)
        if self._stop_requested.is_set():
            self._state = "stopping"
            self._stop_between_batches(query)
        else:
            self._observe(query)
        self._raise_failure(query)
        self._state = "stopped"

    def _write_batch(self, frame: "DataFrame", batch_id: int) -> None:
        if self._stop_requested.is_set():
            # Spark asks for the next micro-batch before it can be told to stop. Returning would commit it
            # unwritten.
            raise _StopBetweenBatches(f"stopping before micro-batch {batch_id}")
        assert self._writer is not None
        # Spark writes this file before the first micro-batch; the id is the checkpoint's, not this run's.
        query_id = self._query_id or json.loads((self.config.checkpoint / "metadata").read_bytes())["id"]
        self._query_id = query_id
        self._writer.write(frame.toArrow(), batch_id, query_id)

    def _observe(self, query: "StreamingQuery") -> None:
        """Take the figures of the newest micro-batch, and the lag."""
        from .offsets import SpoolTree, bytes_between

        progress = query.lastProgress
        if progress is None:
            return
        if progress["numInputRows"]:
            self._last_batch_ms = int(progress["durationMs"]["triggerExecution"])
            self._rows_per_second = round(progress["numInputRows"] * 1000 / max(1, self._last_batch_ms))
        end = progress["sources"][0]["endOffset"]
        if end is not None:
            end = json.loads(end) if isinstance(end, str) else end
            self._lag_bytes = bytes_between(end, SpoolTree(self.config.spool).latest(), self.config.spool)

    def _stop_between_batches(self, query: "StreamingQuery") -> None:
        deadline = time.monotonic() + _STOP_PATIENCE_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.02)
        self._observe(query)
        query.stop()

    def _raise_failure(self, query: "StreamingQuery") -> None:
        failure = query.exception()
        if failure is None or _StopBetweenBatches.__name__ in str(failure):
            return
        self._state = "failed"
        text = str(failure)
        own = _own_error(text)
        if own is not None:
            raise IngestError(f"the query stopped: {own}")
        details = self.config.checkpoint / "umqtt" / "failure.txt"
        replace_file(details, text.encode())
        raise IngestError(f"the query stopped: {text.strip().splitlines()[0]}; all of it is in {details}")


class _StopBetweenBatches(Exception):
    """Refuses a micro-batch while the pipeline stops."""


class _Lock:
    """One pipeline a checkpoint: two would write each other's progress files."""

    def __init__(self, checkpoint: Path) -> None:
        self._path = checkpoint / "umqtt.lock"

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise UsageError(
                f"the checkpoint {self._path.parent} is in use by another pipeline: stop it, or choose another"
            ) from None

    def __exit__(self, *_exc: object) -> None:
        os.close(self._fd)


def _own_error(text: str) -> str | None:
    """The message of one of this package's errors inside a Spark exception's text; None when there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith("spark_ingest.errors."):
            return line.split(": ", 1)[-1]
    return None


def _require_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; choose another folder") from error


def _stop_session(session: "SparkSession") -> None:
    """Stop Spark and its Java process: `stop()` alone would leave Java running until this process ends."""
    gateway = session.sparkContext._gateway
    session.stop()
    if gateway is None:
        return
    java = getattr(gateway, "proc", None)
    gateway.shutdown()
    if java is not None:
        # Java ends when its standard input does.
        java.stdin.close()
        java.wait(timeout=30)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m spark_ingest.pipeline", description="a collector's spool to Delta tables"
    )
    option = parser.add_argument
    option("--spool", required=True, type=Path, metavar="DIR", help="folder of all spools")
    option("--tables", required=True, type=Path, metavar="DIR", help="folder of the tables silver and quarantine")
    option("--checkpoint", required=True, type=Path, metavar="DIR", help="folder of the query's progress")
    option("--once", action="store_true", help="read what is there now, then exit")
    option(
        "--interval-ms",
        type=int,
        default=500,
        metavar="MS",
        help="between micro-batches (default %(default)s)",
    )
    option(
        "--max-rows",
        type=int,
        default=500_000,
        metavar="N",
        help="messages a micro-batch (default %(default)s)",
    )
    option("--cores", type=int, default=2, metavar="N", help="Spark's threads (default %(default)s)")
    option("--allow-data-loss", action="store_true", help="go on when messages of the spool are gone")
    option("--status", type=Path, metavar="FILE", help="rewrite FILE with one JSON object twice a second")
    option("--json", action="store_true", help="print the status as the last line")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, *, on_stage: Callable[[str], None] = lambda _stage: None) -> int:
    """The command; returns the exit code."""
    given = _arguments(argv)
    try:
        require_java()
        config = PipelineConfig(
            spool=given.spool,
            tables=given.tables,
            checkpoint=given.checkpoint,
            once=given.once,
            interval_ms=given.interval_ms,
            max_rows=given.max_rows,
            cores=given.cores,
            allow_data_loss=given.allow_data_loss,
        )
        pipeline = Pipeline(config, on_stage=on_stage)
        status = StatusFile(given.status, pipeline.status)
        try:
            pipeline.run(lambda: print("ready", flush=True))
        finally:
            status.close()
    except IngestError as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return error.exit_code
    if given.json:
        print(json.dumps(pipeline.status()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
