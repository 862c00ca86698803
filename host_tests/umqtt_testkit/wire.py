"""A strict MQTT 3.1.1 decoder for tests, written apart from umqtt_robust so that each checks the other.

What a server must refuse raises WireError, so a malformed packet from the code under test cannot pass unseen. Packets
are made by `encoder`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class WireError(Exception):
    """The bytes are not a correct packet; str() says what is wrong and cites the clause."""


class Type(IntEnum):
    """Control packet types [MQTT 3.1.1, table 2.1]."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


_ACKNOWLEDGEMENTS = (Type.PUBACK, Type.PUBREC, Type.PUBREL, Type.PUBCOMP, Type.UNSUBACK)
_FLAGS_0010 = (Type.PUBREL, Type.SUBSCRIBE, Type.UNSUBSCRIBE)


@dataclass
class Packet:
    """One decoded packet. Fields that its type does not have keep their defaults."""

    type: Type
    raw: bytes = field(repr=False)
    packet_id: int | None = None
    topic_name: bytes | None = None
    payload: bytes = b""
    qos: int = 0
    dup: bool = False
    retain: bool = False
    # CONNECT
    client_id: bytes = b""
    keep_alive: int = 0
    clean_session: bool = False
    protocol_level: int = 0
    will_topic: bytes | None = None
    will_payload: bytes = b""
    will_qos: int = 0
    will_retain: bool = False
    user_name: bytes | None = None
    password: bytes | None = field(default=None, repr=False)
    # CONNACK
    session_present: bool = False
    return_code: int = 0
    # SUBSCRIBE: (topic_filter, qos) each; UNSUBSCRIBE: topic_filter and 0; SUBACK: return codes
    topic_filters: list[tuple[bytes, int]] = field(default_factory=list)
    return_codes: list[int] = field(default_factory=list)


class _Body:
    """Reads fields from a packet's body in order."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._at = 0
        self._name = name

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if self.left < count:
            raise WireError(f"{self._name}: {count} more bytes announced, {self.left} there")
        self._at += count
        return self._data[self._at - count : self._at]

    def uint8(self) -> int:
        return self.take(1)[0]

    def uint16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def binary(self) -> bytes:
        return self.take(self.uint16())

    def text(self) -> bytes:
        data = self.binary()
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"{self._name}: string is not UTF-8 [MQTT-1.5.3-1]: {data!r}") from error
        if b"\0" in data:
            raise WireError(f"{self._name}: string holds U+0000 [MQTT-1.5.3-2]: {data!r}")
        return data

    def packet_id(self) -> int:
        value = self.uint16()
        if value == 0:
            raise WireError(f"{self._name}: packet identifier 0 [MQTT-2.3.1-1]")
        return value


def decode(buffer: bytes | bytearray) -> tuple[Packet, int] | None:
    """Decode the first packet of `buffer`.

    Returns the packet and its length in bytes, or None while it is incomplete. Raises WireError.
    """
    remaining, multiplier, at = 0, 1, 1
    while True:
        if at >= len(buffer):
            return None
        byte = buffer[at]
        remaining += (byte & 0x7F) * multiplier
        multiplier *= 128
        at += 1
        if not byte & 0x80:
            break
        if at > 4:
            raise WireError("remaining length of more than four bytes [MQTT-2.2.3]")
    end = at + remaining
    if len(buffer) < end:
        return None
    return _decode_body(buffer[0], bytes(buffer[at:end]), bytes(buffer[:end])), end


def _decode_body(first: int, data: bytes, raw: bytes) -> Packet:
    try:
        packet = Packet(Type(first >> 4), raw)
    except ValueError:
        raise WireError(f"packet type {first >> 4} does not exist") from None
    flags = first & 0x0F
    body = _Body(data, packet.type.name)
    if packet.type is Type.PUBLISH:
        _decode_publish(packet, flags, body)
    elif flags != (2 if packet.type in _FLAGS_0010 else 0):
        raise WireError(f"{packet.type.name}: reserved flags are {flags:#06b} [MQTT-2.2.2-2]")
    elif packet.type is Type.CONNECT:
        _decode_connect(packet, body)
    elif packet.type is Type.CONNACK:
        packet.session_present = body.uint8() == 1
        packet.return_code = body.uint8()
    elif packet.type in _ACKNOWLEDGEMENTS:
        packet.packet_id = body.packet_id()
    elif packet.type is Type.SUBACK:
        packet.packet_id = body.packet_id()
        packet.return_codes = list(body.take(body.left))
    elif packet.type in (Type.SUBSCRIBE, Type.UNSUBSCRIBE):
        _decode_topic_filters(packet, body)
    if body.left:
        raise WireError(f"{packet.type.name}: {body.left} bytes too many")
    return packet


def _decode_publish(packet: Packet, flags: int, body: _Body) -> None:
    packet.dup, packet.qos, packet.retain = bool(flags & 8), flags >> 1 & 3, bool(flags & 1)
    if packet.qos == 3:
        raise WireError("PUBLISH: QoS 3 [MQTT-3.3.1-4]")
    if packet.dup and packet.qos == 0:
        raise WireError("PUBLISH: DUP at QoS 0 [MQTT-3.3.1-2]")
    packet.topic_name = body.text()
    if not packet.topic_name or b"+" in packet.topic_name or b"#" in packet.topic_name:
        raise WireError(f"PUBLISH: topic name {packet.topic_name!r} [MQTT-3.3.2-2]")
    if packet.qos:
        packet.packet_id = body.packet_id()
    packet.payload = body.take(body.left)


def _decode_connect(packet: Packet, body: _Body) -> None:
    name, packet.protocol_level = body.text(), body.uint8()
    if (name, packet.protocol_level) not in ((b"MQTT", 4), (b"MQIsdp", 3)):
        raise WireError(f"CONNECT: protocol {name!r} level {packet.protocol_level} [MQTT-3.1.2-1]")
    flags = body.uint8()
    if flags & 1:
        raise WireError("CONNECT: reserved flag is set [MQTT-3.1.2-3]")
    if flags & 0x40 and not flags & 0x80:
        raise WireError("CONNECT: password without user name [MQTT-3.1.2-22]")
    packet.clean_session = bool(flags & 2)
    packet.keep_alive = body.uint16()
    packet.client_id = body.text()
    if not packet.client_id and not packet.clean_session:
        raise WireError("CONNECT: empty client id with clean_session=0 [MQTT-3.1.3-8]")
    if flags & 4:
        packet.will_topic, packet.will_payload = body.text(), body.binary()
        packet.will_qos, packet.will_retain = flags >> 3 & 3, bool(flags & 0x20)
    if (flags >> 3 & 3) == 3 or (not flags & 4 and flags & 0x38):
        raise WireError(f"CONNECT: will flags {flags:#010b} [MQTT-3.1.2-11..15]")
    if flags & 0x80:
        packet.user_name = body.text()
    if flags & 0x40:
        packet.password = body.binary()


def _decode_topic_filters(packet: Packet, body: _Body) -> None:
    packet.packet_id = body.packet_id()
    if not body.left:
        raise WireError(f"{packet.type.name}: no topic filter [MQTT-3.8.3-3, 3.10.3-2]")
    while body.left:
        topic_filter = body.text()
        qos = body.uint8() if packet.type is Type.SUBSCRIBE else 0
        if qos > 2:
            raise WireError(f"SUBSCRIBE: requested QoS byte {qos:#x} [MQTT-3-8.3-4]")
        packet.topic_filters.append((topic_filter, qos))
