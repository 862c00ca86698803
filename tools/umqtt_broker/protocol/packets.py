"""MQTT control packets on the wire: constants, encoders, and decoders for what is not on the fast path.

PUBLISH and its acknowledgements are the fast path: clients.packet_loop and clients.acknowledgements decode them.
"""

import struct
from collections.abc import Iterator
from typing import Final

from ..errors import MalformedPacket
from .topics import is_too_deep, is_topic_filter, reason_code_of

# First bytes of packets on the wire, fixed flags included (table 2.2).
CONNECT: Final = 0x10
CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SUBSCRIBE: Final = 0x82
SUBACK: Final = 0x90
UNSUBSCRIBE: Final = 0xA2
UNSUBACK: Final = 0xB0
PINGREQ: Final = 0xC0
DISCONNECT: Final = 0xE0
AUTH: Final = 0xF0

DUP: Final = 0x08
PINGRESP: Final = b"\xd0\x00"

# CONNACK return codes (table 3.1).
ACCEPTED: Final = 0
UNACCEPTABLE_PROTOCOL_VERSION: Final = 1
IDENTIFIER_REJECTED: Final = 2
SERVER_UNAVAILABLE: Final = 3
BAD_USER_NAME_OR_PASSWORD: Final = 4
NOT_AUTHORIZED: Final = 5

# The texts of the return codes in the log.
RETURN_CODES: Final = {
    UNACCEPTABLE_PROTOCOL_VERSION: "return code 1",
    IDENTIFIER_REJECTED: "return code 2, its identifier is not allowed",
    SERVER_UNAVAILABLE: "return code 3, it may come again later",
    BAD_USER_NAME_OR_PASSWORD: "return code 4, unknown user or wrong password",
    NOT_AUTHORIZED: "return code 5, it is not allowed",
}

SUBSCRIPTION_FAILURE: Final = 0x80

# Every 16-bit number in wire order: an index is cheaper than packing it again for each message.
UINT16: Final = [struct.pack(">H", number) for number in range(65536)]
# The same for a byte: the first of a packet, and a remaining length below 128.
UINT8: Final = [bytes((number,)) for number in range(256)]


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


def split_publish(data: bytes, at: int) -> tuple[int, bytes, bytes, bytes, int]:
    """Split the complete, valid PUBLISH at `at`.

    Returns the first byte, the topic name, the packet identifier (b"" at QoS 0), the rest of the packet (payload, with
    MQTT 5 the properties before it), and the index behind the packet.
    """
    length = shift = 0
    body = at + 1
    while True:
        digit = data[body]
        length |= (digit & 127) << shift
        shift += 7
        body += 1
        if digit < 128:
            break
    end = body + length
    name_end = body + 2 + (data[body] << 8 | data[body + 1])
    content = name_end + 2 if data[at] & 6 else name_end
    return data[at], data[body + 2 : name_end], data[name_end:content], data[content:end], end


def topic_name_in(head: bytes) -> bytes:
    """Return the topic name in `head`, a PUBLISH up to and including the topic name."""
    at = 1
    while head[at] & 128:
        at += 1
    return head[at + 3 :]


def encode_connack(return_code: int, session_present: bool = False) -> bytes:
    """Encode a CONNACK. session_present is ignored with a return code other than 0 [MQTT-3.2.2-4]."""
    return bytes((CONNACK, 2, session_present and return_code == ACCEPTED, return_code))


def encode_suback(packet_id: int, return_codes: bytes) -> bytes:
    """Encode a SUBACK with one return code for each topic filter, in order [MQTT-3.8.4-5]."""
    return b"".join((bytes((SUBACK,)), encode_remaining_length(2 + len(return_codes)), UINT16[packet_id], return_codes))


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
    """Raise MalformedPacket if the filter is not valid or has too many levels."""
    if not is_topic_filter(topic_filter):
        raise MalformedPacket("invalid topic filter", reason_code_of(topic_filter, 0x8F))
    if is_too_deep(topic_filter, max_levels):
        raise MalformedPacket("too many topic levels", 0x8F)


def check_packet_id(packet: bytes) -> None:
    """Raise MalformedPacket unless the body of a packet begins with a packet identifier."""
    if len(packet) < 2:
        raise MalformedPacket("packet identifier missing")
    if packet[:2] == b"\0\0":
        raise MalformedPacket("packet identifier 0")  # [MQTT-2.3.1-1]


def field(packet: bytes, at: int, reason: str) -> tuple[bytes, int]:
    """Return the length-prefixed bytes at `at` and the index behind them. Raises MalformedPacket(reason)."""
    start = at + 2
    if len(packet) < start:
        raise MalformedPacket(reason)
    end = start + (packet[at] << 8 | packet[at + 1])
    if len(packet) < end:
        raise MalformedPacket(reason)
    return packet[start:end], end
