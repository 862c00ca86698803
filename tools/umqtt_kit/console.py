"""What the user sees: results on stdout, everything else on stderr; progress only on a terminal.

NO_COLOR and TERM=dumb are honoured by rich itself.
"""

from __future__ import annotations

import io
import os
import sys

from rich.console import Console

from umqtt_kit.errors import EXIT_USAGE, KitError, ReaderGone


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that rich is handling when it calls this: rich itself would exit with 1


def results() -> Console:
    """The console for what the command was asked for. Piped into a file it is plain text."""
    console = _Console(highlight=False)
    return console if console.is_terminal else _Console(highlight=False, width=200)


def notes() -> Console:
    """The console for progress and remarks: stderr, so that stdout holds the result alone."""
    return _Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """One line on stderr, on a terminal or not."""
    notes().print(text, soft_wrap=True, markup=False)


def emit(line: str) -> bool:
    """One line on stdout, now. False: nobody reads any more (`… | head`), and nothing more is to be written."""
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
