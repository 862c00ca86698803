"""What the user sees: results on stdout, everything else on stderr; progress only on a terminal.

Every way out makes visible what does not print, since names, answers and reasons are chosen by devices and brokers.
NO_COLOR and TERM=dumb are honoured by rich itself.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from spark_ingest.printable import printable
from umqtt_kit.errors import EXIT_USAGE, KitError, ReaderGone


class _Console(Console):
    """Takes no text for markup; colours are those of this program alone."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, text.split("\n"))), style)

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that rich is handling when it calls this: rich itself would exit with 1


def results() -> Console:
    """The console for what the command was asked for. Piped into a file it is plain text."""
    console = _Console()
    return console if console.is_terminal else _Console(width=200)


def notes() -> Console:
    """The console for progress and remarks: stderr, so that stdout holds the result alone."""
    return _Console(stderr=True)


def say(line: str) -> None:
    """One line on stderr, on a terminal or not."""
    notes().print(printable(line), soft_wrap=True)


def print_result(line: str) -> None:
    """One line of the result on stdout."""
    click.echo(printable(line))


def emit_json(values: object) -> bool:
    """Like :func:`emit`, one JSON value, in ASCII."""
    return _emit(json.dumps(values))


def emit(line: str) -> bool:
    """One line on stdout, now. False: nobody reads any more (`… | head`), and nothing more is to be written."""
    return _emit(printable(line))


def _emit(line: str) -> bool:
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        return False
    return True


def buffer_output() -> None:
    """Give stdout a buffer where PYTHONUNBUFFERED has taken it: check_output() looks there for what was not written.

    Nothing is shown later than without: whoever prints here flushes.
    """
    stdout = sys.stdout
    if stdout is not None and isinstance(stdout.buffer, io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115 - for the life of the process
            stdout.fileno(), "w", encoding=stdout.encoding, errors=stdout.errors, closefd=False
        )


def check_output() -> None:
    """Whether stdout has taken everything. Raises ReaderGone, or KitError (exit code 2) for a full disk."""
    try:
        # A buffer that could not be written is kept, and fails again.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        raise ReaderGone from None
    except OSError as error:
        _forget_output()
        raise KitError(f"the output cannot be written: {error.strerror} — write it elsewhere", EXIT_USAGE) from error


def _forget_output() -> None:
    # What is left in the buffer must go nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
