"""The properties of MQTT 5 (its section 2.2.2): a table of which packets may contain which, and decoding and encoding.

Properties are a dictionary from identifier to value. A value is an int or bytes; for a user property, a pair of bytes.
A property that may repeat has a list of such values, in the order of the packet.
"""

import struct
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from ..errors import MalformedPacket
from .packets import encode_remaining_length
from .reason_codes import ReasonCode
from .topics import is_topic_name, is_utf8

Properties = Mapping[int, Any]

NONE: Properties = {}

# The places of properties: the control packets, by their type, and the will in a CONNECT.
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, DISCONNECT, AUTH, WILL = 8, 9, 10, 11, 14, 15, 16

# Bytes that each property counts in addition to its own when properties are limited: decoding a short one takes as long
# as decoding a long one.
OVERHEAD = 64
# The largest remaining length, and so no limit.
_NO_LIMIT = 268_435_455

_ALL = frozenset({*range(1, 12), DISCONNECT, AUTH, WILL})
_NOWHERE: frozenset[int] = frozenset()


class Kind(Enum):
    """How a value is encoded (1.5)."""

    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 4
    VARIABLE_INTEGER = 5
    BINARY = 6
    TEXT = 7
    TEXT_PAIR = 8


class Property(NamedTuple):
    """A row of the table of properties.

    packets: the packets that may contain it. repeats: those that may contain it more than once. lowest, highest: the
    limits of a number.
    """

    name: str
    kind: Kind
    packets: frozenset[int]
    repeats: frozenset[int] = _NOWHERE
    lowest: int = 0
    highest: int = 0xFFFFFFFF


PAYLOAD_FORMAT_INDICATOR = 0x01
MESSAGE_EXPIRY_INTERVAL = 0x02
CONTENT_TYPE = 0x03
RESPONSE_TOPIC = 0x08
CORRELATION_DATA = 0x09
SUBSCRIPTION_IDENTIFIER = 0x0B
SESSION_EXPIRY_INTERVAL = 0x11
ASSIGNED_CLIENT_IDENTIFIER = 0x12
SERVER_KEEP_ALIVE = 0x13
AUTHENTICATION_METHOD = 0x15
AUTHENTICATION_DATA = 0x16
REQUEST_PROBLEM_INFORMATION = 0x17
WILL_DELAY_INTERVAL = 0x18
REQUEST_RESPONSE_INFORMATION = 0x19
RESPONSE_INFORMATION = 0x1A
SERVER_REFERENCE = 0x1C
REASON_STRING = 0x1F
RECEIVE_MAXIMUM = 0x21
TOPIC_ALIAS_MAXIMUM = 0x22
TOPIC_ALIAS = 0x23
MAXIMUM_QOS = 0x24
RETAIN_AVAILABLE = 0x25
USER_PROPERTY = 0x26
MAXIMUM_PACKET_SIZE = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
SHARED_SUBSCRIPTION_AVAILABLE = 0x2A

_MESSAGE = frozenset({PUBLISH, WILL})
_LIMITS = frozenset({CONNECT, CONNACK})
_CONNECT = frozenset({CONNECT})
_CONNACK = frozenset({CONNACK})
_REASONS = frozenset({CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH})

# Table 2-4 of the standard.
TABLE = {
    PAYLOAD_FORMAT_INDICATOR: Property("Payload Format Indicator", Kind.BYTE, _MESSAGE, highest=1),
    MESSAGE_EXPIRY_INTERVAL: Property("Message Expiry Interval", Kind.FOUR_BYTES, _MESSAGE),
    CONTENT_TYPE: Property("Content Type", Kind.TEXT, _MESSAGE),
    RESPONSE_TOPIC: Property("Response Topic", Kind.TEXT, _MESSAGE),
    CORRELATION_DATA: Property("Correlation Data", Kind.BINARY, _MESSAGE),
    SUBSCRIPTION_IDENTIFIER: Property(
        "Subscription Identifier", Kind.VARIABLE_INTEGER, frozenset({PUBLISH, SUBSCRIBE}), frozenset({PUBLISH}), 1
    ),
    SESSION_EXPIRY_INTERVAL: Property(
        "Session Expiry Interval", Kind.FOUR_BYTES, frozenset({CONNECT, CONNACK, DISCONNECT})
    ),
    ASSIGNED_CLIENT_IDENTIFIER: Property("Assigned Client Identifier", Kind.TEXT, _CONNACK),
    SERVER_KEEP_ALIVE: Property("Server Keep Alive", Kind.TWO_BYTES, _CONNACK),
    AUTHENTICATION_METHOD: Property("Authentication Method", Kind.TEXT, frozenset({CONNECT, CONNACK, AUTH})),
    AUTHENTICATION_DATA: Property("Authentication Data", Kind.BINARY, frozenset({CONNECT, CONNACK, AUTH})),
    REQUEST_PROBLEM_INFORMATION: Property("Request Problem Information", Kind.BYTE, _CONNECT, highest=1),
    WILL_DELAY_INTERVAL: Property("Will Delay Interval", Kind.FOUR_BYTES, frozenset({WILL})),
    REQUEST_RESPONSE_INFORMATION: Property("Request Response Information", Kind.BYTE, _CONNECT, highest=1),
    RESPONSE_INFORMATION: Property("Response Information", Kind.TEXT, _CONNACK),
    SERVER_REFERENCE: Property("Server Reference", Kind.TEXT, frozenset({CONNACK, DISCONNECT})),
    REASON_STRING: Property("Reason String", Kind.TEXT, _REASONS),
    RECEIVE_MAXIMUM: Property("Receive Maximum", Kind.TWO_BYTES, _LIMITS, lowest=1),
    TOPIC_ALIAS_MAXIMUM: Property("Topic Alias Maximum", Kind.TWO_BYTES, _LIMITS),
    TOPIC_ALIAS: Property("Topic Alias", Kind.TWO_BYTES, frozenset({PUBLISH})),
    MAXIMUM_QOS: Property("Maximum QoS", Kind.BYTE, _CONNACK, highest=1),
    RETAIN_AVAILABLE: Property("Retain Available", Kind.BYTE, _CONNACK, highest=1),
    USER_PROPERTY: Property("User Property", Kind.TEXT_PAIR, _ALL, _ALL),
    MAXIMUM_PACKET_SIZE: Property("Maximum Packet Size", Kind.FOUR_BYTES, _LIMITS, lowest=1),
    WILDCARD_SUBSCRIPTION_AVAILABLE: Property("Wildcard Subscription Available", Kind.BYTE, _CONNACK, highest=1),
    SUBSCRIPTION_IDENTIFIER_AVAILABLE: Property("Subscription Identifier Available", Kind.BYTE, _CONNACK, highest=1),
    SHARED_SUBSCRIPTION_AVAILABLE: Property("Shared Subscription Available", Kind.BYTE, _CONNACK, highest=1),
}


class Found(NamedTuple):
    """A property found in a packet. start, end: the index of its first byte, and the index behind it."""

    identifier: int
    value: Any
    start: int
    end: int


def decode(data: bytes, at: int, end: int, packet: int, most: int = _NO_LIMIT) -> tuple[dict[int, Any], int]:
    """Decode the properties at `at`, which begin with their length, in a packet that ends at `end`.

    packet: its type, one of the constants above. most: see walk(). Returns the properties and the index behind them.
    Raises MalformedPacket.
    """
    at, stop = property_range(data, at, end)
    properties: dict[int, Any] = {}
    for found in walk(data, at, stop, packet, most):
        if packet in TABLE[found.identifier].repeats:
            properties.setdefault(found.identifier, []).append(found.value)
        else:
            properties[found.identifier] = found.value
    return properties, stop


def property_range(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode the length of properties at `at`. Returns the indices where they begin and end. Raises MalformedPacket."""
    length, at = _variable_integer(data, at, end)
    if length > end - at:
        raise MalformedPacket("properties cut short")
    return at, at + length


def walk(data: bytes, at: int, end: int, packet: int, most: int = _NO_LIMIT) -> Iterator[Found]:
    """Yield the properties from `at` to `end`, in order. Raises MalformedPacket at the first that is not allowed.

    most: bytes of all properties, each counted with OVERHEAD more. Beyond them MalformedPacket is raised: before the
    first property if their bytes alone are too many, else as soon as the properties are too many.
    """
    seen: set[int] = set()
    most -= end - at
    while at < end:
        most -= OVERHEAD
        if most < 0:
            # [MQTT-4.13.1-1] the reason code of a limit that the standard does not know.
            raise MalformedPacket("properties too large", ReasonCode.QUOTA_EXCEEDED)
        start = at
        if data[at] == USER_PROPERTY:
            # A packet may have many of this kind alone: without the checks below, which hold for it, it takes a third
            # less time.
            name, at = _text(data, at + 1, end)
            text, at = _text(data, at, end)
            yield Found(USER_PROPERTY, (name, text), start, at)
            continue
        identifier, at = _variable_integer(data, at, end)
        known = TABLE.get(identifier)
        if known is None or packet not in known.packets:
            raise MalformedPacket("property that may not stand there")  # 2.2.2.2
        if identifier in seen and packet not in known.repeats:
            raise MalformedPacket("property twice", ReasonCode.PROTOCOL_ERROR)
        seen.add(identifier)
        value, at = _value(data, at, end, known.kind)
        if isinstance(value, int) and not known.lowest <= value <= known.highest:
            raise MalformedPacket("property out of range", ReasonCode.PROTOCOL_ERROR)
        if identifier == RESPONSE_TOPIC and isinstance(value, bytes) and not is_topic_name(value):
            raise MalformedPacket("response topic", ReasonCode.PROTOCOL_ERROR)  # [MQTT-3.3.2-14]
        yield Found(identifier, value, start, at)


def _value(data: bytes, at: int, end: int, kind: Kind) -> tuple[Any, int]:
    """Return a value and the index behind it."""
    if kind is Kind.VARIABLE_INTEGER:
        return _variable_integer(data, at, end)
    if kind is Kind.BINARY:
        return _field(data, at, end)
    if kind is Kind.TEXT:
        return _text(data, at, end)
    if kind is Kind.TEXT_PAIR:
        name, at = _text(data, at, end)
        text, at = _text(data, at, end)
        return (name, text), at
    stop = at + kind.value
    if stop > end:
        raise MalformedPacket("properties cut short")
    return int.from_bytes(data[at:stop], "big"), stop


def _variable_integer(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in (0, 7, 14, 21):
        if at >= end:
            raise MalformedPacket("properties cut short")
        digit = data[at]
        at += 1
        value |= (digit & 127) << shift
        if digit < 128:
            if not digit and shift:
                raise MalformedPacket("variable byte integer")  # [MQTT-1.5.5-1]
            return value, at
    raise MalformedPacket("variable byte integer")


def _field(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    start = at + 2
    stop = start + int.from_bytes(data[at:start], "big")
    if start > end or stop > end:
        raise MalformedPacket("properties cut short")
    return data[start:stop], stop


def _text(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    text, at = _field(data, at, end)
    if not is_utf8(text):
        raise MalformedPacket("invalid UTF-8")  # [MQTT-1.5.4-1, -2]
    return text, at


def encode(properties: Properties) -> bytes:
    """Encode properties with their length before them. Values have the form that decode() returns."""
    parts: list[bytes] = []
    for identifier, value in properties.items():
        values = value if isinstance(value, list) else [value]
        parts += [encode_one(identifier, each) for each in values]
    encoded = b"".join(parts)
    return encode_remaining_length(len(encoded)) + encoded


def encode_one(identifier: int, value: Any) -> bytes:
    """Encode one property."""
    kind = TABLE[identifier].kind
    if kind is Kind.VARIABLE_INTEGER:
        encoded = encode_remaining_length(value)
    elif kind is Kind.TEXT_PAIR:
        encoded = b"".join(struct.pack(">H", len(text)) + text for text in value)
    elif kind in (Kind.TEXT, Kind.BINARY):
        encoded = struct.pack(">H", len(value)) + value
    else:
        encoded = value.to_bytes(kind.value, "big")
    return bytes((identifier,)) + encoded
