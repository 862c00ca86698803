"""Formats the log as JSON objects, one per line, for programs that collect logs."""

import json
import logging
import time
from typing import Any

# The attributes that every record has; any other was given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as `{"time", "level", "logger", "message"}`, with `extra` fields and `exception` if any.

    time is UTC to the millisecond, ISO 8601. A line is ASCII, so that every character that some program takes for a
    line break is escaped inside its JSON string: a client cannot forge a line by its client identifier.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line without its line break."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=_as_text)


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
