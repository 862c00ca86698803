"""The oracle for MQTT 5: properties and packets, decided from the standard's sections on each packet."""

from __future__ import annotations

from typing import Any

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
_BOOL, _TEXT, _TOPIC, _BINARY, _PAIR, _VARIABLE = "bool", "text", "topic", "binary", "pair", "variable"
_NOT_0 = "not 0"

# Allowed properties by packet type (16 is the will): sizes of numbers in bytes, or the encoding of a value.
_REASONS: dict[int, Any] = {0x1F: _TEXT, 0x26: _PAIR}
_PROPERTIES: dict[int, dict[int, Any]] = {
    1: {0x11: 4, 0x21: (2, _NOT_0), 0x27: (4, _NOT_0), 0x22: 2, 0x19: _BOOL, 0x17: _BOOL, 0x26: _PAIR, 0x15: _TEXT,
        0x16: _BINARY},
    2: {0x11: 4, 0x21: (2, _NOT_0), 0x24: _BOOL, 0x25: _BOOL, 0x27: (4, _NOT_0), 0x12: _TEXT, 0x22: 2, 0x28: _BOOL,
        0x29: _BOOL, 0x2A: _BOOL, 0x13: 2, 0x1A: _TEXT, 0x1C: _TEXT, 0x15: _TEXT, 0x16: _BINARY, **_REASONS},
    3: {0x01: _BOOL, 0x02: 4, 0x23: 2, 0x08: _TOPIC, 0x09: _BINARY, 0x26: _PAIR, 0x0B: _VARIABLE, 0x03: _TEXT},
    **dict.fromkeys((4, 5, 6, 7, 9, 11), _REASONS),
    8: {0x0B: _VARIABLE, 0x26: _PAIR},
    10: {0x26: _PAIR},
    14: {0x11: 4, 0x1C: _TEXT, **_REASONS},
    15: {0x15: _TEXT, 0x16: _BINARY, **_REASONS},
    16: {0x18: 4, 0x01: _BOOL, 0x02: 4, 0x03: _TEXT, 0x08: _TOPIC, 0x09: _BINARY, 0x26: _PAIR},
}  # fmt: skip
_REASON_CODES = {
    4: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    5: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    6: {0x00, 0x92},
    7: {0x00, 0x92},
}
# Limits of the broker on which the streams are tried.
_MOST_ALIASES, _MOST_LEVELS = 10, 200


class Violation(Exception):
    """The connection must be closed. args[0]: the reason code."""


class Reader:
    """Reads fields from the beginning of a packet's body, or of its properties."""

    def __init__(self, body: bytes) -> None:
        self.rest = body

    def take(self, size: int) -> bytes:
        if len(self.rest) < size:
            raise Violation(MALFORMED)
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def variable(self) -> int:
        digits = bytearray(self.take(1))
        while digits[-1] & 128:
            if len(digits) == 4:
                raise Violation(MALFORMED)
            digits += self.take(1)
        if len(digits) > 1 and not digits[-1]:
            raise Violation(MALFORMED)  # longer than necessary
        return sum((digit & 127) << 7 * place for place, digit in enumerate(digits))

    def field(self) -> bytes:
        return self.take(int.from_bytes(self.take(2), "big"))

    def text(self, reason: int = MALFORMED) -> str:
        encoded = self.field()
        try:
            text = encoded.decode()
        except UnicodeDecodeError:
            raise Violation(reason) from None
        if "\0" in text:
            raise Violation(reason)
        return text

    def packet_id(self) -> None:
        if self.take(2) == b"\0\0":
            raise Violation(MALFORMED)

    def properties(self, packet: int) -> dict[int, list[Any]]:
        """Read the properties of a packet; return their values by identifier."""
        inner, found = Reader(self.take(self.variable())), dict[int, list[Any]]()
        while inner.rest:
            identifier = inner.variable()
            kind = _PROPERTIES[packet].get(identifier)
            if kind is None:
                raise Violation(MALFORMED)
            if identifier in found and identifier != 0x26 and (identifier, packet) != (0x0B, 3):
                raise Violation(PROTOCOL_ERROR)
            found.setdefault(identifier, []).append(inner._value(kind))
        return found

    def _value(self, kind: Any) -> Any:
        if kind == _PAIR:
            return self.text(), self.text()
        if kind in (_TEXT, _TOPIC):
            text = self.text()
            if kind == _TOPIC and (not text or set(text) & set("+#")):
                raise Violation(PROTOCOL_ERROR)
            return text
        if kind == _BINARY:
            return self.field()
        size, not_0 = kind if isinstance(kind, tuple) else (kind, "")
        number = (
            self.variable() if kind == _VARIABLE else int.from_bytes(self.take(1 if kind == _BOOL else size), "big")
        )
        if (kind == _BOOL and number > 1) or (not number and (not_0 or kind == _VARIABLE)):
            raise Violation(PROTOCOL_ERROR)
        return number


def properties_verdict(data: bytes, packet: int) -> int:
    """Return 0 if `data` begins with valid properties of such a packet, else the reason code of the first error."""
    try:
        Reader(data).properties(packet)
    except Violation as violation:
        return violation.args[0]
    return 0


class Connection5:
    """The state of a connection, at a server that conforms to MQTT 5, that decides which packets may come."""

    def __init__(self) -> None:
        self._aliases: set[int] = set()

    def connect(self, body: bytes) -> bool:
        """Process a CONNECT. Returns False if its answer may be too large. Raises Violation."""
        reader = Reader(body)
        reader.take(7)
        flags = reader.take(1)[0]
        reader.take(2)
        has_will, will_qos = flags & 4, flags >> 3 & 3
        if flags & 1 or will_qos == 3 or (not has_will and flags & 0x38):
            raise Violation(MALFORMED)
        found = reader.properties(1)
        if 0x15 in found or 0x16 in found:
            raise Violation(PROTOCOL_ERROR)
        reader.text()
        if has_will:
            reader.properties(16)
            self._topic_name(reader.text())
            reader.field()
        if flags & 0x80:
            reader.text()
        if flags & 0x40:
            reader.field()
        if reader.rest:
            raise Violation(MALFORMED)
        return found.get(0x27, [1000])[0] >= 100

    def take(self, first_byte: int, body: bytes) -> bool:
        """Process another packet. Returns False if the result depends on messages. Raises Violation."""
        kind, reader = first_byte >> 4, Reader(body)
        if kind == 3:
            self._publish(first_byte, reader)
        elif first_byte in (0x40, 0x50, 0x62, 0x70):
            self._acknowledgement(kind, reader)
            return kind == 6  # the others may not match what is in flight
        elif first_byte in (0x82, 0xA2):
            self._subscribe(reader, is_unsubscribe=first_byte == 0xA2)
        elif first_byte != 0xC0 or body:
            raise Violation(MALFORMED)  # DISCONNECT, AUTH, or a packet that no client may send
        return True

    def _publish(self, first_byte: int, reader: Reader) -> None:
        qos = first_byte >> 1 & 3
        if qos == 3 or (qos == 0 and first_byte & 8):
            raise Violation(MALFORMED)
        name = reader.text()
        if qos:
            reader.packet_id()
        found = reader.properties(3)
        if 0x0B in found:
            raise Violation(PROTOCOL_ERROR)
        (alias,) = found.get(0x23, [None])
        if alias is None or name:
            self._topic_name(name)
        if alias is not None:
            if not 0 < alias <= _MOST_ALIASES or (not name and alias not in self._aliases):
                raise Violation(PROTOCOL_ERROR)
            self._aliases.add(alias)

    def _acknowledgement(self, kind: int, reader: Reader) -> None:
        if len(reader.rest) != 2:
            reader.packet_id()
            if reader.take(1)[0] not in _REASON_CODES[kind]:
                raise Violation(PROTOCOL_ERROR)
            if reader.rest:
                reader.properties(kind)
            if reader.rest:
                raise Violation(MALFORMED)

    def _subscribe(self, reader: Reader, *, is_unsubscribe: bool) -> None:
        reader.packet_id()
        reader.properties(10 if is_unsubscribe else 8)
        if not reader.rest:
            raise Violation(PROTOCOL_ERROR)
        while reader.rest:
            name = reader.text()
            levels = name.split("/")
            if not name or len(levels) > _MOST_LEVELS + 1 or "#" in levels[:-1]:
                raise Violation(MALFORMED)
            if any(len(level) > 1 and set(level) & set("+#") for level in levels):
                raise Violation(MALFORMED)
            if not is_unsubscribe:
                options = reader.take(1)[0]
                is_shared = name.startswith("$share/")
                if options > 0x3F or options & 3 == 3 or options & 0x30 == 0x30 or (options & 4 and is_shared):
                    raise Violation(PROTOCOL_ERROR)

    def _topic_name(self, name: str) -> None:
        if not name or set(name) & set("+#") or name.count("/") > _MOST_LEVELS:
            raise Violation(MALFORMED)
