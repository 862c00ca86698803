"""The collector process: one or several collectors, with log, status file and metrics.

Each collector has a thread of its own, so that a sync of one does not hold up the others. Threads are enough, because
a collector mostly waits for its broker and its disk.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..metrics import MetricsServer
from ..spool.writer import Spool
from ..status import StatusFile
from .collector import Collector
from .config import CollectorConfig
from .journal import Journal
from .metrics import Figures

_SHOW_EVERY_S = 0.5


@dataclass(frozen=True)
class ProcessConfig:
    """The settings of a collector process.

    :ivar collectors: the settings of each collector.
    :ivar status: the status file, rewritten twice a second; None for none.
    :ivar metrics: the (host, port) that serves metrics to Prometheus; None for none.
    :ivar text: whether to write lines for people instead of JSON.
    """

    collectors: Sequence[CollectorConfig]
    status: Path | None = None
    metrics: tuple[str, int] | None = None
    text: bool = False


def run(config: ProcessConfig, *, open_spool: Callable[..., Spool] = Spool) -> None:
    """Run the collectors in this process until SIGTERM or SIGINT.

    :param open_spool: opens a spool; replaced in tests.
    :raises UsageError, SpoolDamaged: a collector could not start; then none of them runs.
    """
    for one in config.collectors:
        one.check()
    with ExitStack() as stack:
        # Spools are opened before anything runs, so that an error is one line and nothing was acknowledged yet.
        spools = [
            stack.enter_context(open_spool(one.folder, segment_bytes=one.segment_limit)) for one in config.collectors
        ]
        journal = Journal(as_text=config.text)
        collectors = [_collector(*pair, journal) for pair in zip(config.collectors, spools, strict=True)]
        crew = _Crew(collectors)
        _start_services(config, crew, journal, stack)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: crew.stop())
        crew.run(lambda: journal.show(crew.statuses()))
        for one in collectors:
            journal.event(one.config.name, "stopped", f"{one.counters.messages} messages made durable")


class _Crew:
    """A group of collectors that run and end together, each in its own thread."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = collectors
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run_one, args=(one,), name=one.config.name) for one in collectors
        ]

    def run(self, meanwhile: Callable[[], None]) -> None:
        """Run until all have ended, calling `meanwhile` twice a second; raise the first error of any collector."""
        for thread in self._threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in self._threads):
                meanwhile()
                self._ended.wait(_SHOW_EVERY_S)
                self._ended.clear()
        finally:
            self.stop()
            for thread in self._threads:
                thread.join()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ask all collectors to drain and end."""
        for one in self._collectors:
            one.stop()

    def statuses(self) -> list[Mapping[str, object]]:
        """Return each collector's status, with ``max_spool_bytes`` added."""
        return [{**one.status(), "max_spool_bytes": one.config.max_spool_bytes} for one in self._collectors]

    def _run_one(self, one: Collector) -> None:
        try:
            one.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread, with its traceback
            self._failure = self._failure or error
            self.stop()
        finally:
            self._ended.set()


def _collector(config: CollectorConfig, spool: Spool, journal: Journal) -> Collector:
    def say_subscribed() -> None:
        try:
            # Text and newline are one write, because several threads print.
            print(f"subscribed {config.name}\n", end="", flush=True)
        except OSError:
            # The pipe is closed. Discard what is buffered, or Python reports the error again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return Collector(
        config,
        spool,
        on_subscribed=say_subscribed,
        report=lambda event, line: journal.event(config.name, event, line),
    )


def _start_services(config: ProcessConfig, crew: _Crew, journal: Journal, stack: ExitStack) -> None:
    if config.metrics is not None:
        metrics = MetricsServer(*config.metrics, Figures(crew.statuses))
        stack.callback(metrics.close)
        journal.event("", "started", f"metrics on http://{config.metrics[0]}:{metrics.port}/metrics")
    status = StatusFile(config.status, lambda: _status(crew.statuses()))
    stack.callback(status.close)


def _status(statuses: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return the one collector's status; for several, the statuses by name with the sums of messages and bytes."""
    if len(statuses) == 1:
        return statuses[0]
    return {
        "collectors": {str(status["name"]): status for status in statuses},
        **{key: sum(int(str(status[key])) for status in statuses) for key in ("messages", "bytes")},
    }
