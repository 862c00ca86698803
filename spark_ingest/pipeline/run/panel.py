"""The live display of the pipeline: rich's live panel on a terminal, otherwise a line from time to time.

The display is written to the given console, which is standard error; standard output has only the line ``ready`` and
the result.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import zip_longest

from rich import box
from rich.console import Console, RenderableType
from rich.live import Live as RichLive
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

Status = Mapping[str, object]
"""What :meth:`Pipeline.status` returns; missing keys are shown as none."""

PANELS_PER_SECOND = 4.0
LOOK_S = 1.0
LINE_S = 10.0
IDLE_LINE_S = 60.0
"""Seconds between lines while nothing changes: more than LINE_S, so that a service's log stays readable."""
_RATE_OVER_S = 5.0
_WIDTH = 66
_NONE = "-"
_MOVES = ("state", "messages", "rows_silver", "rows_quarantined", "duplicates", "open_gaps", "alerts")


class Live:
    """The display of ``status()`` from :meth:`ready` until :meth:`stop`; the last state stays on the terminal.

    :param console: where to write: a panel on a terminal that can move its cursor, else plain lines.
    :param status: returns the pipeline's status; it is called in a separate thread and must only read.
    :param clock: monotonic clock, in seconds.
    """

    def __init__(
        self, console: Console, status: Callable[[], Status], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._status = status
        self._clock = clock
        self._rate = Rate(clock)
        self._panel: RichLive | None = None
        self._wanted = console.is_terminal and not console.is_dumb_terminal
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._lines, name="live", daemon=True)

    def start(self) -> None:
        """Say that Spark starts, which takes seconds; without a terminal, begin with the lines."""
        if self._wanted:
            # There is no panel yet, because Java itself writes to the terminal when it starts.
            self._console.print("umqtt ingest: starting Spark", style="dim", highlight=False)
        else:
            self._thread.start()

    def ready(self) -> None:
        """Print ``ready`` on standard output, also if Spark was started again, and show the panel."""
        print("ready", flush=True)
        if self._wanted and self._panel is None:
            self._panel = RichLive(
                console=self._console,
                get_renderable=self._picture,
                refresh_per_second=PANELS_PER_SECOND,
                # A pipe has a reader, who waits for "ready" there.
                redirect_stdout=sys.stdout.isatty(),
            )
            self._panel.start(refresh=True)

    def stop(self) -> None:
        """Show the last state and end the display."""
        if self._panel is not None:
            self._panel.stop()
            self._panel = None
        elif not self._ended.is_set() and not self._wanted:
            self._ended.set()
            self._thread.join()
            status = self._status()
            # A pipeline that never began to run ends with an error, so its state need not be shown.
            if status.get("state", "starting") != "starting":
                self._line(status)

    def _lines(self) -> None:
        said, before = self._clock(), None
        while not self._ended.wait(LOOK_S):
            status = self._status()
            self._rate.take(status)
            if status.get("state") not in ("running", "stopping"):
                continue  # stop() prints the last state.
            now = self._clock()
            moved = {name: status.get(name) for name in _MOVES}
            if now - said >= (LINE_S if moved != before else IDLE_LINE_S):
                self._line(status)
                said, before = now, moved

    def _line(self, status: Status) -> None:
        self._rate.take(status)
        self._console.print(line(status, self._rate.per_second), soft_wrap=True, markup=False, highlight=False)

    def _picture(self) -> RenderableType:
        status = self._status()
        self._rate.take(status)
        return panel(status, self._rate.per_second)


class Rate:
    """The rate of messages per second over the last seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()

    @property
    def per_second(self) -> float | None:
        """The current rate; None until there are two samples at different times."""
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began) if ended > began else None

    def take(self, status: Status) -> None:
        """Record the current count of messages."""
        now, messages = self._clock(), _number(status, "messages")
        if messages is None:
            return
        self._samples.append((now, messages))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _RATE_OVER_S:
            self._samples.popleft()


def line(status: Status, rate: float | None) -> str:
    """Return the status as one plain line for logs.

    :param rate: messages per second.
    """
    parts = [f"ingest {_speed(status, rate)}"]
    parts += [f"{name} {value}" for name, value, _ in _figures(status)]
    return ", ".join(parts)


def panel(status: Status, rate: float | None) -> RenderableType:
    """Return the status as a panel for a terminal: the state, and the figures, two per row.

    :param rate: messages per second.
    """
    style = {"running": "bold green", "failed": "bold red"}.get(str(status.get("state")), "bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(style="dim")
        table.add_column(justify="right", min_width=13)
    cells = [(name, Text(value, style=style or "default")) for name, value, style in _figures(status)]
    for left, right in zip_longest(cells[::2], cells[1::2], fillvalue=("", Text())):
        table.add_row(*left, *right)
    title = Text.assemble("umqtt ingest ", (_speed(status, rate), style))
    return Panel(table, title=title, title_align="left", box=box.ROUNDED, width=_WIDTH, padding=(0, 2))


def _figures(status: Status) -> list[tuple[str, str, str]]:
    """Return name, value and rich style of every figure; figures that need attention have a colour."""
    batch_ms = _number(status, "last_batch_ms")
    lag = _number(status, "lag_bytes")
    rows = [
        ("lag", _NONE if lag is None else _bytes(lag), ""),
        ("rows in silver", _count(status, "rows_in_silver"), ""),
        ("last batch", f"{batch_ms:,} ms" if batch_ms else _NONE, ""),
        ("duplicates", _count(status, "duplicates"), ""),
        ("quarantined", _count(status, "rows_quarantined"), _warn(status, "rows_quarantined", "yellow")),
        ("open gaps", _count(status, "open_gaps"), _warn(status, "open_gaps", "yellow")),
    ]
    if status.get("alerts") is not None:  # None without gold.
        gold_ms = _number(status, "gold_ms")
        rows.append(("gold update", _NONE if gold_ms is None else f"{gold_ms:,} ms", ""))
        rows.append(("open alerts", _count(status, "alerts"), _warn(status, "alerts", "bold red")))
    return rows


def _speed(status: Status, rate: float | None) -> str:
    """Return the state with the rate, or with the number of messages if the pipeline is not running."""
    if status.get("state") == "running":
        return f"running, {_NONE if rate is None else f'{rate:,.0f}'} messages/s"
    return f"{status.get('state', 'starting')}, {_count(status, 'messages')} messages"


def _warn(status: Status, name: str, style: str) -> str:
    return style if _number(status, name) else ""


def _number(status: Status, name: str) -> int | None:
    value = status.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _count(status: Status, name: str) -> str:
    value = _number(status, name)
    return _NONE if value is None else f"{value:,}"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
