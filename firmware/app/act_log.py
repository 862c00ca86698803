"""The command log: the newest lines of the log that is kept in RAM, the oldest first."""

from app.commands import CommandError

_MOST_CHARACTERS = 1000


def run(board, args):
    lines = getattr(board.log, "lines", None)
    if lines is None:
        raise CommandError("this version keeps no log")
    found = []
    room = _MOST_CHARACTERS
    for line in reversed(list(lines() if callable(lines) else lines)):
        room -= len(line) + 3
        if room < 0:
            break
        found.insert(0, line)
    return {"lines": found}
