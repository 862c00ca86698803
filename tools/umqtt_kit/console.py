"""What the user sees: results on stdout, everything else on stderr; progress only on a terminal.

NO_COLOR and TERM=dumb are honoured by rich itself.
"""

from __future__ import annotations

from rich.console import Console


def results() -> Console:
    """The console for what the command was asked for. Piped into a file it is plain text."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def notes() -> Console:
    """The console for progress and remarks: stderr, so that stdout holds the result alone."""
    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """One line on stderr, on a terminal or not."""
    notes().print(text, soft_wrap=True, markup=False)
