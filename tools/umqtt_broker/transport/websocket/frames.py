"""WebSocket frames as a server sees them (RFC 6455, section 5). No I/O.

MQTT packets need not be aligned with frames [MQTT-6.0.0-2], so a payload is passed on as it arrives: frames and
fragmented messages are never collected, and their sizes need no limit.
"""

from ...errors import BrokerError

NORMAL = 1000
PROTOCOL_ERROR = 1002
UNSUPPORTED_DATA = 1003

_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_FIN = 0x80
_MASKED = 0x80
_MAX_CONTROL_PAYLOAD = 125

# The heads of all short binary frames, by size: most packets need no other.
_SHORT_HEADS = tuple(bytes((_FIN | _BINARY, size)) for size in range(126))


class BadFrame(BrokerError):
    """A client broke the WebSocket protocol: the connection must be failed (7.1.7).

    Attributes: code (int), the close code to send; received (bytes), the payload that came before the bad frame.
    """

    def __init__(self, code: int, reason: str, received: bytes) -> None:
        super().__init__(reason)
        self.code = code
        self.received = received


def encode_binary(payload: bytes) -> bytes:
    """Return `payload` as one binary frame; a server does not mask (5.1)."""
    size = len(payload)
    if size < 126:
        return _SHORT_HEADS[size] + payload
    if size < 65536:
        return b"\x82\x7e" + size.to_bytes(2, "big") + payload
    return b"\x82\x7f" + size.to_bytes(8, "big") + payload


def encode_close(code: int) -> bytes:
    """Return a close frame."""
    return b"\x88\x02" + code.to_bytes(2, "big")


class FrameDecoder:
    """Decodes the frames of a client, and returns the payload of its binary messages.

    replies: control frames to send as answers; the caller sends them and empties the list.
    closed: the client has sent its close frame; everything after it is ignored.
    """

    __slots__ = ("_control", "_head", "_in_message", "_left", "_mask", "_opcode", "closed", "replies")

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self.closed = False
        self._head = b""  # the beginning of an incomplete frame head
        self._left = 0  # bytes of the frame's payload that have not come yet
        self._mask = b""  # rotated so that it begins with the mask of the next payload byte
        self._opcode = _BINARY
        self._control = b""
        self._in_message = False  # a fragmented message has begun and not ended

    def receive(self, data: bytes) -> bytes:
        """Decode received data. Returns the payload in it. Raises BadFrame."""
        if self._head:
            data = self._head + data
            self._head = b""
        payload: list[bytes] = []
        at, end = 0, len(data)
        try:
            while at < end and not self.closed:
                if not self._left:
                    body = self._begin(data, at, end)
                    if not body:
                        self._head = data[at:]
                        break
                    at = body
                size = self._left
                if size > end - at:
                    size = end - at
                self._left -= size
                if size:
                    piece = data[at : at + size]
                    at += size
                    mask = self._mask
                    # XOR as one large number: the fastest way without an extension module.
                    piece = (
                        int.from_bytes(piece, "little")
                        ^ int.from_bytes(mask * (size >> 2) + mask[: size & 3], "little")
                    ).to_bytes(size, "little")
                    if self._opcode == _BINARY:
                        payload.append(piece)
                    else:
                        self._control += piece
                    if self._left:
                        turn = size & 3
                        self._mask = mask[turn:] + mask[:turn]
                if not self._left and self._opcode != _BINARY:
                    self._end_control()
        except BadFrame as error:
            error.received = b"".join(payload)
            raise
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _begin(self, data: bytes, at: int, end: int) -> int:
        """Decode the head of a frame (5.2). Returns the index of its payload, 0 if cut short. Raises BadFrame."""
        if end - at < 2:
            return 0
        first, second = data[at], data[at + 1]
        opcode = first & 15
        if first & 0x70:
            raise BadFrame(PROTOCOL_ERROR, "reserved bits", b"")
        if not second & _MASKED:
            raise BadFrame(PROTOCOL_ERROR, "frame without mask", b"")  # 5.1
        size = second & 127
        body = at + 2
        if opcode >= _CLOSE:
            if opcode > _PONG:
                raise BadFrame(PROTOCOL_ERROR, "unknown opcode", b"")
            if size > _MAX_CONTROL_PAYLOAD or not first & _FIN:
                raise BadFrame(PROTOCOL_ERROR, "control frame too long or fragmented", b"")  # 5.5
        elif opcode == _TEXT:
            raise BadFrame(UNSUPPORTED_DATA, "text frame", b"")  # [MQTT-6.0.0-1]
        elif opcode > _BINARY:
            raise BadFrame(PROTOCOL_ERROR, "unknown opcode", b"")
        elif (opcode == _CONTINUATION) != self._in_message:
            raise BadFrame(PROTOCOL_ERROR, "fragments out of order", b"")  # 5.4
        if size > 125:
            width = 2 if size == 126 else 8
            body += width
            if end < body:
                return 0
            size = int.from_bytes(data[body - width : body], "big")
            if size < (126 if width == 2 else 65536) or size >> 63:
                raise BadFrame(PROTOCOL_ERROR, "length", b"")
        if end < body + 4:
            return 0
        if opcode < _CLOSE:
            self._in_message = not first & _FIN
            self._opcode = _BINARY
        else:
            self._opcode = opcode
            self._control = b""
        self._mask = data[body : body + 4]
        self._left = size
        return body + 4

    def _end_control(self) -> None:
        """Process a complete control frame: add the answer to `replies`. Raises BadFrame."""
        opcode, self._opcode = self._opcode, _BINARY
        if opcode == _PING:
            self.replies.append(bytes((_FIN | _PONG, len(self._control))) + self._control)
        elif opcode == _CLOSE:
            if len(self._control) == 1:
                raise BadFrame(PROTOCOL_ERROR, "close frame of one byte", b"")  # 5.5.1
            self.closed = True
            code = int.from_bytes(self._control[:2], "big")
            self.replies.append(encode_close(code if _may_be_sent(code) else NORMAL))


def _may_be_sent(code: int) -> bool:
    """Tell whether a close frame may carry the code (7.4)."""
    return 3000 <= code < 5000 or (1000 <= code <= 1014 and code not in (1004, 1005, 1006))
