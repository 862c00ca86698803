"""The collector process: one or several collectors, each in a thread of its own, and what is around them.

Threads, since a collector mostly waits for its broker and its disk; a sync of one must not hold up the others.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..spool import tokens
from ..spool.access import LocalSpools
from ..spool.writer import Spool
from ..status import StatusFile
from .collector import Collector
from .config import CollectorConfig
from .journal import JsonJournal, TerminalJournal
from .metrics import MetricsServer

if TYPE_CHECKING:
    from ..spool.server import SpoolServer

_SHOW_EVERY_S = 0.5

Journal = JsonJournal | TerminalJournal


@dataclass(frozen=True)
class ServeConfig:
    """How the spool tree is served.

    :ivar address: (host, port).
    :ivar token_file: of the token to read; None: the environment's ``UMQTT_SPOOL_TOKEN``.
    :ivar delete_token_file: of the token to delete; None: ``UMQTT_SPOOL_DELETE_TOKEN``, without which nobody may.
    :ivar cert: PEM of the certificate; :ivar key: of its private key; None: plain HTTP, on a loopback address only.
    """

    address: tuple[str, int]
    token_file: Path | None = None
    delete_token_file: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def start(self, spools: LocalSpools, report: Callable[[str], None]) -> "SpoolServer":
        """Serve `spools`. :raises UsageError: something does not fit together, or a file cannot be used."""
        # Not above: without --serve nothing needs it.
        from ..spool.server import SpoolServer, server_tls

        token = tokens.read_token(self.token_file, tokens.READ_VARIABLE)
        if token is None:
            raise UsageError(
                "--serve needs --serve-token-file (or UMQTT_SPOOL_TOKEN): a spool is not handed out to everybody"
            )
        if self.cert is None or self.key is None:
            if self.cert or self.key:
                raise UsageError("a certificate needs its key: give --serve-cert and --serve-key, or neither")
            tls = None
        else:
            tls = server_tls(self.cert, self.key)
        delete_token = tokens.read_token(self.delete_token_file, tokens.DELETE_VARIABLE)
        return SpoolServer(*self.address, spools, token, delete_token=delete_token, tls=tls, report=report)


@dataclass(frozen=True)
class ProcessConfig:
    """What is around the collectors.

    :ivar status: file that is rewritten twice a second.
    :ivar metrics: (host, port) where Prometheus may ask.
    :ivar serve: how the spool tree is served; None: not at all.
    :ivar terminal: whether to draw a live table instead of writing lines of JSON.
    """

    collectors: Sequence[CollectorConfig]
    status: Path | None = None
    metrics: tuple[str, int] | None = None
    serve: ServeConfig | None = None
    terminal: bool = False


def run(config: ProcessConfig, *, open_spool: Callable[..., Spool] = Spool) -> None:
    """Run the collectors in this process until SIGTERM or SIGINT.

    :param open_spool: replaced in tests.
    :raises UsageError, SpoolDamaged: one could not start; then none does.
    """
    for one in config.collectors:
        one.check()
    with ExitStack() as stack:
        # Before anything is started: an error here is one line, and no collector has acknowledged anything.
        spools = [
            stack.enter_context(open_spool(one.folder, segment_bytes=one.segment_limit)) for one in config.collectors
        ]
        journal: Journal = TerminalJournal() if config.terminal else JsonJournal()
        stack.callback(journal.close)
        collectors = [_collector(*pair, journal) for pair in zip(config.collectors, spools, strict=True)]
        crew = _Crew(collectors)
        _start_services(config, crew, journal, stack)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: crew.stop())
        crew.run(lambda: journal.show(crew.statuses()))
        for one in collectors:
            journal.event(one.config.name, "stopped", f"{one.counters.messages} messages made durable")


class _Crew:
    """Collectors that run and end together."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = collectors
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run_one, args=(one,), name=one.config.name) for one in collectors
        ]

    def run(self, meanwhile: Callable[[], None]) -> None:
        """Until all have ended; calls `meanwhile` twice a second. Raises what one of them raised."""
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
        """Ask all of them to drain and end."""
        for one in self._collectors:
            one.stop()

    def statuses(self) -> list[Mapping[str, object]]:
        """Each one's status, with its limit."""
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
            # One write: several threads say it.
            print(f"subscribed {config.name}\n", end="", flush=True)
        except OSError:
            # Who started this has read enough. What is left in the buffer must go nowhere, or it is told at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return Collector(
        config,
        spool,
        on_subscribed=say_subscribed,
        report=lambda event, line: journal.event(config.name, event, line),
    )


def _start_services(config: ProcessConfig, crew: _Crew, journal: Journal, stack: ExitStack) -> None:
    server = None
    if config.serve is not None:
        spools = LocalSpools(config.collectors[0].spool)
        server = config.serve.start(spools, lambda line: journal.event("", "serve", line))
        stack.callback(server.close)
        journal.event("", "started", f"serving spools on {server.url}")
    if config.metrics is not None:
        metrics = MetricsServer(*config.metrics, crew.statuses, None if server is None else server.counts)
        stack.callback(metrics.close)
        journal.event("", "started", f"metrics on http://{config.metrics[0]}:{metrics.port}/metrics")
    status = StatusFile(config.status, lambda: _status(crew.statuses()))
    stack.callback(status.close)


def _status(statuses: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """One collector's status as it is; several by name, with their sums of messages and bytes."""
    if len(statuses) == 1:
        return statuses[0]
    return {
        "collectors": {str(status["name"]): status for status in statuses},
        **{key: sum(int(str(status[key])) for status in statuses) for key in ("messages", "bytes")},
    }
