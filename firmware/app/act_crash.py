"""The command crash: returns the last traceback, and how often this board has crashed."""

from app.crash import last_crash


def run(board, args):
    return last_crash() or {"n": 0}
