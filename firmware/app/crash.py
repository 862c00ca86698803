"""Publishes the traceback of the last crash after the next boot; flash keeps it until the next crash."""

import os

from postmortem import TOLD_FILE, TRACEBACK_FILE, read_traceback


class CrashReport:
    """The report of the traceback that the last run left in flash. report: report() of app.log.Log."""

    def __init__(self, report, path=TRACEBACK_FILE, told=TOLD_FILE):
        self._report = report
        self._path = path
        self._told = told
        head, text = read_traceback(path)
        self._waiting = text is not None
        self._published = False

    def step(self, client):
        """Publish the traceback once connected; return True when the broker has it or there is none."""
        if not self._waiting:
            return True
        if not client.connected:
            return False
        if not self._published:
            # Read again here, instead of kept in RAM since the boot.
            head, text = read_traceback(self._path)
            head["traceback"] = text
            self._published = self._report("error", (text or "").strip().split("\n")[-1], {"crash": head})
        elif client.pending == 0:
            # An empty outbox means acknowledged. After a power cut before this it is published twice, but never lost.
            os.rename(self._path, self._told)
            self._waiting = False
        return not self._waiting


def last_crash(path=TRACEBACK_FILE, told=TOLD_FILE):
    """Return {"n": crashes so far, "boot": count, "traceback": text} of the last crash, or None."""
    for name in (path, told):
        head, text = read_traceback(name)
        if text is not None:
            head["traceback"] = text
            return head
    return None
