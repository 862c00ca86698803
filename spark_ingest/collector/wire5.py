"""MQTT 5 as far as a collector needs it: properties, reason codes. Clause numbers are those of OASIS MQTT 5."""

import struct
from typing import Any, NamedTuple, cast

from umqtt_robust.base_errors import ProtocolError
from umqtt_robust.mqtt5 import decode
from umqtt_robust.packets import decode_length

from ..errors import MalformedStream

DISCONNECT = 0xE0

_SESSION_EXPIRY_INTERVAL = 0x11
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
    0x90: "topic name not valid",
    0x93: "receive maximum exceeded",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format not valid",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9E: "shared subscriptions not supported",
    0x9F: "connection rate exceeded",
    0xA0: "maximum connect time",
    0xA2: "wildcard subscriptions not supported",
}

# Most bytes of properties in an answer. A broker could send 256 MB of user properties, which took a minute to decode.
_MOST_BYTES = 65_535
# The place of mqtt5.decode(): a property is accepted in whatever packet it comes.
_ANYWHERE = 0xFF


class Answer(NamedTuple):
    """The properties of a CONNACK or DISCONNECT that a collector uses.

    :ivar keep_alive: keep-alive time in seconds that the broker has chosen; None if it accepts the requested one.
    :ivar session_expiry: seconds that the broker keeps the session; None if it accepts the requested time.
    :ivar reason: the broker's reason string, or "".
    """

    keep_alive: int | None
    session_expiry: int | None
    reason: str


def decode_integer(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """Decode a variable byte integer (1.5.5); return its value and the index after it, or None if it is incomplete.

    :raises MalformedStream: it has more than four bytes.
    """
    try:
        return decode_length(data, at, end)
    except ProtocolError as error:
        raise MalformedStream("the broker sent a length of more than four bytes [1.5.5]") from error


def end_of_properties(data: bytes, at: int, end: int) -> int:
    """Return the index after the properties that begin at `at`.

    :raises MalformedStream: they are longer than the packet, which ends at `end`.
    """
    length, at = decode_integer(data, at, end) or (1, end)
    if length > end - at:
        raise MalformedStream("the broker sent properties that are longer than their packet")
    return at + length


def parse_answer(data: bytes, at: int) -> Answer:
    """Decode the properties that begin at `at`, up to the end of the packet `data`; a packet may have none.

    :raises MalformedStream: they are malformed.
    """
    if len(data) - at > _MOST_BYTES:
        raise MalformedStream(f"the broker sent {len(data) - at} bytes of properties, more than {_MOST_BYTES}")
    try:
        found = cast("dict[str, Any]", decode(data, at, len(data), _ANYWHERE)[0] if at < len(data) else {})
    except ProtocolError as error:
        raise MalformedStream("the broker sent malformed properties") from error
    reason = found.get("reason_string", b"").decode(errors="replace")
    return Answer(found.get("server_keep_alive"), found.get("session_expiry_interval"), reason)


def describe(code: int, answer: Answer) -> str:
    """Return a reason code in words, with the broker's reason string if there is one."""
    words = REASONS.get(code, "unknown reason")
    return f"{words}: {answer.reason} (0x{code:02x})" if answer.reason else f"{words} (0x{code:02x})"
