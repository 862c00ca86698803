"""A WebSocket client for tests that hides nothing: frames are built and parsed by hand."""

import base64
import socket
import struct

from umqtt_testkit.waiting import WAIT_LIMIT_S

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

MASKS = (b"\x00\x00\x00\x00", b"\x01\x02\x03\x04", b"\xff\x00\xaa\x55")


def frame(
    opcode: int, payload: bytes, *, fin: bool = True, mask: bytes | None = b"\x11\x22\x33\x44", bits: int = 0
) -> bytes:
    """Return a frame as a client sends it; mask None: unmasked, which is forbidden."""
    size = len(payload)
    if size < 126:
        length = bytes([size])
    elif size < 65536:
        length = b"\x7e" + struct.pack(">H", size)
    else:
        length = b"\x7f" + struct.pack(">Q", size)
    if mask is not None:
        length = bytes([length[0] | 128]) + length[1:] + mask
        payload = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return bytes([fin << 7 | bits | opcode]) + length + payload


def request(path: str = "/mqtt", remove: str = "", **headers: str) -> bytes:
    """Return an upgrade request.

    headers: these replace those of the same name (`_` for `-`). remove: the header to leave out.
    """
    fields = {
        "host": "127.0.0.1",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-key": base64.b64encode(bytes(16)).decode(),
        "sec-websocket-version": "13",
        "sec-websocket-protocol": "mqtt",
    }
    fields.update({name.replace("_", "-"): value for name, value in headers.items()})
    fields.pop(remove, None)
    return "".join(
        [f"GET {path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in fields.items()), "\r\n"]
    ).encode()


class WebSocketPeer:
    """A WebSocket connection: raw bytes out, (opcode, payload) in."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> "WebSocketPeer":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self.socket.sendall(data)

    def answer(self) -> bytes:
        """Return the head of the answer to the request."""
        while b"\r\n\r\n" not in self._buffer:
            data = self.socket.recv(65536)
            if not data:
                break
            self._buffer += data
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return head

    def upgrade(self, **headers: str) -> bytes:
        """Upgrade to a WebSocket; return the answer."""
        self.send(request(**headers))
        head = self.answer()
        assert head.startswith(b"HTTP/1.1 101 "), head
        return head

    def receive(self) -> tuple[int, bytes] | None:
        """Return the next frame of the broker, or None at the end of the connection."""
        while (found := self._take()) is None:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._buffer += data
        return found

    def receive_payload(self, size: int) -> bytes:
        """Return `size` bytes of binary frames."""
        payload = b""
        while len(payload) < size:
            found = self.receive()
            assert found is not None and found[0] == BINARY, found
            payload += found[1]
        return payload

    def close_code(self) -> int:
        """Expect a close frame and the end; return the code."""
        found = self.receive()
        assert found is not None and found[0] == CLOSE, found
        return struct.unpack(">H", found[1][:2])[0]

    def _take(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        assert buffer[0] & 0xF0 == 0x80, "a server's frame is whole and has no reserved bits"
        size, at = buffer[1], 2
        assert size < 128, "a server does not mask"
        if size > 125:
            width = 2 if size == 126 else 8
            size, at = int.from_bytes(buffer[2 : 2 + width], "big"), 2 + width
        if len(buffer) < at + size:
            return None
        self._buffer = buffer[at + size :]
        return buffer[0] & 15, buffer[at : at + size]
