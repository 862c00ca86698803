"""How the board is: its status topic, its log topic, and the last traceback, kept until published."""

import io
import json
import os
import sys

from umqtt_robust.errors import OutboxFull, StoreError

TRACEBACK_FILE = "/traceback.txt"
# A record of the log topic stays well below the smallest receive buffer in the chain.
_MAX_TRACEBACK_CHARACTERS = 1500


class Log:
    """The log topic: {"level": "warning", "text": "…", "boot": "17-…"}, with further fields if any."""

    def __init__(self, client, identity):
        self._client = client
        self._topic = identity.topic("log")
        self._boot = identity.boot
        self.refused = 0

    def report(self, level, text, fields=None):
        """True when the outbox took it. False: call again later; it is counted in refused."""
        record = {"level": level, "text": text, "boot": self._boot}
        if fields:
            record.update(fields)
        try:
            self._client.publish(self._topic, json.dumps(record).encode(), qos=1)
        except (OutboxFull, StoreError):
            self.refused += 1
            return False
        return True


class Status:
    """The retained status topic: online after every connect; the will says offline when the link is lost."""

    def __init__(self, identity, version):
        self.topic = identity.topic("status")
        self._identity = identity
        self._version = version
        self._connected = False
        self._reason = "boot"

    def payload(self, online, reason):
        return json.dumps(
            {"online": online, "boot": self._identity.boot, "fw": self._version, "reason": reason}
        ).encode()

    def step(self, client):
        """Say online once for every connect: the broker has published the will of the link before."""
        if not client.connected:
            self._connected = False
            return
        if self._connected:
            return
        try:
            client.publish(self.topic, self.payload(True, self._reason), qos=1, retain=True)
        except (OutboxFull, StoreError):
            # Said at the next step that finds room.
            return
        self._connected = True
        self._reason = "reconnected"


class CrashReport:
    """Publishes the traceback that the run before left in flash, and forgets it once the broker has it."""

    def __init__(self, log, path=TRACEBACK_FILE):
        self._log = log
        self._path = path
        self._text = _read_text(path)
        self._published = False

    def step(self, client):
        if self._text is None or not client.connected:
            return
        if not self._published:
            lines = self._text.strip().split("\n")
            self._published = self._log.report("error", lines[-1], {"crash": {"traceback": self._text}})
        elif client.pending == 0:
            # An empty outbox: acknowledged. A power cut before this publishes it twice, never not at all.
            os.remove(self._path)
            self._text = None


def keep_traceback(error, path=TRACEBACK_FILE):
    """Write the traceback of error to flash; called last of all, before the program ends."""
    text = format_traceback(error)[-_MAX_TRACEBACK_CHARACTERS:]
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as reason:
        # The program ends with error either way, and the console shows it.
        print("traceback not kept in %s: %r" % (path, reason))


def format_traceback(error):
    """The text that MicroPython (or CPython, where the tests run too) prints for error."""
    if hasattr(sys, "print_exception"):
        stream = io.StringIO()
        sys.print_exception(error, stream)
        return stream.getvalue()
    import traceback

    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _read_text(path):
    try:
        with open(path) as file:
            return file.read() or None
    except OSError:
        return None
