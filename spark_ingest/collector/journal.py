"""The log of a collector process: a live table on a terminal, JSON lines everywhere else.

Each JSON line has ``time`` (ISO 8601, UTC), ``level`` (info, warning, error), ``event``, ``collector`` and
``message``. The event ``figures``, written once a minute, has the counters instead of a message. The level error is
an alarm: somebody has to act.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ..escape import printable

Status = Mapping[str, object]

_INFO = frozenset({"started", "subscribed", "one_cluster", "resumed", "stopped", "figures"})
_ALARMS = frozenset(
    {
        "session_lost",
        "session_expires",
        "broker_changed",
        "not_one_cluster",
        "takeover",
        "refused",
        "unusable",
        "spool_error",
        "waiting",
    }
)
_FIGURES_EVERY_S = 60.0
_RATE_OVER_S = 2.0


def level(event: str) -> str:
    """Return the level of an event: info, warning or error."""
    return "info" if event in _INFO else "error" if event in _ALARMS else "warning"


class JsonJournal:
    """A log of JSON lines on standard error; several threads may write to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = time.monotonic() + _FIGURES_EVERY_S

    def event(self, collector: str, event: str, message: str) -> None:
        """Write one line for an event of a collector."""
        self._write({"level": level(event), "event": event, "collector": collector, "message": message})

    def show(self, statuses: Sequence[Status]) -> None:
        """Write the figures of every collector if a minute has passed; called about twice a second."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _FIGURES_EVERY_S
            for status in statuses:
                self._write({"level": "info", "event": "figures", "collector": status["name"], **status})

    def close(self) -> None:
        """Do nothing."""

    def _write(self, content: dict[str, object]) -> None:
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **content})
        # A log that cannot be written, because of a full disk or a closed pipe, must not stop the collector.
        with self._lock, contextlib.suppress(OSError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


class TerminalJournal:
    """A live table on a terminal, with a line above it for each event."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._rates = _Rates()
        # Standard output is not redirected: the program that started this one reads "subscribed NAME" from it.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def event(self, collector: str, event: str, message: str) -> None:
        """Print one line for an event of a collector."""
        colour = {"info": "green", "warning": "yellow", "error": "bold red"}[level(event)]
        clock = datetime.now().strftime("%H:%M:%S")
        self._console.print(
            f"{clock} [{colour}]{escape(collector)}[/] {event}: {escape(printable(message))}",
            soft_wrap=True,
            highlight=False,
        )

    def show(self, statuses: Sequence[Status]) -> None:
        """Draw the newest figures."""
        self._live.update(self._table(statuses), refresh=True)

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()

    def _table(self, statuses: Sequence[Status]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("collector", "state"):
            table.add_column(heading, no_wrap=True)
        for heading in ("messages", "msg/s", "a group", "ms a sync", "spool"):
            table.add_column(heading, justify="right", no_wrap=True)
        for status in statuses:
            messages, groups = _whole(status["messages"]), _whole(status["groups"])
            rate, group, sync_ms = self._rates.of(status)
            table.add_row(
                escape(str(status["name"])),
                state(status),
                f"{messages:,}",
                f"{rate:,.0f}",
                f"{group:,.0f}" if groups else "",
                f"{sync_ms:.1f}" if groups else "",
                f"{_whole(status['spool_bytes']) / 1e6:,.1f} MB",
            )
        return table


class _Rates:
    """Messages per second, messages per group and ms per sync of each collector, averaged over at least 2 s."""

    def __init__(self) -> None:
        self._before: dict[object, tuple[float, int, int, float]] = {}
        self._shown: dict[object, tuple[float, float, float]] = {}

    def of(self, status: Status) -> tuple[float, float, float]:
        name, now = status["name"], time.monotonic()
        messages, groups = _whole(status["messages"]), _whole(status["groups"])
        seconds = float(str(status["append_seconds"]))
        then, before, groups_before, seconds_before = self._before.setdefault(name, (now, messages, groups, seconds))
        if now - then >= _RATE_OVER_S:
            self._before[name] = (now, messages, groups, seconds)
            more = groups - groups_before
            self._shown[name] = (
                (messages - before) / (now - then),
                (messages - before) / more if more else 0.0,
                1000 * (seconds - seconds_before) / more if more else 0.0,
            )
        return self._shown.get(name, (0.0, 0.0, 0.0))


def state(status: Status) -> str:
    """Return a collector's state in a word or two, with rich markup."""
    if status["waiting"]:
        return "[bold red]no room[/]"
    if status["subscribed"]:
        return "[green]collecting[/]"
    return "[yellow]connecting[/]"


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
