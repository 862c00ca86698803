"""Decides what must happen to a connection that sends given bytes, by a decoder independent of the broker's."""

from __future__ import annotations

from typing import NamedTuple

from broker_oracle5 import Connection5, Violation

OPEN, CLOSED, EITHER = "open", "closed", "either"
_MAX_PACKET = 16 * 1024 * 1024
_ACKNOWLEDGEMENTS = (0x40, 0x50, 0x70)
# SUBSCRIBE, UNSUBSCRIBE and PUBREL with DUP, which MQTT 3.1 allows.
_DUP_IN_31 = (0x8A, 0xAA, 0x6A)


class _Violation(Exception):
    """The connection must be closed."""


class _Reader:
    def __init__(self, body: bytes) -> None:
        self.rest = body

    def take(self, size: int) -> bytes:
        if len(self.rest) < size:
            raise _Violation("cut short")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def field(self) -> bytes:
        return self.take(int.from_bytes(self.take(2), "big"))

    def string(self) -> str:
        try:
            decoded = self.field().decode()
        except UnicodeDecodeError as error:
            raise _Violation("UTF-8") from error
        if "\0" in decoded:
            raise _Violation("NUL")
        return decoded

    def packet_id(self) -> None:
        if self.take(2) == b"\0\0":
            raise _Violation("packet identifier 0")

    def end(self) -> None:
        if self.rest:
            raise _Violation("longer than its fields")


def is_version5(stream: bytes) -> bool:
    """Return whether the stream begins with a CONNECT of MQTT 5: the answers are then of that version."""
    return bool(stream) and stream[0] & 0xF0 == 0x10 and 2 <= stream[:12].find(b"\0\4MQTT\5") <= 5


def verdict(stream: bytes) -> str:
    """Return CLOSED if a packet of the stream must end the connection, EITHER if that depends on state."""
    level = 0
    certain = True
    version5 = Connection5()
    try:
        while stream:
            packet, stream = _cut(stream, known=bool(level))
            if packet is None:
                return EITHER  # the beginning of the last packet may be enough to see that it is wrong
            if not level and packet[0] == 0x10 and packet[1].startswith(b"\0\4MQTT\5"):
                level = 5
                certain = version5.connect(packet[1])
            elif level == 5:
                certain = version5.take(*packet) and certain
            elif not level:
                level = _connect(packet)
            elif packet[0] in _ACKNOWLEDGEMENTS:
                _acknowledgement(packet)
                certain = False  # it may not match what is in flight
            elif level == 3 and packet[0] in _DUP_IN_31:
                certain = False
            else:
                certain = _packet(packet) and certain
    except (_Violation, Violation):
        return CLOSED
    return OPEN if certain else EITHER


class _Packet(NamedTuple):
    first_byte: int
    body: bytes


def _cut(stream: bytes, *, known: bool) -> tuple[_Packet | None, bytes]:
    length, at = 0, 1
    while True:
        if at == 5:
            raise _Violation("remaining length")
        if at == len(stream):
            return None, b""
        length |= (stream[at] & 127) << 7 * (at - 1)
        if stream[at] < 128:
            break
        at += 1
    if length > _MAX_PACKET:
        raise _Violation("too large")
    if len(stream) < at + 1 + length:
        if not known and stream[0] & 0xF0 != 0x10:
            raise _Violation("packet before CONNECT")
        return None, b""
    return _Packet(stream[0], stream[at + 1 : at + 1 + length]), stream[at + 1 + length :]


def _connect(packet: _Packet) -> int:
    reader = _Reader(packet.body)
    if packet.first_byte & 0xF0 != 0x10:
        raise _Violation("not CONNECT")
    name, level, flags = reader.field(), reader.take(1)[0], reader.take(1)[0]
    if (name, level) not in ((b"MQTT", 4), (b"MQIsdp", 3)):
        raise _Violation("protocol")
    if packet.first_byte != 0x10 and level == 4:
        raise _Violation("flags of CONNECT")
    reader.take(2)
    has_will, will_qos = flags & 4, flags >> 3 & 3
    if (level == 4 and (flags & 1 or flags & 0xC0 == 0x40)) or will_qos == 3 or (not has_will and flags & 0x38):
        raise _Violation("flags")
    client_id = reader.string()
    if has_will:
        _topic_name(reader.string())
        reader.field()
    if flags & 0x80:
        reader.string()
    if flags & 0x40:
        reader.field()
    reader.end()
    if not client_id and (level == 3 or not flags & 2):
        raise _Violation("no client identifier")
    return level


def _topic_name(name: str) -> None:
    if not name or "+" in name or "#" in name:
        raise _Violation("topic name")


def _topic_filter(name: str) -> bool:
    """Return whether a topic filter is valid; False also if the broker may have rules of its own."""
    levels = name.split("/")
    if not name or any(len(level) > 1 and ("+" in level or "#" in level) for level in levels) or "#" in levels[:-1]:
        raise _Violation("topic filter")
    return levels[0] != "$share"


def _acknowledgement(packet: _Packet) -> None:
    if len(packet.body) != 2:
        raise _Violation("length")


def _packet(packet: _Packet) -> bool:
    kind, reader = packet.first_byte & 0xF0, _Reader(packet.body)
    certain = True
    if kind == 0x30:
        qos = packet.first_byte >> 1 & 3
        if qos == 3 or (qos == 0 and packet.first_byte & 8):
            raise _Violation("flags")
        _topic_name(reader.string())
        if qos:
            reader.packet_id()
    elif packet.first_byte == 0x62:
        _acknowledgement(packet)
    elif packet.first_byte in (0x82, 0xA2):
        reader.packet_id()
        if not reader.rest:
            raise _Violation("no topic filter")
        while reader.rest:
            certain = _topic_filter(reader.string()) and certain
            if packet.first_byte == 0x82 and reader.take(1)[0] > 2:
                raise _Violation("QoS")
    elif packet.first_byte != 0xC0 or packet.body:
        raise _Violation("DISCONNECT, or what no client may send")
    return certain
