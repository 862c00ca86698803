"""Splits the bytes of a serial port into lines, each with the time at which its first byte came."""

from __future__ import annotations

import re
from datetime import datetime

from umqtt_cli.escape import printable
from umqtt_kit.logs.entries import Entry

# A prompt has no line end: what has stayed unfinished for this long is shown as it is.
_UNFINISHED_FOR_S = 0.5
_LONGEST = 4096
# As firmware/app/log.py writes it on the console: "UPTIME_S LEVEL TEXT".
_LOGGED = re.compile(r"\d+ (debug|info|warning|error) ")
_TRACEBACK = "Traceback (most recent call last):"


class Lines:
    """The lines of one board. Nothing is lost: bytes that are no text are shown as \\xNN."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._begun = b""
        self._began: datetime | None = None
        self._in_traceback = False

    def take(self, data: bytes, now: datetime) -> list[Entry]:
        """Return the lines that `data` completes. A line of more than 4096 bytes is split into pieces."""
        *whole, begun = (self._begun + data).split(b"\n")
        found = []
        for line in whole:
            found.append(self._entry(line, self._began or now))
            self._began = None
        while len(begun) > _LONGEST:
            found.append(self._entry(begun[:_LONGEST], self._began or now))
            begun, self._began = begun[_LONGEST:], now
        if begun and self._began is None:
            self._began = now
        self._begun = begun
        return found

    def unfinished(self, now: datetime, *, closed: bool = False) -> list[Entry]:
        """Return an unfinished line that has waited 0.5 s for its end. closed: nothing more comes, so do not wait."""
        if not self._begun or self._began is None:
            return []
        if not closed and (now - self._began).total_seconds() < _UNFINISHED_FOR_S:
            return []
        line, began = self._begun, self._began
        self._begun, self._began = b"", None
        return [self._entry(line, began)]

    def _entry(self, line: bytes, time: datetime) -> Entry:
        text = printable(line.rstrip(b"\r"))
        logged = _LOGGED.match(text)
        if text == _TRACEBACK:
            self._in_traceback = True
            return Entry(time, self._device, text, "error")
        # The lines of a traceback are indented, except the last one, which names the exception.
        if self._in_traceback:
            self._in_traceback = text.startswith(" ")
            return Entry(time, self._device, text, "error")
        return Entry(time, self._device, text, logged[1] if logged else None)
