"""The part of MQTT 3.1.1 and 5 that a collector needs: encodes six packets, splits the packets it receives.

This module does no I/O. It splits packets itself, because a collector keeps the raw PUBLISH bytes and never builds
message objects, which makes it fast; what is not on that path is the client's codec. Messages of MQTT 5 that have no
properties are stored as packets of MQTT 3.1.1. Clause numbers are those of OASIS MQTT 3.1.1.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from umqtt_robust.mqtt5 import variable, with_length
from umqtt_robust.packets import connect, string

from ..errors import MalformedStream
from .wire5 import CONNECT_PROPERTIES, DISCONNECT, decode_integer, end_of_properties

CONNACK = 0x20
PUBLISH = 0x30
PUBACK_HEAD = b"\x40\x02"
SUBACK = 0x90
UNSUBACK = 0xB0
PINGRESP = 0xD0

PINGREQ_PACKET = b"\xc0\x00"
DISCONNECT_PACKET = b"\xe0\x00"

# First bytes, including flags, of the packets other than PUBLISH that a broker may send here [MQTT-2.2.2-2].
_FROM_BROKER = frozenset((CONNACK, SUBACK, UNSUBACK, PINGRESP))
_FROM_BROKER_5 = _FROM_BROKER | {DISCONNECT}
SUBACK_FAILURE = 0x80
CONNACK_REFUSALS = {
    1: "protocol level not supported",
    2: "client_id rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


LONGEST_FIELD = 65535


class Received(NamedTuple):
    """The complete packets at the front of a receive buffer.

    :ivar consumed: number of bytes they take; the start of an incomplete packet may follow.
    :ivar publishes: the PUBLISH packets, concatenated in order, in the form of `level`.
    :ivar messages: number of PUBLISH packets.
    :ivar pubacks: the PUBACK packets for the messages of QoS 1, in the same order [MQTT-4.6.0-2].
    :ivar redelivered: number of messages of QoS 1 with DUP set.
    :ivar others: every other packet, complete.
    :ivar wanted: size of the incomplete packet that follows, in bytes; 0 if it is not known yet.
    :ivar level: protocol level of `publishes`: 5 if one of them has properties, otherwise 4 (MQTT 3.1.1).
    """

    consumed: int
    publishes: bytes
    messages: int
    pubacks: bytes
    redelivered: int
    others: list[bytes]
    wanted: int
    level: int


def is_field(text: str) -> bool:
    """Return whether `text` is a valid MQTT string [1.5.3]; command line text may hold bytes that are not UTF-8."""
    try:
        return "\0" not in text and len(text.encode()) <= LONGEST_FIELD
    except UnicodeEncodeError:
        return False


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + with_length(body)


def connect_packet(
    client_id: str,
    *,
    keep_alive: int,
    username: str | None = None,
    password: bytes | None = None,
    level: int = 4,
    clean: bool = False,
) -> bytes:
    """Encode CONNECT without a will (3.1).

    :param keep_alive: keep-alive time in seconds.
    :param password: ignored without a user name.
    :param level: protocol level: 4 for MQTT 3.1.1, or 5; with either, the session never expires.
    :param clean: whether the broker forgets an older session, and this one when the connection ends.
    """
    user = None if username is None else username.encode()
    properties = CONNECT_PROPERTIES if level == 5 else b""
    body = connect(client_id.encode(), keep_alive, clean, None, user, password, level, properties)
    return _packet(0x10, body)


def subscribe_packet(packet_id: int, topic_filters: Sequence[str], level: int = 4) -> bytes:
    """Encode SUBSCRIBE for every filter at QoS 1 (3.8)."""
    body = b"".join(string(topic_filter.encode()) + b"\x01" for topic_filter in topic_filters)
    return _packet(0x82, _packet_id(packet_id, level) + body)


def unsubscribe_packet(packet_id: int, topic_filters: Sequence[str], level: int = 4) -> bytes:
    """Encode UNSUBSCRIBE (3.10)."""
    body = b"".join(string(topic_filter.encode()) for topic_filter in topic_filters)
    return _packet(0xA2, _packet_id(packet_id, level) + body)


def _packet_id(packet_id: int, level: int) -> bytes:
    """Encode a packet identifier, followed by empty properties with MQTT 5."""
    return struct.pack(">H", packet_id) + (b"\0" if level == 5 else b"")


def split(buffer: bytes | bytearray, level: int = 4) -> Received:
    """Split off the complete packets at the front of `buffer`; `buffer` itself is not changed.

    Every PUBLISH is checked here, so that readers of a spool need not check it again.

    :param level: protocol level of the connection: 4 for MQTT 3.1.1, or 5.
    :raises MalformedStream: there is a packet that a broker may not send to this client; earlier packets of the
        buffer are dropped with it, unacknowledged, and the broker sends them again after the reconnect.
    """
    # Slices of bytes are cheaper than slices of a bytearray, and each message needs one.
    data = bytes(buffer)
    offset, count, redelivered, wanted, size = 0, 0, 0, 0, len(data)
    packet_ids: list[bytes] = []
    other_spans: list[tuple[int, int]] = []
    # Used with MQTT 5 only, until a PUBLISH has properties: the packets in the form of 3.1.1.
    stripped: list[bytes] = []
    has_properties = False
    from_broker = _FROM_BROKER_5 if level == 5 else _FROM_BROKER
    while offset + 2 <= size:
        first = data[offset]
        length, body = data[offset + 1], offset + 2
        if length & 128:
            # Two bytes are the usual length of telemetry, so they are decoded without a call.
            if body < size and data[body] < 128:
                length, body = length & 127 | data[body] << 7, body + 1
            else:
                header = decode_integer(data, offset + 1, size)
                if header is None:
                    break
                length, body = header
        end = body + length
        if first & 0xF0 != PUBLISH:
            # Refused before it is complete: garbage may announce 256 MB that never arrive.
            if first not in from_broker:
                raise MalformedStream(f"the broker sent a packet of type 0x{first:02x}, not valid here")
            if end > size:
                wanted = end - offset
                break
            other_spans.append((offset, end))
            offset = end
            continue
        if end > size:
            wanted = end - offset
            break
        after_topic = body + 2 + (data[body] << 8 | data[body + 1]) if length >= 2 else end + 1
        if first & 6 == 2:
            packet_id = data[after_topic : after_topic + 2]
            if after_topic + 2 > end or packet_id == b"\0\0":
                raise MalformedStream("the broker sent a PUBLISH with a bad packet_id or topic length")
            packet_ids.append(packet_id)
            if first & 8:
                redelivered += 1
        elif first & 14 or after_topic > end:
            # QoS 2 and 3 were never granted, DUP needs QoS > 0 [MQTT-3.3.1-2].
            raise MalformedStream(f"the broker sent a malformed PUBLISH (0x{first:02x}, {length} bytes)")
        if level == 5:
            at = after_topic + 2 if first & 6 else after_topic
            if after_topic == body + 2:
                # Only a topic alias could replace the name, and CONNECT allowed none.
                raise MalformedStream("the broker sent a PUBLISH without a topic name")
            if at == end or data[at]:
                end_of_properties(data, at, end)
                has_properties = True
            elif not has_properties:
                stripped += data[offset : offset + 1], variable(length - 1), data[body:at], data[at + 1 : end]
        count += 1
        offset = end
    others = [data[a:b] for a, b in other_spans]
    pubacks = PUBACK_HEAD + PUBACK_HEAD.join(packet_ids) if packet_ids else b""
    if level == 5 and not has_properties:
        publishes, level = b"".join(stripped), 4
    else:
        publishes = _without(data, offset, other_spans)
    return Received(offset, publishes, count, pubacks, redelivered, others, wanted, level)


def _without(data: bytes, end: int, spans: list[tuple[int, int]]) -> bytes:
    """Return the bytes of `data` before `end`, without those in `spans`."""
    if not spans:
        return data[:end]
    starts = [0, *(b for _, b in spans)]
    ends = [*(a for a, _ in spans), end]
    return b"".join(data[a:b] for a, b in zip(starts, ends, strict=True))
