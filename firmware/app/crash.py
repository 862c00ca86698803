"""The last traceback of this board: published after the next boot, and kept in flash until the one after it."""

import os

from postmortem import TOLD_FILE, TRACEBACK_FILE, read_traceback


class CrashReport:
    """Publishes the traceback that the run before left in flash, until the broker has it."""

    def __init__(self, report, path=TRACEBACK_FILE, told=TOLD_FILE):
        self._report = report
        self._path = path
        self._told = told
        head, text = read_traceback(path)
        self._waiting = text is not None
        self._published = False

    def step(self, client):
        """True when there is nothing to tell any more."""
        if not self._waiting:
            return True
        if not client.connected:
            return False
        if not self._published:
            # Read again, and not kept in RAM from the boot on.
            head, text = read_traceback(self._path)
            head["traceback"] = text
            self._published = self._report("error", (text or "").strip().split("\n")[-1], {"crash": head})
        elif client.pending == 0:
            # An empty outbox: acknowledged. A power cut before this publishes it twice, never not at all.
            os.rename(self._path, self._told)
            self._waiting = False
        return not self._waiting


def last_crash(path=TRACEBACK_FILE, told=TOLD_FILE):
    """{"n": crashes so far, "boot": count, "traceback": text} of the last crash, or None."""
    for name in (path, told):
        head, text = read_traceback(name)
        if text is not None:
            head["traceback"] = text
            return head
    return None
