"""MQTT 5 as far as a collector needs it: properties, reason codes. Clause numbers are those of OASIS MQTT 5."""

import struct
from typing import NamedTuple

from ..errors import MalformedStream

DISCONNECT = 0xE0

_SESSION_EXPIRY_INTERVAL = 0x11
_SERVER_KEEP_ALIVE = 0x13
_REASON_STRING = 0x1F
_RECEIVE_MAXIMUM = 0x21

FOR_EVER = 0xFFFFFFFF
# Receive maximum: the number of unacknowledged messages the broker may send. Without it, a broker sends as many as its
# default allows: 20, or 65,535, all of which it sends again after a lost link.
_ON_THE_WAY = 10_000

CONNECT_PROPERTIES = struct.pack(
    ">BBIBH", 8, _SESSION_EXPIRY_INTERVAL, FOR_EVER, _RECEIVE_MAXIMUM, _ON_THE_WAY
)  # [3.1.2.11]

UNSUPPORTED_VERSION = 0x84
# Refusals that end by themselves: server unavailable, server busy, connection rate exceeded.
PASSING = frozenset({0x88, 0x89, 0x9F})
REASONS = {
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x83: "implementation specific error",
    0x84: "protocol version not supported",
    0x85: "client_id rejected",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8C: "bad authentication method",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x8F: "topic filter not valid",
    0x93: "receive maximum exceeded",
    0x95: "packet too large",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9E: "shared subscriptions not supported",
    0x9F: "connection rate exceeded",
    0xA0: "maximum connect time",
    0xA2: "wildcard subscriptions not supported",
}

# Size in bytes of each property in CONNACK, DISCONNECT or SUBACK; 0: a string or binary data, preceded by its length.
_SIZES = {
    **dict.fromkeys((0x12, 0x15, 0x16, 0x1A, 0x1C, _REASON_STRING), 0),
    **dict.fromkeys((0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((_SERVER_KEEP_ALIVE, _RECEIVE_MAXIMUM, 0x22), 2),
    **dict.fromkeys((_SESSION_EXPIRY_INTERVAL, 0x27), 4),
}
_USER_PROPERTY = 0x26


class Answer(NamedTuple):
    """The properties of a CONNACK or DISCONNECT that a collector uses.

    :ivar keep_alive: keep-alive time in seconds that the broker has chosen; None if it accepts the requested one.
    :ivar session_expiry: seconds that the broker keeps the session; None if it accepts the requested time.
    :ivar reason: the broker's reason string, or "".
    """

    keep_alive: int | None
    session_expiry: int | None
    reason: str


def variable_integer(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode a variable byte integer (1.5.5); return its value and the index after it.

    :raises MalformedStream: it does not end before `end`, or within four bytes.
    """
    value = 0
    for index in range(4):
        if at + index >= end:
            break
        byte = data[at + index]
        value |= (byte & 127) << 7 * index
        if not byte & 128:
            return value, at + index + 1
    raise MalformedStream("the broker sent a malformed variable byte integer [1.5.5]")


def end_of_properties(data: bytes, at: int, end: int) -> int:
    """Return the index after the properties that begin at `at`.

    :raises MalformedStream: they are longer than the packet, which ends at `end`.
    """
    length, at = variable_integer(data, at, end)
    if length > end - at:
        raise MalformedStream("the broker sent properties that are longer than their packet")
    return at + length


def parse_answer(data: bytes, at: int) -> Answer:
    """Decode the properties that begin at `at`, up to the end of the packet `data`; a packet may have none.

    :raises MalformedStream: they are malformed.
    """
    found: dict[int, bytes] = {}
    end = len(data) if at >= len(data) else end_of_properties(data, at, len(data))
    at = end if at >= len(data) else variable_integer(data, at, len(data))[1]
    while at < end:
        identifier, at = data[at], at + 1
        if identifier == _USER_PROPERTY:
            at = _field(data, _field(data, at, end), end)
            continue
        size = _SIZES.get(identifier)
        if size is None:
            raise MalformedStream(f"the broker sent a property 0x{identifier:02x}, not valid here")
        begin, at = (at, at + size) if size else (at + 2, _field(data, at, end))
        if at > end:
            raise MalformedStream("the broker sent a property that is cut short")
        found[identifier] = data[begin:at]
    keep_alive, expiry = found.get(_SERVER_KEEP_ALIVE), found.get(_SESSION_EXPIRY_INTERVAL)
    return Answer(
        None if keep_alive is None else int.from_bytes(keep_alive, "big"),
        None if expiry is None else int.from_bytes(expiry, "big"),
        found.get(_REASON_STRING, b"").decode(errors="replace"),
    )


def _field(data: bytes, at: int, end: int) -> int:
    """Return the index after a string that begins at `at`."""
    stop = at + 2 + int.from_bytes(data[at : at + 2], "big")
    if at + 2 > end or stop > end:
        raise MalformedStream("the broker sent a property that is cut short")
    return stop


def describe(code: int, answer: Answer) -> str:
    """Return a reason code in words, with the broker's reason string if there is one."""
    words = REASONS.get(code, "unknown reason")
    return f"{words}: {answer.reason} (0x{code:02x})" if answer.reason else f"{words} (0x{code:02x})"
