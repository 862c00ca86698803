"""The log of a collector process on standard error: lines of text on a terminal, lines of JSON everywhere else.

Each JSON line has ``time`` (ISO 8601, UTC), ``level`` (info, warning, error), ``event``, ``collector`` and
``message``. The event ``figures``, written once a minute, has the counters instead of a message. The level error is
an alarm: somebody has to act.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from umqtt_cli.escape import printable

Status = Mapping[str, object]

_INFO = frozenset({"started", "subscribed", "one_cluster", "resumed", "stopped", "figures"})
_ALARMS = frozenset(
    {
        "session_lost",
        "session_expires",
        "broker_changed",
        "not_one_cluster",
        "takeover",
        "refused",
        "unusable",
        "spool_error",
        "waiting",
    }
)
_FIGURES_EVERY_S = 60.0


class Journal:
    """The log; several threads may write to it. `as_text`: lines for people instead of JSON."""

    def __init__(self, *, as_text: bool = False) -> None:
        self._as_text = as_text
        self._lock = threading.Lock()
        self._next = time.monotonic() + _FIGURES_EVERY_S

    def event(self, collector: str, event: str, message: str) -> None:
        """Write one line for an event of a collector."""
        level = "info" if event in _INFO else "error" if event in _ALARMS else "warning"
        self._write({"level": level, "event": event, "collector": collector, "message": message})

    def show(self, statuses: Sequence[Status]) -> None:
        """Write the figures of every collector if a minute has passed; called about twice a second."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _FIGURES_EVERY_S
            for status in statuses:
                self._write({"level": "info", "event": "figures", "collector": status["name"], **status})

    def _write(self, content: dict[str, object]) -> None:
        now = datetime.now(UTC)
        line = json.dumps({"time": now.isoformat(timespec="milliseconds"), **content})
        if self._as_text:
            figures = "{messages:,} messages, {spool_bytes:,} bytes in the spool"
            said = content["message"] if "message" in content else figures.format_map(content)
            line = printable(f"{now.astimezone():%H:%M:%S} {content['collector']} {content['event']}: {said}")
        # A log that cannot be written, because of a full disk or a closed pipe, must not stop the collector.
        with self._lock, contextlib.suppress(OSError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
