"""The live display of the pipeline: rich's live table on a terminal, otherwise a line from time to time.

The display is written to the given console, which is standard error; standard output has only the line ``ready`` and
the result.
"""

import sys
import threading
from collections.abc import Callable, Mapping

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.live import Live as RichLive
from rich.table import Table

Status = Mapping[str, object]
"""What :meth:`Pipeline.status` returns; missing keys are shown as none."""

LINE_S = 10.0
"""Seconds between two lines where there is no terminal; a line that says nothing new is left out."""
_FIGURES = (
    ("messages", "messages", ""),
    ("lag", "lag_bytes", ""),
    ("rows in silver", "rows_in_silver", ""),
    ("last batch ms", "last_batch_ms", ""),
    ("messages/s in it", "rows_per_second", ""),
    ("duplicates", "duplicates", ""),
    ("quarantined", "rows_quarantined", "yellow"),
    ("open gaps", "open_gaps", "yellow"),
    ("gold update ms", "gold_ms", ""),
    ("open alerts", "alerts", "bold red"),
)
"""Name, key of the status, and colour of a figure above 0."""


class Live:
    """The display of ``status()`` from :meth:`ready` until :meth:`stop`; the last state stays on the terminal.

    :param console: where to write: a table on a terminal that can move its cursor, else plain lines.
    :param status: returns the pipeline's status; it is called in a separate thread and must only read.
    """

    def __init__(self, console: Console, status: Callable[[], Status]) -> None:
        self._console = console
        self._status = status
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        # A pipe has a reader, who waits for "ready" there.
        redirect = sys.stdout.isatty()
        self._live = RichLive(console=console, get_renderable=lambda: table(status()), redirect_stdout=redirect)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._lines, name="live", daemon=True)

    def start(self) -> None:
        """Say that Spark starts, which takes seconds; without a terminal, begin with the lines."""
        if self._is_live:
            # There is no table yet, because Java itself writes to the terminal when it starts.
            self._console.print("umqtt ingest: starting Spark", style="dim", highlight=False)
        else:
            self._thread.start()

    def ready(self) -> None:
        """Print ``ready`` on standard output, also if Spark was started again, and show the table."""
        print("ready", flush=True)
        if self._is_live:
            self._live.start(refresh=True)

    def stop(self) -> None:
        """Show the last state and end the display."""
        if self._is_live:
            self._live.stop()
            return
        self._ended.set()
        self._thread.join()
        # A pipeline that never began to run ends with an error, so its state need not be shown.
        if (status := self._status()).get("state", "starting") != "starting":
            self._print(line(status))

    def _lines(self) -> None:
        shown = ""
        while not self._ended.wait(LINE_S):
            status = self._status()
            if status.get("state") == "running" and (text := line(status)) != shown:
                self._print(text)
                shown = text

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


def line(status: Status) -> str:
    """Return the status as one plain line for logs."""
    return ", ".join([_state(status), *(f"{name} {value}" for name, value, _ in _figures(status))])


def table(status: Status) -> Table:
    """Return the status as a table for a terminal."""
    rows = Table(title=f"umqtt {_state(status)}", title_justify="left", box=box.ROUNDED, show_header=False)
    rows.add_column()
    rows.add_column(justify="right", min_width=13)
    for name, value, style in _figures(status):
        rows.add_row(name, value, style=style or None)
    return rows


def _state(status: Status) -> str:
    return f"ingest {status.get('state', 'starting')}"


def _figures(status: Status) -> list[tuple[str, str, str]]:
    """Return name, value and rich style of every figure; figures that need attention have a colour."""
    # Without gold its two figures are null.
    shown = _FIGURES if status.get("alerts") is not None else _FIGURES[:-2]
    return [(name, _text(key, status.get(key)), style if status.get(key) else "") for name, key, style in shown]


def _text(key: str, value: object) -> str:
    if not isinstance(value, int):
        return "-"
    return decimal(value) if key == "lag_bytes" else f"{value:,}"
