"""The live display of the pipeline: a panel on a terminal, otherwise a line from time to time.

The display is written to the given console, which is standard error; standard output has only the line ``ready`` and
the result. :meth:`Live.say` prints lines on standard output without corrupting a panel on the same terminal.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import zip_longest

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..escape import printable, without_colours
from .stderr_capture import Remarks

Status = Mapping[str, object]
"""What :meth:`Pipeline.status` returns; missing keys are shown as none."""

PANEL_S = 0.25
LOOK_S = 1.0
LINE_S = 10.0
IDLE_LINE_S = 60.0
"""Seconds between lines while nothing changes: more than LINE_S, so that a service's log stays readable."""
_RATE_OVER_S = 5.0
_HISTORY = 30
_WIDTH = 66
_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#%"
_NONE = "-"
_MOVES = ("state", "messages", "rows_silver", "rows_quarantined", "duplicates", "open_gaps", "alerts")


class Live:
    """The display of ``status()`` until :meth:`stop`; the last state stays on the terminal, unless it is "starting".

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
        self._remarks: Remarks | None = None
        self._wanted = console.is_terminal and not console.is_dumb_terminal
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)
        self._spinner = Spinner("line" if console.options.ascii_only else "dots", style="cyan")

    def start(self) -> None:
        """Show the first state and keep the display up to date."""
        if self._wanted:
            if self._console.stderr:
                self._remarks = Remarks(self._remark)
                self._console.file = self._remarks.terminal
            with self._lock:
                self._show()
        self._thread.start()

    def stop(self) -> None:
        """Show the last state and end the display."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        # A pipeline that never began to run ends with an error, so its state need not be shown.
        status = self._status()
        began = _began(status)
        if self._wanted:
            if self._remarks is not None:
                self._remarks.close()
            with self._lock:
                if self._panel is not None:
                    self._lift(keep=began)
        elif began:
            self._line(status)

    def say(self, line: str) -> None:
        """Print a line on standard output, above the panel if both are on the same terminal."""
        with self._lock:
            lifted = self._panel is not None and sys.stdout.isatty()
            if lifted:
                self._lift(keep=False)
            print(line, flush=True)
            if lifted:
                self._show()

    def _run(self) -> None:
        if self._wanted:
            while not self._ended.wait(PANEL_S):
                with self._lock:
                    if self._panel is not None:
                        self._panel.update(self._picture(), refresh=True)
            return
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

    def _remark(self, text: str) -> None:
        """Print a line that was written to standard error above the panel."""
        with self._lock:
            self._console.print(Text(printable(without_colours(text))), soft_wrap=True)

    def _show(self) -> None:
        # Do not redirect standard output: it may be a pipe whose reader waits for "ready". Remarks redirects standard
        # error, including Java's lines.
        self._panel = RichLive(
            self._picture(), console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._panel.start(refresh=True)

    def _lift(self, *, keep: bool) -> None:
        assert self._panel is not None
        if keep:
            self._panel.update(self._picture())
        self._panel.transient = not keep
        self._panel.stop()
        self._panel = None

    def _line(self, status: Status) -> None:
        self._rate.take(status)
        self._console.print(line(status, self._rate.per_second), soft_wrap=True, markup=False, highlight=False)

    def _picture(self) -> RenderableType:
        status = self._status()
        self._rate.take(status)
        bars = _ASCII_BARS if self._console.options.ascii_only else _BARS
        return panel(status, self._rate.per_second, sparkline(self._rate.history, bars), self._spinner)


class Rate:
    """The rate of messages per second over the last seconds, and its history, one value per second."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self.history: deque[float] = deque(maxlen=_HISTORY)
        self._noted = clock()

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
        if now - self._noted >= 1.0:
            self._noted = now
            self.history.append(self.per_second or 0.0)


def line(status: Status, rate: float | None) -> str:
    """Return the status as one plain line for logs.

    :param rate: messages per second.
    """
    parts = [f"ingest {_speed(status, rate)}"]
    parts += [f"{name} {value}" for name, value, _ in _figures(status)]
    return ", ".join(parts)


def panel(status: Status, rate: float | None, history: str, spinner: Spinner) -> RenderableType:
    """Return the status as a panel for a terminal.

    :param rate: messages per second.
    :param history: the sparkline of earlier rates.
    :param spinner: shown while the pipeline starts or stops.
    """
    state = str(status.get("state", "starting"))
    body = Table.grid(padding=(0, 1))
    if state in ("starting", "stopping"):
        body.add_row(spinner, "starting Spark" if state == "starting" else "finishing the micro-batch")
    else:
        style = {"running": "bold green", "failed": "bold red"}.get(state, "bold")
        body.add_row(Text(_speed(status, rate), style=style), Text(history, style="cyan"))
    parts: list[RenderableType] = [body]
    if state != "starting":
        parts.append(_figures_table(status))
    return Panel(Group(*parts), title="umqtt ingest", title_align="left", box=box.ROUNDED, width=_WIDTH, padding=(0, 2))


def _figures_table(status: Status) -> Table:
    """Return a table of the figures, two per row."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(style="dim")
        table.add_column(justify="right", min_width=13)
    cells = [(name, Text(value, style=style or "default")) for name, value, style in _figures(status)]
    for left, right in zip_longest(cells[::2], cells[1::2], fillvalue=("", Text())):
        table.add_row(*left, *right)
    return table


def sparkline(values: "deque[float]", bars: str = _BARS) -> str:
    """Return the values as a row of bars; the highest value has a full bar."""
    top = max(values, default=0.0)
    return "".join(bars[round(value / top * (len(bars) - 1))] if top else bars[0] for value in values)


def _figures(status: Status) -> list[tuple[str, str, str]]:
    """Return name, value and rich style of every figure; figures that need attention have a colour."""
    batch_ms = _number(status, "last_batch_ms")
    lag = _number(status, "lag_bytes")
    rows = [
        ("lag", _NONE if lag is None else _bytes(lag), ""),
        ("rows in silver", _count(status, "rows_silver"), ""),
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


def _began(status: Status) -> bool:
    return status.get("state", "starting") != "starting"


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
