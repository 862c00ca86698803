"""Output for the user: results on stdout, everything else on stderr; progress only on a terminal.

All output functions escape characters that do not print, since devices and brokers choose names, answers and reasons.
rich itself honours NO_COLOR and TERM=dumb.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment

from umqtt_cli.errors import EXIT_USAGE, KitError, ReaderGone
from umqtt_cli.escape import printable

if TYPE_CHECKING:
    from rich.table import Table

# In columns: more than any table needs.
_WIDEST = 10_000
# The consoles of live displays. Lines for people go through the newest, which prints them above its display.
_displays: list[Console] = []


class _Console(Console):
    """A console that does not read text as markup, so that all colours are those of this program."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, text.split("\n"))), style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, but cut no word of a table: a terminal that is too narrow wraps its lines."""
        # Imported here, since not every command prints.
        from rich.measure import Measurement
        from rich.table import Table

        for table in objects:
            if isinstance(table, Table):
                needed = Measurement.get(self, self.options.update(max_width=_WIDEST), table).minimum
                self.size = ConsoleDimensions(max(self.width, needed), self.height)
        super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        raise  # re-raises the BrokenPipeError that rich is handling; rich itself would exit with 1


def results() -> Console:
    """Return the console for the result of a command. Piped into a file, it prints plain text."""
    console = _Console()
    return console if console.is_terminal else _Console(width=200)


def notes() -> Console:
    """Return the console for progress and remarks: stderr, so that stdout holds only the result."""
    return _displays[-1] if _displays else _Console(stderr=True)


def say(line: str) -> None:
    """Print one line on stderr, on a terminal or not."""
    notes().print(printable(line), soft_wrap=True)


def print_result(line: str) -> None:
    """Print one line of the result on stdout."""
    click.echo(printable(line))


def table(titles: Iterable[str], rows: Iterable[Iterable[str]], numbers: Container[str] = ()) -> Table:
    """Return a table of text. numbers: titles of the columns that are aligned to the right."""
    from rich.table import Table

    made = Table(box=None, header_style="bold")
    for title in titles:
        made.add_column(title, justify="right" if title in numbers else "left")
    for row in rows:
        made.add_row(*map(printable, row))
    return made


def print_table(titles: Iterable[str], rows: Iterable[Iterable[str]], numbers: Container[str] = ()) -> None:
    """Print a table() on stdout."""
    results().print(table(titles, rows, numbers))


@contextlib.contextmanager
def live_display() -> Iterator[Callable[[RenderableType], None] | None]:
    """Yield a function that shows something on the terminal in place of what it showed before; None without a terminal.

    The terminal is redrawn a few times a second, however often the function is called. At the end nothing stays.
    """
    console = notes()
    if not console.is_terminal:
        yield None
        return
    from rich.live import Live

    with _displayed(console), Live(console=console, transient=True) as live:
        yield live.update


@contextlib.contextmanager
def progress_bar(description: str, total: int | None, *, wanted: bool = True) -> Iterator[Callable[..., object]]:
    """Yield a function that adds bytes to a progress bar: by `advance`, with a new `description` or `total`.

    total: the bytes of a full bar; None if they are not known yet. Without a terminal, or unless it is `wanted`, the
    function does nothing.
    """
    console = notes()
    if not console.is_terminal or not wanted:
        yield lambda **_changes: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn()
    with _displayed(console), Progress(*columns, console=console) as progress:
        yield functools.partial(progress.update, progress.add_task(description, total=total))


@contextlib.contextmanager
def _displayed(console: Console) -> Iterator[None]:
    _displays.append(console)
    try:
        yield
    finally:
        _displays.remove(console)


def emit_json(values: object) -> bool:
    """Write one JSON value in ASCII to stdout now. Return False if nobody reads any more, like :func:`emit`."""
    return _emit(json.dumps(values))


def emit(line: str) -> bool:
    """Write one line to stdout now. Return False if nobody reads any more (`… | head`): then write no more."""
    return _emit(printable(line))


def _emit(line: str) -> bool:
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ReaderGone):
        _forget_output()
        return False
    return True


class _Output(io.FileIO):
    """The raw stdout: what it does not take ends the command, and nothing is written after that."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            _forget_output()
            raise ReaderGone from None
        except OSError as error:
            _forget_output()
            line = f"the output cannot be written: {error.strerror} — write it elsewhere"
            raise KitError(line, EXIT_USAGE) from error


def check_writing() -> None:
    """Have each write to stdout that fails raise ReaderGone, or KitError (exit code 2) for a full disk.

    It gets a buffer, also with PYTHONUNBUFFERED: nothing is shown later, because all code here flushes what it prints.
    """
    old = sys.stdout
    if old is not None:
        raw = io.BufferedWriter(_Output(old.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(
            raw, encoding=old.encoding, errors=old.errors, line_buffering=bool(old.line_buffering)
        )  # fmt: skip


def _forget_output() -> None:
    # Discards what is left in the buffer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
