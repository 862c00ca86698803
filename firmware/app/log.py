"""Keeps the log: its last lines in RAM and on the console, warnings and errors also on the log topic.

    {"level": "warning", "text": "sensor cellar: OSError(19)", "boot": "17-…"}

Records never flood the outbox: after _BURST records, one more is published every _REFILL_MS; the next one published
tells how many were not, as "suppressed".
"""

import json

from app.modules import once
from umqtt_robust.errors import OutboxFull, StoreError

_LEVELS = ("debug", "info", "warning", "error")
_PUBLISHED_FROM = 2
_BURST = 10
_REFILL_MS = 60_000
_MOST_LINES = 32
# Limit for all kept lines together; each takes some 20 bytes besides its text.
_MOST_CHARACTERS = 1600
_LONGEST_LINE = 200
# Keeps a record, a traceback included, well below the smallest receive buffer in the chain.
_LONGEST_TEXT = 400
# The same reason for having no link is reported again after _AGAIN_MS; _MOST_REASONS are remembered.
_AGAIN_MS = 3_600_000
_MOST_REASONS = 8
# First two arguments of Refused: return codes of CONNACK that trying again does not change.
_NOT_LET_IN = (("connect", 2), ("connect", 4), ("connect", 5))


class Log:
    """The log. client, identity, clock: the application's; level: less important lines are neither kept nor shown;
    most_pending: with more messages in the outbox, records are refused, because they would push readings out.

    refused_by_broker: True once a broker has refused this board or shown a certificate that is not trusted.
    """

    def __init__(self, client, identity, clock, level="info", most_pending=None, write=print):
        self._client = client
        self._clock = clock
        self._topic = identity.topic("log")
        self._boot = identity.boot
        self._write = write
        self._most_pending = most_pending
        self._lines = []
        self._size = 0
        self._room = _BURST
        self._refilled_at = clock.uptime_ms()
        self.level = level
        self._untold = 0
        self._reasons = {}  # repr() of the error: uptime in ms when it was reported
        self.refused_by_broker = False
        self._for_later = []  # (level, text) of what happened without a link

    def failed(self, error):
        """Report an error in words (reasons.py), each reason once an hour.

        It is one of Client.on_error or on_disconnect, or a RuntimeError: what a part of the application says itself.
        """
        if error.__class__.__name__ == "CertificateRefused" or error.args[:2] in _NOT_LET_IN:
            self.refused_by_broker = True
        key = repr(error)
        now = self._clock.uptime_ms()
        if now - self._reasons.get(key, -_AGAIN_MS) < _AGAIN_MS:
            return
        if len(self._reasons) >= _MOST_REASONS:
            self._reasons.clear()
        self._reasons[key] = now
        try:
            text = once("reasons", "of", error)
        except (ImportError, MemoryError):
            text = key
        if not self._client.connected:
            self._note("warning", text)
        elif self.report("warning", text):
            return
        self._keep_for_later("warning", text)

    def step(self, last=False):
        """Publish what happened without a link, once there is one, and room in the outbox.

        last: also without a link, because the board is about to sleep, which only the outbox survives.
        """
        while self._for_later and (last or self._client.connected) and self._has_room():
            try:
                self._publish(*self._for_later[0])
            except (OutboxFull, StoreError):
                return
            self._for_later.pop(0)

    def _keep_for_later(self, level, text):
        # Not in the outbox, because readings would push it out of there.
        if len(self._for_later) == _MOST_REASONS:
            self._for_later.pop(0)
            self._untold += 1
        self._for_later.append((level, text))

    def _has_room(self):
        return self._most_pending is None or self._client.pending <= self._most_pending

    def dead_letter(self, topic, payload, error):
        """Report a message that is lost because its handler raised an exception: Client.on_dead_letter."""
        self.report("error", "a message on %s was lost: %r" % (topic, error))

    def report(self, level, text, fields=None, always=False):
        """Log text (str) with a level of _LEVELS. fields: dict that goes into the published record only.

        Without a link, a record without fields waits outside the outbox, see step(). always: no rate limit, for rare
        records that must not be lost. Returns False if the record was to be published and the outbox had no room: call
        again later. A line that repeats the last one is not kept twice.
        """
        if self._note(level, text) < _PUBLISHED_FROM:
            return True
        if not always and not self._may_go():
            self._untold += 1
            return True
        if not fields and not self._client.connected:
            self._keep_for_later(level, text)
            self._room -= 1
            return True
        if not self._has_room():
            return False
        try:
            self._publish(level, text, fields)
        except (OutboxFull, StoreError):
            return False
        if not always:
            self._room -= 1
        return True

    def _publish(self, level, text, fields=None):
        record = {"level": level, "text": text[:_LONGEST_TEXT], "boot": self._boot}
        if self._untold:
            record["suppressed"] = self._untold
        if fields:
            record.update(fields)
        self._client.publish(self._topic, json.dumps(record).encode(), qos=1)
        self._untold = 0

    def lines(self):
        """Return the lines in RAM, oldest first: "UPTIME_S LEVEL TEXT"."""
        return list(self._lines)

    def _note(self, level, text):
        importance = _LEVELS.index(level)
        if importance >= _LEVELS.index(self.level):
            self._keep("%s %s" % (level, text))
        return importance

    def _keep(self, text):
        text = text[:_LONGEST_LINE]
        # A caller whose record found no room calls again and again.
        if self._lines and self._lines[-1].partition(" ")[2] == text:
            return
        line = "%d %s" % (self._clock.uptime_ms() // 1000, text)
        self._write(line)
        self._lines.append(line)
        self._size += len(line)
        while len(self._lines) > _MOST_LINES or self._size > _MOST_CHARACTERS:
            self._size -= len(self._lines.pop(0))

    def _may_go(self):
        now = self._clock.uptime_ms()
        refill = (now - self._refilled_at) // _REFILL_MS
        if refill:
            self._room = min(self._room + refill, _BURST)
            self._refilled_at += refill * _REFILL_MS
        return self._room > 0
