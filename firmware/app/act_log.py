"""The command log: the newest lines of the log that is kept in RAM, the oldest first."""

_MOST_CHARACTERS = 1000


def run(board, args):
    found = []
    room = _MOST_CHARACTERS
    for line in reversed(board.log.lines()):
        room -= len(line) + 3
        if room < 0:
            break
        found.insert(0, line)
    return {"lines": found}
