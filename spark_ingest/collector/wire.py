"""The MQTT 3.1.1 bytes that a collector needs: six packets out, and the splitting of what comes in.

Sans-I/O. Written out here, and not taken from a client library, because a collector keeps the raw PUBLISH
bytes: it never builds a message, which is what makes it fast. Clause numbers are OASIS MQTT 3.1.1's.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import MalformedStream

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


LONGEST_FIELD = 65535


class Received(NamedTuple):
    """Whole packets taken from the front of a receive buffer.

    :ivar consumed: bytes taken; what follows is the beginning of a packet.
    :ivar publishes: the PUBLISH packets, one after the other, as they came.
    :ivar messages: how many PUBLISH packets.
    :ivar pubacks: the PUBACK packets that acknowledge those of QoS 1, in their order [MQTT-4.6.0-2].
    :ivar redelivered: how many of them had DUP set.
    :ivar others: every other packet, whole.
    :ivar wanted: how long the packet is whose beginning follows, in bytes; 0 when that cannot be told yet.
    """

    consumed: int
    publishes: bytes
    messages: int
    pubacks: bytes
    redelivered: int
    others: list[bytes]
    wanted: int


def remaining_length(value: int) -> bytes:
    """Encode a remaining length (2.2.3)."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def is_field(text: str) -> bool:
    """Whether `text` can be a string of MQTT [1.5.3]; a command line may hold bytes that are none."""
    try:
        return "\0" not in text and len(text.encode()) <= LONGEST_FIELD
    except UnicodeEncodeError:
        return False


def _field(raw: bytes) -> bytes:
    return struct.pack(">H", len(raw)) + raw


def _string(text: str) -> bytes:
    return _field(text.encode())


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + remaining_length(len(body)) + body


def connect_packet(
    client_id: str, *, keep_alive: int, username: str | None = None, password: bytes | None = None
) -> bytes:
    """CONNECT with clean_session=0 and no will (3.1). `keep_alive` in seconds; no password without a user name."""
    flags, credentials = 0, b""
    if username is not None:
        flags, credentials = 0x80, _string(username)
        if password is not None:
            flags, credentials = flags | 0x40, credentials + _field(password)
    body = _string("MQTT") + struct.pack(">BBH", 4, flags, keep_alive) + _string(client_id) + credentials
    return _packet(0x10, body)


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
    # Slices of bytes are cheaper than slices of a bytearray, and there is one for each message.
    data = bytes(buffer)
    offset, count, redelivered, wanted, size = 0, 0, 0, 0, len(data)
    packet_ids: list[bytes] = []
    other_spans: list[tuple[int, int]] = []
    while offset + 2 <= size:
        first = data[offset]
        length, body = data[offset + 1], offset + 2
        if length & 128:
            # Two bytes are the usual length of telemetry, so they are decoded without a call.
            if body < size and data[body] < 128:
                length, body = length & 127 | data[body] << 7, body + 1
            else:
                header = _long_remaining_length(data, offset, size)
                if header is None:
                    break
                length, body = header
        end = body + length
        if first & 0xF0 != PUBLISH:
            # Refused before it is whole: garbage may announce 256 MB that never come.
            if first not in _FROM_BROKER:
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
        count += 1
        offset = end
    others = [data[a:b] for a, b in other_spans]
    pubacks = PUBACK_HEAD + PUBACK_HEAD.join(packet_ids) if packet_ids else b""
    return Received(offset, _without(data, offset, other_spans), count, pubacks, redelivered, others, wanted)


def _long_remaining_length(buffer: bytes, offset: int, size: int) -> tuple[int, int] | None:
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


def _without(data: bytes, end: int, spans: list[tuple[int, int]]) -> bytes:
    """The bytes of `data` up to `end` that lie in none of `spans`."""
    if not spans:
        return data[:end]
    starts = [0, *(b for _, b in spans)]
    ends = [*(a for a, _ in spans), end]
    return b"".join(data[a:b] for a, b in zip(starts, ends, strict=True))
