"""MQTT control packets on the wire: constants, encoders, and decoders for what is not on the fast path.

PUBLISH and its acknowledgements are decoded by clients.packet_loop and clients.acknowledgements, where the speed is.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import MalformedPacket
from .messages import Will
from .topics import is_too_deep, is_topic_filter, is_topic_name, is_utf8

# First bytes as they stand on the wire, fixed flags included (table 2.2).
CONNECT = 0x10
CONNACK = 0x20
PUBLISH = 0x30
PUBACK = 0x40
PUBREC = 0x50
PUBREL = 0x62
PUBCOMP = 0x70
SUBSCRIBE = 0x82
SUBACK = 0x90
UNSUBSCRIBE = 0xA2
UNSUBACK = 0xB0
PINGREQ = 0xC0
DISCONNECT = 0xE0
AUTH = 0xF0

DUP = 0x08
PINGRESP = b"\xd0\x00"

# CONNACK return codes (table 3.1).
ACCEPTED = 0
UNACCEPTABLE_PROTOCOL_VERSION = 1
IDENTIFIER_REJECTED = 2
SERVER_UNAVAILABLE = 3
BAD_USER_NAME_OR_PASSWORD = 4
NOT_AUTHORIZED = 5

# What they say in the log.
RETURN_CODES = {
    UNACCEPTABLE_PROTOCOL_VERSION: "return code 1, it may not be a bridge (allow_bridge)",
    IDENTIFIER_REJECTED: "return code 2, its identifier is not allowed",
    SERVER_UNAVAILABLE: "return code 3, it may come again later",
    BAD_USER_NAME_OR_PASSWORD: "return code 4, unknown user or wrong password",
    NOT_AUTHORIZED: "return code 5, it is not allowed",
}

SUBSCRIPTION_FAILURE = 0x80

# Every 16-bit number in wire order: an index is cheaper than packing it again for each message.
UINT16 = [struct.pack(">H", number) for number in range(65536)]
# The same for a byte: the first of a packet, and a remaining length below 128.
UINT8 = [bytes((number,)) for number in range(256)]

# The largest CONNECT: a variable header of at most 12 bytes and five fields of at most 65,537.
MAX_CONNECT_LENGTH = 12 + 5 * 65537

_PROTOCOLS = {b"MQTT": 4, b"MQIsdp": 3}


class Connect(NamedTuple):
    """A decoded CONNECT. `keep_alive` in seconds, 0 for none; `user_name` and `password` None when absent.

    bridge: the client is another broker, and wants neither its own messages back nor their retain flag taken away.
    """

    protocol_level: int
    clean_session: bool
    keep_alive: int
    client_id: bytes
    will: Will | None
    user_name: bytes | None
    password: bytes | None
    bridge: bool = False


class UnacceptableProtocol(MalformedPacket):
    """The client speaks a protocol level the broker does not: answered with return code 1 [MQTT-3.1.2-2]."""


def refusal(reason: str, data: bytes) -> str:
    """Return why something that is no CONNECT is refused, in the words of the log: what it seems to be instead."""
    if data.startswith((b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS ")):
        return f"an HTTP request at a listener for MQTT ({reason})"
    if data.startswith(b"\x16\x03"):
        return f"a TLS handshake at a listener without TLS ({reason})"
    return reason


def encode_remaining_length(length: int) -> bytes:
    """Encode `length` (0 to 268,435,455) in one to four bytes (2.2.3)."""
    if length < 128:
        return bytes((length,))
    encoded = bytearray()
    while length > 127:
        encoded.append(length & 127 | 128)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def encode_publish_head(first_byte: int, topic_name: bytes, payload_length: int) -> bytes:
    """Encode a PUBLISH up to and including the topic name; with QoS above 0 a packet identifier follows."""
    length = 2 + len(topic_name) + payload_length
    if first_byte & 6:
        length += 2
    encoded_length = UINT8[length] if length < 128 else encode_remaining_length(length)
    return UINT8[first_byte] + encoded_length + UINT16[len(topic_name)] + topic_name


def topic_name_in(head: bytes) -> bytes:
    """Return the topic name of a PUBLISH that ends with it: behind the first byte and two lengths."""
    at = 1
    while head[at] & 128:
        at += 1
    return head[at + 3 :]


def encode_connack(return_code: int, session_present: bool = False) -> bytes:
    """Encode a CONNACK. session_present is 0 with a return code other than 0 [MQTT-3.2.2-4]."""
    return bytes((CONNACK, 2, session_present and return_code == ACCEPTED, return_code))


def encode_suback(packet_id: int, return_codes: bytes) -> bytes:
    """Encode a SUBACK with one return code for each topic filter, in order [MQTT-3.8.4-5]."""
    return b"".join((bytes((SUBACK,)), encode_remaining_length(2 + len(return_codes)), UINT16[packet_id], return_codes))


def decode_connect(packet: bytes, fixed_flags: int = 0) -> Connect:
    """Decode the body of a CONNECT (what follows the remaining length).

    Raises UnacceptableProtocol, or MalformedPacket for everything else section 3.1 forbids. An empty
    client_id is left to the caller: whether it is allowed depends on the broker.
    """
    name, at = field(packet, 0, "CONNECT cut short")
    if name not in _PROTOCOLS:
        raise MalformedPacket("unknown protocol name")
    if len(packet) < at + 4:
        raise MalformedPacket("CONNECT cut short")
    level, flags = packet[at], packet[at + 1]
    # The top bit of the level is not in the specification: mosquitto's bridges set it, and so do ours.
    is_bridge, level = bool(level & 0x80), level & 0x7F
    if level != _PROTOCOLS[name]:
        raise UnacceptableProtocol(f"unacceptable protocol level {packet[at]}")
    # MQTT 3.1 does not use them, and some of its clients set them; mosquitto takes them likewise.
    if fixed_flags and level == 4:
        raise MalformedPacket("CONNECT flags")  # [MQTT-2.2.2-2]
    keep_alive = packet[at + 2] << 8 | packet[at + 3]
    at += 4
    if flags & 1 and level == 4:
        raise MalformedPacket("CONNECT reserved flag set")  # [MQTT-3.1.2-3]
    will_qos = flags >> 3 & 3
    if flags & 4:
        if will_qos == 3:
            raise MalformedPacket("will QoS 3")  # [MQTT-3.1.2-14]
    elif flags & 0x38:
        raise MalformedPacket("will flags without a will")  # [MQTT-3.1.2-13, -15]
    if flags & 0xC0 == 0x40 and level == 4:
        raise MalformedPacket("password without user name")  # [MQTT-3.1.2-22]
    client_id, at = _text(packet, at)
    will = None
    if flags & 4:
        will_topic, at = _text(packet, at)
        will_payload, at = field(packet, at, "CONNECT cut short")
        if not is_topic_name(will_topic):
            raise MalformedPacket("will topic is not a topic name")
        will = Will(will_topic, will_payload, will_qos, bool(flags & 0x20))
    user_name = password = None
    if flags & 0x80:
        user_name, at = _text(packet, at)
    if flags & 0x40:
        password, at = field(packet, at, "CONNECT cut short")
    if at != len(packet):
        raise MalformedPacket("CONNECT longer than its fields")
    return Connect(level, bool(flags & 2), keep_alive, client_id, will, user_name, password, is_bridge)


def decode_subscribe(packet: bytes, max_levels: int) -> Iterator[tuple[bytes, int]]:
    """Decode the body of a SUBSCRIBE, one pair (topic_filter, QoS) after the other. Raises MalformedPacket."""
    check_packet_id(packet)
    at, end = 2, len(packet)
    if at == end:
        raise MalformedPacket("SUBSCRIBE without a topic filter")  # [MQTT-3.8.3-3]
    while at < end:
        topic_filter, at = field(packet, at, "SUBSCRIBE cut short")
        if at == end:
            raise MalformedPacket("SUBSCRIBE cut short")
        qos = packet[at]
        at += 1
        if qos > 2:
            raise MalformedPacket("SUBSCRIBE QoS above 2")  # [MQTT-3.8.3-4]
        check_topic_filter(topic_filter, max_levels)
        yield topic_filter, qos


def decode_unsubscribe(packet: bytes, max_levels: int) -> Iterator[bytes]:
    """Decode the body of an UNSUBSCRIBE, one topic filter after the other. Raises MalformedPacket."""
    check_packet_id(packet)
    at, end = 2, len(packet)
    if at == end:
        raise MalformedPacket("UNSUBSCRIBE without a topic filter")  # [MQTT-3.10.3-2]
    while at < end:
        topic_filter, at = field(packet, at, "UNSUBSCRIBE cut short")
        check_topic_filter(topic_filter, max_levels)
        yield topic_filter


def check_topic_filter(topic_filter: bytes, max_levels: int) -> None:
    """Raise MalformedPacket if a client may not subscribe to this."""
    if not is_topic_filter(topic_filter):
        raise MalformedPacket("invalid topic filter", 0x8F)
    if is_too_deep(topic_filter, max_levels):
        raise MalformedPacket("too many topic levels", 0x8F)


def check_packet_id(packet: bytes) -> None:
    """Raise MalformedPacket unless the body of a packet begins with a packet identifier."""
    if len(packet) < 2:
        raise MalformedPacket("packet identifier missing")
    if packet[:2] == b"\0\0":
        raise MalformedPacket("packet identifier 0")  # [MQTT-2.3.1-1]


def field(packet: bytes, at: int, reason: str) -> tuple[bytes, int]:
    """Return the length-prefixed bytes at `at` and the index behind them."""
    start = at + 2
    if len(packet) < start:
        raise MalformedPacket(reason)
    end = start + (packet[at] << 8 | packet[at + 1])
    if len(packet) < end:
        raise MalformedPacket(reason)
    return packet[start:end], end


def _text(packet: bytes, at: int) -> tuple[bytes, int]:
    text, end = field(packet, at, "CONNECT cut short")
    if not is_utf8(text):
        raise MalformedPacket("invalid UTF-8")  # [MQTT-1.5.3-1]
    return text, end
