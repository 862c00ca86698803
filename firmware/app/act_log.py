"""The command log: returns the newest lines of the log in RAM, oldest first."""

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
