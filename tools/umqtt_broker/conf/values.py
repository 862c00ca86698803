"""Parsers of the values of settings. Each takes the text, and raises ValueError that says what is expected."""

import re
from collections.abc import Callable
from typing import Any

from ..protocol.topics import is_mount_point

_UNITS = {"s": 1, "h": 3600, "d": 86400, "w": 7 * 86400, "m": 30 * 86400, "y": 365 * 86400}
_MORE_THAN_FILES = 1 << 20
_LOG_TYPES = (
    "error", "warning", "notice", "information", "subscribe", "unsubscribe", "debug", "websockets", "all", "none",
)  # fmt: skip


def boolean(value: str) -> bool:
    """Return the bool for true, false, 1 or 0."""
    if value not in ("true", "false", "1", "0"):
        raise ValueError("true or false")
    return value in ("true", "1")


def integer(low: int, high: int | None = None, zero: int = 0) -> Callable[[str], int]:
    """Return a parser of numbers from low to high; high None: no upper limit. zero: the value for 0."""

    def parse(value: str) -> int:
        # Only a sign and ASCII digits: int() would also accept "1_000" and digits of other scripts.
        if not re.fullmatch(r"-?[0-9]{1,18}", value) or int(value) < low or (high is not None and int(value) > high):
            raise ValueError(f"a number from {low} to {high}" if high is not None else f"a number of at least {low}")
        return int(value) or zero

    return parse


def choice(*values: str) -> Callable[[str], str]:
    """Return a parser that accepts one of these words and returns it."""

    def parse(value: str) -> str:
        if value not in values:
            raise ValueError(" or ".join(filter(None, (", ".join(values[:-1]), values[-1]))))
        return value

    return parse


def text(value: str) -> str:
    """Return the text as it is."""
    return value


def encoded(value: str) -> bytes:
    """Return the text in UTF-8."""
    return value.encode()


def mount_point(value: str) -> bytes:
    """Return a mount point: a prefix for topics, in UTF-8."""
    if not is_mount_point(value.encode()):
        raise ValueError("the beginning of topic names, without + and #, and not of $share")
    return value.encode()


def duration(value: str) -> int:
    """Return the seconds in a duration such as `2d` or `3w`."""
    found = re.fullmatch(r"([0-9]{1,9})([shdwmy])", value)
    if found is None or not int(found[1]):
        raise ValueError("a number with s, h, d, w, m or y behind it (seconds, hours, days, weeks, months, years)")
    return int(found[1]) * _UNITS[found[2]]


def connections(value: str) -> int | None:
    """Return a limit of connections; None for -1, no limit."""
    if value == "-1":
        return None
    try:
        return integer(1)(value)
    except ValueError:
        raise ValueError("a number of at least 1, or -1 for no limit") from None


def all_connections(value: str) -> int:
    """Return a limit of the connections of all listeners; for -1 more than a process may have files open."""
    return connections(value) or _MORE_THAN_FILES


def octal(value: str) -> int:
    """Return the permission bits that are given in octal, such as 660."""
    if not re.fullmatch(r"0?[0-7]{3}", value):
        raise ValueError("permission bits in octal, such as 660")
    return int(value, 8)


def tls_version(value: str) -> str:
    """Return the lowest version of TLS, "tlsv1.2" or "tlsv1.3"."""
    if value in ("tlsv1", "tlsv1.1"):
        raise ValueError("tlsv1.2 or tlsv1.3; older versions are not safe")
    return choice("tlsv1.2", "tlsv1.3")(value)


def log_type(value: str) -> str:
    """Return a log type, one of mosquitto's."""
    return choice(*_LOG_TYPES)(value)


def log_destination(value: str) -> tuple[str, str]:
    """Return a log destination: its kind, and the path of a file ("" for other kinds)."""
    kind, path = _words(value)
    if kind == "file" and path:
        return kind, path
    if kind not in ("stderr", "stdout", "syslog", "none") or path:
        raise ValueError("stderr, stdout, syslog, none or file PATH")
    return kind, ""


def port(value: str) -> int:
    """Return a TCP port."""
    return integer(0, 65535)(value)


def port_and_address(value: str) -> tuple[int, str]:
    """Return a port and the address behind it, "" if there is none."""
    number, address = _words(value)
    try:
        found = port(number)
    except ValueError as error:
        raise ValueError("a port from 0 to 65535, and an address behind it if you like") from error
    if len(address.split()) > 1 and not address.startswith("/"):
        raise ValueError("one address behind the port")
    return found, address


def _words(value: str) -> tuple[str, str]:
    """Return the first word, and what follows it. Blanks and tabs separate, as they separate key and value."""
    first, *rest = value.split(maxsplit=1) or [""]
    return first, rest[0] if rest else ""


Parser = Callable[[str], Any]
