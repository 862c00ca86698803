"""MQTT 5 control packets on the wire, in addition to packets.py: encoders, and decoders off the fast path."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ..errors import MalformedPacket
from . import properties
from .messages import NO_PROPERTIES, MessageProperties
from .packets import (
    CONNACK,
    DISCONNECT,
    SUBACK,
    UNSUBACK,
    check_packet_id,
    check_topic_filter,
    encode_remaining_length,
    field,
)
from .properties import NONE, Properties
from .reason_codes import ReasonCode

SUCCESS: Final = ReasonCode.SUCCESS

# Topic aliases in each direction of a connection. For each the broker keeps a topic name, which may be long.
TOPIC_ALIAS_MAXIMUM: Final = 10

# The Session Expiry Interval of a session that never expires (3.1.2.11.2).
FOR_EVER: Final = 0xFFFFFFFF

# Subscription Options (3.8.3.1), whose two lowest bits are the QoS. RETAIN_HANDLING is the mask of the three values
# before it, which say when retained messages are sent.
NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08
RETAIN_ALWAYS: Final = 0x00
RETAIN_IF_NEW: Final = 0x10
RETAIN_NEVER: Final = 0x20
RETAIN_HANDLING: Final = 0x30


class Connect5(NamedTuple):
    """The part of a CONNECT that only MQTT 5 has.

    session_expiry: seconds; 0xFFFFFFFF: never. max_packet_size: bytes; 0: no limit. authentication_method: of enhanced
    authentication, which this broker does not offer; None: there is none. wants_reasons: the client accepts reason
    strings. topic_alias_maximum: how many aliases the broker may use, never more than its own TOPIC_ALIAS_MAXIMUM.
    """

    session_expiry: int = 0
    receive_maximum: int = 65535
    max_packet_size: int = 0
    authentication_method: bytes | None = None
    wants_reasons: bool = True
    topic_alias_maximum: int = 0


# Bytes of the properties of a CONNECT that are remembered with what they mean: three numbers and their length.
_MOST_REMEMBERED: Final = 16


def decode_connect_properties(packet: bytes, at: int, most: int) -> tuple[Connect5, int]:
    """Decode the properties of a CONNECT. Returns them and the index behind them. Raises MalformedPacket.

    most: the limit of their size, see properties.walk(), as in the other decoders of this module.
    """
    _, stop = properties.property_range(packet, at, len(packet))
    encoded = packet[at:stop]
    decode = _decode_short_connect_properties if len(encoded) <= _MOST_REMEMBERED else _decode_connect_properties
    return decode(encoded, most), stop


def _decode_connect_properties(encoded: bytes, most: int) -> Connect5:
    """Decode the properties of a CONNECT, which begin with their length. most: see walk()."""
    found, _ = properties.decode(encoded, 0, len(encoded), properties.CONNECT, most)
    method = found.get(properties.AUTHENTICATION_METHOD)
    if method is None and properties.AUTHENTICATION_DATA in found:
        raise MalformedPacket("authentication data without a method", ReasonCode.PROTOCOL_ERROR)
    return Connect5(
        found.get(properties.SESSION_EXPIRY_INTERVAL, 0),
        found.get(properties.RECEIVE_MAXIMUM, 65535),
        found.get(properties.MAXIMUM_PACKET_SIZE, 0),
        method,
        found.get(properties.REQUEST_PROBLEM_INFORMATION, 1) == 1,
        min(found.get(properties.TOPIC_ALIAS_MAXIMUM, 0), TOPIC_ALIAS_MAXIMUM),
    )


# A fleet's clients send the same few bytes. Remembering them, and the CONNACKs that are alike, saves a sixth of the
# processor time of a connection.
_decode_short_connect_properties: Final = lru_cache(maxsize=64)(_decode_connect_properties)


def decode_will_properties(packet: bytes, at: int, most: int) -> tuple[int, MessageProperties, int]:
    """Decode the properties of a will. Raises MalformedPacket.

    Returns its delay in seconds, the properties of the message, and the index behind the properties.
    """
    delay, expiry = 0, None
    passed_on: list[bytes] = []
    at, stop = properties.property_range(packet, at, len(packet))
    for found in properties.walk(packet, at, stop, properties.WILL, most):
        if found.identifier == properties.WILL_DELAY_INTERVAL:
            delay = found.value
        elif found.identifier == properties.MESSAGE_EXPIRY_INTERVAL:
            expiry = found.value
        else:
            passed_on.append(packet[found.start : found.end])
    return delay, MessageProperties(expiry, b"".join(passed_on)), stop


def decode_publish_properties(data: bytes, at: int, end: int, most: int) -> tuple[int, MessageProperties, int]:
    """Decode the properties of a client's PUBLISH. Raises MalformedPacket.

    Returns the topic alias (0: none), the properties of the message, and the index of the payload.
    """
    at, stop = properties.property_range(data, at, end)
    topic_alias, expiry = 0, None
    passed_on: list[bytes] = []
    for found in properties.walk(data, at, stop, properties.PUBLISH, most):
        if found.identifier == properties.TOPIC_ALIAS:
            if not found.value:
                raise MalformedPacket("topic alias", ReasonCode.TOPIC_ALIAS_INVALID)  # [MQTT-3.3.2-8]
            topic_alias = found.value
        elif found.identifier == properties.MESSAGE_EXPIRY_INTERVAL:
            expiry = found.value
        elif found.identifier == properties.SUBSCRIPTION_IDENTIFIER:
            # [MQTT-3.3.4-6]
            raise MalformedPacket("subscription identifier from a client", ReasonCode.PROTOCOL_ERROR)
        else:
            # [MQTT-3.3.2-4, -15, -16, -17, -18, -20]
            passed_on.append(data[found.start : found.end])
    if expiry is None and not passed_on:
        return topic_alias, NO_PROPERTIES, stop
    return topic_alias, MessageProperties(expiry, b"".join(passed_on)), stop


# The content of a PUBLISH is what follows the packet identifier: the properties and the payload. A queue of MQTT 5
# holds contents where a queue of MQTT 3.1.1 holds payloads. HAS_PROPERTIES in a message's flags says that it has a
# content; the other flag, 1, is the retain flag.
HAS_PROPERTIES: Final = 2
# The first byte of a content without properties: their length, 0.
NOTHING: Final = b"\0"


def encode_content(
    payload: bytes, expiry: int | None = None, passed_on: bytes = b"", identifiers: bytes = b""
) -> bytes:
    """Encode the content of a PUBLISH, with the expiry as the first property: age() relies on that.

    expiry: seconds. passed_on, identifiers: encoded properties, and encoded subscription identifiers.
    """
    if expiry is not None:
        passed_on = properties.encode_one(properties.MESSAGE_EXPIRY_INTERVAL, expiry) + passed_on
    length = len(passed_on) + len(identifiers)
    if not length:
        return NOTHING + payload
    return b"".join((encode_remaining_length(length), passed_on, identifiers, payload))


def encode_identifier(identifier: int) -> bytes:
    """Encode a subscription identifier; b"" for 0, none."""
    return properties.encode_one(properties.SUBSCRIPTION_IDENTIFIER, identifier) if identifier else b""


def add_properties(content: bytes, encoded: bytes) -> bytes:
    """Return a content with more properties behind those that it has. encoded: subscription identifiers or an alias."""
    if not encoded:
        return content
    at, stop = properties.property_range(content, 0, len(content))
    return b"".join((encode_remaining_length(stop - at + len(encoded)), content[at:stop], encoded, content[stop:]))


def payload_of(content: bytes) -> bytes:
    """Return the payload of a content: a client of MQTT 3.1.1 gets only that."""
    return content[properties.property_range(content, 0, len(content))[1] :]


def age(content: bytes, remaining: int) -> bytes:
    """Return a content whose expiry, if it has one, is set to `remaining` seconds [MQTT-3.3.2-6]."""
    at, stop = properties.property_range(content, 0, len(content))
    if at == stop or content[at] != properties.MESSAGE_EXPIRY_INTERVAL:
        return content
    return b"".join((content[: at + 1], remaining.to_bytes(4, "big"), content[at + 5 :]))


def encode_connack(reason_code: int, session_present: bool, connack_properties: Properties) -> bytes:
    """Encode a CONNACK (3.2)."""
    encoded = properties.encode(connack_properties)
    return b"".join(
        (bytes((CONNACK,)), encode_remaining_length(2 + len(encoded)), bytes((session_present, reason_code)), encoded)
    )


def encode_acknowledgement(first_byte: int, packet_id: bytes, reason_code: int = SUCCESS) -> bytes:
    """Encode PUBACK, PUBREC, PUBREL or PUBCOMP (3.4 to 3.7); `packet_id` as it stands on the wire."""
    if reason_code == SUCCESS:
        return bytes((first_byte, 2)) + packet_id
    return bytes((first_byte, 3)) + packet_id + bytes((reason_code,))


def encode_suback(packet_id: bytes, reason_codes: bytes, first_byte: int = SUBACK) -> bytes:
    """Encode a SUBACK or UNSUBACK with a reason code for each topic filter, in order [MQTT-3.8.4-6, MQTT-3.11.3-1]."""
    return b"".join(
        (bytes((first_byte,)), encode_remaining_length(3 + len(reason_codes)), packet_id, b"\0", reason_codes)
    )


def encode_unsuback(packet_id: bytes, reason_codes: bytes) -> bytes:
    """Encode an UNSUBACK: see encode_suback()."""
    return encode_suback(packet_id, reason_codes, UNSUBACK)


def encode_disconnect(reason_code: int, disconnect_properties: Properties = NONE) -> bytes:
    """Encode a DISCONNECT (3.14)."""
    encoded = properties.encode(disconnect_properties) if disconnect_properties else b""
    return b"".join((bytes((DISCONNECT,)), encode_remaining_length(1 + len(encoded)), bytes((reason_code,)), encoded))


def decode_reason(packet: bytes, kind: int, most: int) -> tuple[int, dict[int, Any]]:
    """Decode the part of a packet that begins with the reason code. Raises MalformedPacket.

    kind: the packet type, of module properties. Returns the reason code and the properties; both may be absent.
    """
    if not packet:
        return SUCCESS, {}
    if len(packet) == 1:
        return packet[0], {}
    decoded, end = properties.decode(packet, 1, len(packet), kind, most)
    if end != len(packet):
        raise MalformedPacket("longer than its fields")
    return packet[0], decoded


def decode_acknowledgement(packet: bytes, kind: int, most: int) -> tuple[bytes, int]:
    """Decode the body of PUBACK, PUBREC, PUBREL or PUBCOMP. Returns packet identifier and reason code.

    kind: the packet type, of module properties. Raises MalformedPacket.
    """
    check_packet_id(packet)
    reason_code, _ = decode_reason(packet[2:], kind, most)
    if reason_code not in _REASONS[kind]:
        raise MalformedPacket("reason code", ReasonCode.PROTOCOL_ERROR)
    return packet[:2], reason_code


# The reason codes that a client may send, by the type of the packet (sections 3.4.2.1 to 3.7.2.1). Those of DISCONNECT
# (3.14.2.1) are in clients.handlers.
_RECEIVED: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASED: Final = frozenset({0x00, 0x92})
_REASONS: Final = {
    properties.PUBACK: _RECEIVED,
    properties.PUBREC: _RECEIVED,
    properties.PUBREL: _RELEASED,
    properties.PUBCOMP: _RELEASED,
}


def decode_subscription_identifier(packet: bytes, most: int) -> int:
    """Return the subscription identifier of a SUBSCRIBE, 0 if it has none. Raises MalformedPacket."""
    check_packet_id(packet)
    decoded, _ = properties.decode(packet, 2, len(packet), properties.SUBSCRIBE, most)
    return decoded.get(properties.SUBSCRIPTION_IDENTIFIER, 0)


def decode_subscribe(packet: bytes, max_levels: int) -> Iterator[tuple[bytes, int]]:
    """Decode the body of a SUBSCRIBE, one pair (topic_filter, options) after the other. Raises MalformedPacket.

    Its properties are left to decode_subscription_identifier().
    """
    at, end = properties.property_range(packet, 2, len(packet))[1], len(packet)
    if at == end:
        raise MalformedPacket("SUBSCRIBE without a topic filter", ReasonCode.PROTOCOL_ERROR)  # [MQTT-3.8.3-2]
    while at < end:
        topic_filter, at = field(packet, at, "SUBSCRIBE cut short")
        if at == end:
            raise MalformedPacket("SUBSCRIBE cut short")
        options = packet[at]
        at += 1
        if options & 0xC0:
            raise MalformedPacket("SUBSCRIBE options")  # [MQTT-3.8.3-5]
        if options & 3 == 3 or options & RETAIN_HANDLING == RETAIN_HANDLING:
            raise MalformedPacket("SUBSCRIBE options", ReasonCode.PROTOCOL_ERROR)
        check_topic_filter(topic_filter, max_levels)
        if options & NO_LOCAL and topic_filter.startswith(b"$share/"):
            raise MalformedPacket("no-local in a shared subscription", ReasonCode.PROTOCOL_ERROR)  # [MQTT-3.8.3-4]
        yield topic_filter, options


def check_unsubscribe_properties(packet: bytes, most: int) -> None:
    """Raise MalformedPacket unless packet identifier and properties of an UNSUBSCRIBE are valid."""
    check_packet_id(packet)
    properties.decode(packet, 2, len(packet), properties.UNSUBSCRIBE, most)


def decode_unsubscribe(packet: bytes, max_levels: int) -> Iterator[bytes]:
    """Decode the body of an UNSUBSCRIBE, one topic filter after the other. Raises MalformedPacket.

    Its properties are left to check_unsubscribe_properties().
    """
    at, end = properties.property_range(packet, 2, len(packet))[1], len(packet)
    if at == end:
        raise MalformedPacket("UNSUBSCRIBE without a topic filter", ReasonCode.PROTOCOL_ERROR)  # [MQTT-3.10.3-2]
    while at < end:
        topic_filter, at = field(packet, at, "UNSUBSCRIBE cut short")
        check_topic_filter(topic_filter, max_levels)
        yield topic_filter
