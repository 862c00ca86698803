"""The broker's log: where it goes, which kinds of message it has, and the lines about clients.

Kinds are mosquitto's log types. Each kind has its own level of the module logging, so that a message that nobody wants
costs only one lookup.
"""

import contextlib
import logging
import logging.handlers
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import ConfigError

ROOT = "umqtt_broker"
NOTICE = 25
UNSUBSCRIBE = 22
SUBSCRIBE = 21

_TYPES = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "notice": NOTICE,
    "unsubscribe": UNSUBSCRIBE,
    "subscribe": SUBSCRIBE,
    "information": logging.INFO,
    "debug": logging.DEBUG,
}
_DEFAULT_TYPES = ("error", "warning", "notice", "information")
# Lines about refused clients that may be logged at once, before they are limited to one a second.
_REFUSALS_AT_ONCE = 20
_OFF = logging.CRITICAL + 10
_SYSLOG = "/dev/log"

for _name, _level in _TYPES.items():
    if _level in (NOTICE, UNSUBSCRIBE, SUBSCRIBE):
        logging.addLevelName(_level, _name.upper())

_root = logging.getLogger(ROOT)
_clients = logging.getLogger(f"{ROOT}.clients")
_subscriptions = logging.getLogger(f"{ROOT}.subscriptions")


@dataclass(slots=True)
class LogConfig:
    """What is logged, and where to.

    destinations: kind and path of each: "stderr", "stdout", "syslog", "file", "none".
    types: mosquitto's log types; empty for error, warning, notice and information.
    format: of a line. timestamp: lines of text begin with the time. timestamp_format: strftime's; empty for ISO 8601
        with the time zone.
    connection_messages: log which clients connect and disconnect, and which are refused.
    """

    destinations: tuple[tuple[str, str], ...] = (("stderr", ""),)
    types: tuple[str, ...] = ()
    format: Literal["text", "json"] = "text"
    timestamp: bool = True
    timestamp_format: str = ""
    connection_messages: bool = True


@contextlib.contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Yield a list of what is logged meanwhile: before start(), it would be on standard error alone."""
    found: list[str] = []
    collector = _Collector(found)
    _root.addHandler(collector)
    try:
        yield found
    finally:
        _root.removeHandler(collector)


class _Collector(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage())


def start(config: LogConfig) -> None:
    """Log as `config` says from now on; files are opened anew. Raises ConfigError; then nothing changes."""
    put_in_force(config, open_handlers(config))


def open_handlers(config: LogConfig) -> list[logging.Handler]:
    """Open all destinations of `config`. Raises ConfigError.

    Returns the handlers: pass them to put_in_force(), or close them.
    """
    handlers: list[logging.Handler] = []
    for kind, path in config.destinations:
        try:
            if kind != "none":
                handlers.append(_handler(kind, path))
        except OSError as error:
            for handler in handlers:
                handler.close()
            name = f"{kind} {path}".strip()
            raise ConfigError(f"log_dest {name} cannot be opened ({error.strerror or error})") from error
    return handlers


def put_in_force(config: LogConfig, handlers: list[logging.Handler]) -> None:
    """Log as `config` says from now on, with the handlers from open_handlers(); close the previous handlers."""
    levels = _levels(config.types)
    for handler in handlers:
        handler.setFormatter(_formatter(config))
        handler.addFilter(lambda record: _kind(record.levelno) in levels)
    if not handlers:
        levels = set()  # without a destination no record need be made
    before, _root.handlers = _root.handlers, handlers or [logging.NullHandler()]
    for handler in before:
        handler.close()
    _root.propagate = False
    lowest = min(levels, default=_OFF)
    _root.setLevel(lowest)
    _clients.setLevel(lowest if config.connection_messages and NOTICE in levels else _OFF)
    wanted = [level for level in (SUBSCRIBE, UNSUBSCRIBE) if level in levels]
    _subscriptions.setLevel(min(wanted, default=_OFF))


def _levels(types: tuple[str, ...]) -> set[int]:
    """Return the levels that are logged. As in mosquitto, `none` cancels the types before it."""
    wanted: set[str] = set()
    for name in types or _DEFAULT_TYPES:
        if name == "none":
            wanted.clear()
        else:
            wanted |= set(_TYPES) if name == "all" else {name}
    # mosquitto's log type websockets is accepted, but has no messages here.
    return {_TYPES[name] for name in wanted if name in _TYPES}


def _kind(level: int) -> int:
    """Return the level of _TYPES that a record belongs to."""
    return next((known for known in sorted(_TYPES.values(), reverse=True) if level >= known), logging.DEBUG)


def _handler(kind: str, path: str) -> logging.Handler:
    if kind == "file":
        return logging.FileHandler(path, encoding="utf-8")
    if kind == "syslog":
        return logging.handlers.SysLogHandler(_SYSLOG, logging.handlers.SysLogHandler.LOG_DAEMON)
    return logging.StreamHandler(sys.stderr if kind == "stderr" else sys.stdout)


def _formatter(config: LogConfig) -> logging.Formatter:
    if config.format == "json":
        from .json_log import JsonFormatter

        return JsonFormatter()
    return _TextFormatter(config)


class _TextFormatter(logging.Formatter):
    """Formats a record as `2026-01-31T12:00:00+0100 notice: text`.

    Characters that are not printable are escaped, so that a client cannot forge a line by a name that it chooses.
    """

    def __init__(self, config: LogConfig) -> None:
        super().__init__()
        self._time = (config.timestamp_format or "%Y-%m-%dT%H:%M:%S%z") if config.timestamp else ""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        text = "".join(
            char if char.isprintable() or (char == "\n" and record.exc_info) else f"\\x{ord(char):02x}" for char in text
        )
        return f"{time.strftime(self._time, time.localtime(record.created))} {text}" if self._time else text


def log_connect(
    client_id: bytes, address: str, username: bytes | None, *, clean_session: bool, keep_alive: int
) -> None:
    """Log that a client was let in. keep_alive: seconds."""
    if _clients.isEnabledFor(NOTICE):
        fields = {"client_id": client_id, "address": address, "username": username}
        user = "" if username is None else f" as {_text(username)}"
        _clients.log(
            NOTICE, "client %s connected from %s%s (clean_session %d, keep_alive %d)",
            _text(client_id), address, user, clean_session, keep_alive, extra=fields,
        )  # fmt: skip


class RefusalLog:
    """Logs what is refused, of one kind: up to 20 lines at once, then at most one a second.

    The others are counted, and the next line says how many there were. All times are the event loop's, in seconds.
    """

    def __init__(self) -> None:
        self._credit = float(_REFUSALS_AT_ONCE)
        self._since = 0.0
        self._left_out = 0

    def refused(self, now: float, address: str, reason: str, client_id: bytes | None = None) -> None:
        """Log that a client at `address` was refused. client_id: None if the client has sent none."""
        if self._admits(now):
            who = "a client" if client_id is None else f"client {_text(client_id)}"
            fields = {"client_id": client_id, "address": address, "reason": reason}
            self._log(f"{who} from {address} refused: {reason}", fields)

    def denied(self, now: float, address: str, client_id: bytes, topic_name: bytes) -> None:
        """Log that a message to `topic_name` was dropped because its client may not publish there."""
        if self._admits(now):
            fields = {"client_id": client_id, "address": address, "topic_name": topic_name}
            self._log(f"client {_text(client_id)} from {address} may not publish to {_text(topic_name)}", fields)

    def _admits(self, now: float) -> bool:
        if not _clients.isEnabledFor(NOTICE):
            return False
        self._credit = min(_REFUSALS_AT_ONCE, self._credit + now - self._since)
        self._since = now
        if self._credit < 1:
            self._left_out += 1
            return False
        self._credit -= 1
        return True

    def _log(self, text: str, fields: Mapping[str, object]) -> None:
        left_out, self._left_out = self._left_out, 0
        more = f" (and {left_out} more since the last such line)" if left_out else ""
        _clients.log(NOTICE, "%s%s", text, more, extra={**fields, "left_out": left_out})


def log_disconnect(client_id: bytes, reason: str) -> None:
    """Log that a client has disconnected. reason: "" if it sent DISCONNECT, else what ended the connection."""
    if _clients.isEnabledFor(NOTICE):
        fields = {"client_id": client_id, "reason": reason}
        _clients.log(
            NOTICE, "client %s disconnected%s", _text(client_id), f": {reason}" if reason else "", extra=fields
        )


def log_denied_will(client_id: bytes, topic_name: bytes) -> None:
    """Log that a will was dropped because its client may not publish to `topic_name`."""
    if _clients.isEnabledFor(NOTICE):
        fields = {"client_id": client_id, "topic_name": topic_name}
        text = "the will of client %s is dropped: it may not publish to %s"
        _clients.log(NOTICE, text, _text(client_id), _text(topic_name), extra=fields)


def log_subscribe(client_id: bytes, topic_filter: bytes, return_code: int) -> None:
    """Log a subscription. return_code: the QoS granted; 0x80 and above: denied."""
    if _subscriptions.isEnabledFor(SUBSCRIBE):
        granted = "denied" if return_code >= 0x80 else f"QoS {return_code}"
        fields = {"client_id": client_id, "topic_filter": topic_filter, "return_code": return_code}
        _subscriptions.log(SUBSCRIBE, "%s %s (%s)", _text(client_id), _text(topic_filter), granted, extra=fields)


def log_unsubscribe(client_id: bytes, topic_filter: bytes) -> None:
    """Log that a client has unsubscribed."""
    if _subscriptions.isEnabledFor(UNSUBSCRIBE):
        fields = {"client_id": client_id, "topic_filter": topic_filter}
        _subscriptions.log(UNSUBSCRIBE, "%s %s", _text(client_id), _text(topic_filter), extra=fields)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
