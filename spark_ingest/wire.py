"""The MQTT 3.1.1 bytes that a collector needs: six packets out, and the splitting of what comes in.

Sans-I/O. Written out here, and not taken from a client library, because a collector keeps the raw PUBLISH
bytes: it never builds a message, which is what makes it fast. Clause numbers are OASIS MQTT 3.1.1's.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from .errors import MalformedStream

CONNACK = 0x20
PUBLISH = 0x30
PUBACK_HEAD = b"\x40\x02"
SUBACK = 0x90
UNSUBACK = 0xB0
PINGRESP = 0xD0

PINGREQ_PACKET = b"\xc0\x00"
DISCONNECT_PACKET = b"\xe0\x00"

# What a broker may send to a client that subscribes at QoS 1: first bytes, flags included [MQTT-2.2.2-2].
_FROM_BROKER = frozenset((CONNACK, SUBACK, UNSUBACK, PINGRESP))
SUBACK_FAILURE = 0x80
CONNACK_REFUSALS = {
    1: "protocol level not supported",
    2: "client_id rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


class Received(NamedTuple):
    """Whole packets taken from the front of a receive buffer.

    :ivar consumed: bytes taken; what follows is the beginning of a packet.
    :ivar publishes: the PUBLISH packets, one after the other, as they came.
    :ivar messages: how many PUBLISH packets.
    :ivar pubacks: the PUBACK packets that acknowledge those of QoS 1, in their order [MQTT-4.6.0-2].
    :ivar redelivered: how many of them had DUP set.
    :ivar others: every other packet, whole.
    """

    consumed: int
    publishes: bytes
    messages: int
    pubacks: bytes
    redelivered: int
    others: list[bytes]


def remaining_length(value: int) -> bytes:
    """Encode a remaining length (2.2.3)."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">H", len(raw)) + raw


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + remaining_length(len(body)) + body


def connect_packet(client_id: str, *, keep_alive: int) -> bytes:
    """CONNECT with clean_session=0 and no will (3.1). `keep_alive` in seconds."""
    return _packet(0x10, _string("MQTT") + struct.pack(">BBH", 4, 0, keep_alive) + _string(client_id))


def subscribe_packet(packet_id: int, topic_filters: Sequence[str]) -> bytes:
    """SUBSCRIBE to every filter at QoS 1 (3.8)."""
    body = b"".join(_string(topic_filter) + b"\x01" for topic_filter in topic_filters)
    return _packet(0x82, struct.pack(">H", packet_id) + body)


def unsubscribe_packet(packet_id: int, topic_filters: Sequence[str]) -> bytes:
    """UNSUBSCRIBE (3.10)."""
    return _packet(0xA2, struct.pack(">H", packet_id) + b"".join(map(_string, topic_filters)))


def split(buffer: bytes | bytearray) -> Received:
    """Take the whole packets off the front of `buffer`.

    Every PUBLISH is checked here, once, so that whatever lies in a spool can be read back without doubts.

    :raises MalformedStream: a packet that a broker may not send to this client; earlier packets of the
        buffer are dropped with it, unacknowledged, and come again after the reconnect.
    """
    offset, count, redelivered, size = 0, 0, 0, len(buffer)
    packet_ids: list[bytes | bytearray] = []
    other_spans: list[tuple[int, int]] = []
    while offset + 2 <= size:
        first = buffer[offset]
        length, body = buffer[offset + 1], offset + 2
        if length & 128:
            header = _long_remaining_length(buffer, offset, size)
            if header is None:
                break
            length, body = header
        end = body + length
        if first & 0xF0 != PUBLISH:
            # Refused before it is whole: garbage may announce 256 MB that never come.
            if first not in _FROM_BROKER:
                raise MalformedStream(f"the broker sent a packet of type 0x{first:02x}, not valid here")
            if end > size:
                break
            other_spans.append((offset, end))
            offset = end
            continue
        if end > size:
            break
        qos = first & 6
        after_topic = body + 2 + (buffer[body] << 8 | buffer[body + 1]) if length >= 2 else end + 1
        if qos == 2:
            packet_id = buffer[after_topic : after_topic + 2]
            after_topic += 2
            if after_topic > end or packet_id == b"\0\0":
                raise MalformedStream("the broker sent a PUBLISH with a bad packet_id or topic length")
            packet_ids.append(packet_id)
            if first & 8:
                redelivered += 1
        elif qos or first & 8 or after_topic > end:
            # QoS 2 and 3 were never granted, DUP needs QoS > 0 [MQTT-3.3.1-2].
            raise MalformedStream(f"the broker sent a malformed PUBLISH (0x{first:02x}, {length} bytes)")
        count += 1
        offset = end
    publishes = _without(buffer, offset, other_spans)
    pubacks = PUBACK_HEAD + PUBACK_HEAD.join(packet_ids) if packet_ids else b""
    others = [bytes(buffer[a:b]) for a, b in other_spans]
    return Received(offset, publishes, count, pubacks, redelivered, others)


def _long_remaining_length(buffer: bytes | bytearray, offset: int, size: int) -> tuple[int, int] | None:
    """(remaining length, offset of the body) of a packet whose length has several bytes; None: need more."""
    length = 0
    for index in range(4):
        at = offset + 1 + index
        if at >= size:
            return None
        byte = buffer[at]
        length |= (byte & 127) << 7 * index
        if not byte & 128:
            return length, at + 1
    raise MalformedStream("the broker sent a remaining length of more than four bytes [2.2.3]")


def _without(buffer: bytes | bytearray, end: int, spans: list[tuple[int, int]]) -> bytes:
    view = memoryview(buffer)
    pieces: list[memoryview] = []
    start = 0
    try:
        for a, b in spans:
            pieces.append(view[start:a])
            start = b
        pieces.append(view[start:end])
        return b"".join(pieces)
    finally:
        # A bytearray with a live view cannot be shortened by the caller.
        for piece in pieces:
            piece.release()
        view.release()
