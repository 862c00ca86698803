"""MQTT over WebSocket (RFC 6455; MQTT 3.1.1, chapter 6): for brokers behind a web server or a firewall.

from umqtt_robust.websocket import WebSocket

Client("pump-7", "ws://broker.example/mqtt", transports={"ws": WebSocket()})
Client("pump-7", "wss://broker.example/mqtt", transports={"wss": WebSocket(TLS("/ca.pem"))})
"""

import os
from binascii import b2a_base64
from hashlib import sha1

from ._platform import const
from .base_errors import LinkLost, ProtocolError
from .transport import TCP

_BINARY = const(0x02)
_CLOSE = const(0x88)
_PING = const(0x89)
_PONG = const(0x8A)
_FRAME = const(1024)  # most bytes of payload in a frame that is sent
_ANSWER = const(1024)  # most bytes of the server's answer to the handshake

_REQUEST = (
    "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


class UpgradeRefused(LinkLost):
    """The server does not speak MQTT over WebSocket at this path; args[0]: its status line, or "no answer …"."""


def WebSocket(secure=None):
    """Returns a factory of WebSocket transports, for Client(transports={"ws": ...}).

    secure: for wss, the factory of the transport below, such as tls.TLS() returns; None: TCP.
    """
    return lambda host, port, path: _WebSocket(
        secure(host, port, path) if secure else TCP(host, port), host, port, path
    )


def _base64(data):
    return str(b2a_base64(data)[:-1], "ascii")


class _WebSocket:
    def __init__(self, link, host, port, path):
        self._link = link
        self.accepted = getattr(link, "accepted", None)
        key = _base64(os.urandom(16))
        self._accept = _base64(sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        host = "[%s]" % host if ":" in host else host
        self._out = (_REQUEST % (path, host, port, key)).encode()  # what the link has not taken yet
        self._taken = 0  # bytes of the caller's that are in _out
        self._answer = bytearray()  # to the handshake; None: it is done
        self._head = bytearray()  # of the frame that arrives
        self._left = 0  # bytes of its payload to come
        self._control = None  # its payload, if it is a control frame
        self._inside = self._ended = False  # inside a fragmented message; the server closed

    def ready(self):
        done = self._link.ready()
        self.socket = self._link.socket
        if not done or not self._flush():
            return False
        byte = bytearray(1)  # one by one, so that what follows the answer stays in the link
        while self._answer is not None:
            n = self._link.read(byte, 0)
            if n is None:
                return False
            self._answer += byte
            if not n or len(self._answer) > _ANSWER:
                raise UpgradeRefused("no answer to the handshake")
            if self._answer[-4:] == b"\r\n\r\n":
                self._check("".join([chr(byte) for byte in self._answer]).split("\r\n"))  # not always UTF-8
        return True

    def _check(self, lines):
        got = {}
        for line in lines:
            name, _, value = line.partition(":")
            got[name.lower()] = value.strip()
        if (
            lines[0][:12] != "HTTP/1.1 101"
            or got.get("upgrade", "").lower() != "websocket"
            or "upgrade" not in got.get("connection", "").lower()
            or got.get("sec-websocket-accept") != self._accept
            or got.get("sec-websocket-protocol") != "mqtt"  # [MQTT-6.0.0-3]
            or "sec-websocket-extensions" in got
        ):
            raise UpgradeRefused(lines[0])
        self._answer = None

    def _flush(self):
        while self._out:
            n = self._link.write(self._out, 0, len(self._out))
            if not n:
                return False
            self._out = self._out[n:]
        return True

    def _put(self, head, payload):
        # A frame, masked as what a client sends must be (5.3).
        n = len(payload)
        mask = os.urandom(4)
        key = int.from_bytes(mask * (n // 4) + mask[: n % 4], "little")
        length = bytes((0x80 | n,)) if n < 126 else bytes((0xFE, n >> 8, n & 255))
        self._out += bytes((head,)) + length + mask + (int.from_bytes(payload, "little") ^ key).to_bytes(n, "little")

    def write(self, buf, offset, size):
        if not self._taken:
            if not self._flush():
                return None
            self._taken = min(size, _FRAME)
            self._put(0x80 | _BINARY, memoryview(buf)[offset : offset + self._taken])
        if not self._flush():
            return None  # the caller writes the same bytes again
        n = self._taken
        self._taken = 0
        return n

    def read(self, buf, offset):
        n = 0 if self._ended else self._link.read(buf, offset)
        if n:
            # The payload moves to where the headers were.
            n = self._unpack(buf, offset, offset + n) - offset
            self._flush()  # what answers PING
            if not n and not self._ended:
                n = None
        return n

    def _unpack(self, buf, i, end):
        o = i
        while i < end and not self._ended:
            if self._left:
                k = min(self._left, end - i)
                if self._control is None:
                    buf[o : o + k] = buf[i : i + k]
                    o += k
                else:
                    self._control += buf[i : i + k]
                self._left -= k
                i += k
            else:
                self._head.append(buf[i])
                i += 1
                self._begin(self._head)
            if self._control is not None and not self._left:
                self._end(self._control)
        return o

    def _begin(self, head):
        # Takes the header of a frame (5.2) as soon as it is whole.
        if len(head) < 2:
            return
        kind = head[0]
        n = head[1]
        control = kind > 0x87  # and not fragmented
        if (
            n > (125 if control else 127)
            or not control
            and kind & 0x7F != (0 if self._inside else _BINARY)
            or kind > _PONG
        ):
            raise ProtocolError("WebSocket frame %d" % kind)  # also text: [MQTT-6.0.0-1]
        if n > 125:
            if len(head) < (4 if n == 126 else 10):
                return
            n = int.from_bytes(head[2:], "big")
        self._left = n
        self._head = bytearray()
        if control:
            self._control = bytearray((kind,))
        else:
            self._inside = kind < 0x80

    def _end(self, control):
        # A control frame is whole.
        self._control = None
        if control[0] == _CLOSE:
            self._ended = True
            self._put(_CLOSE, control[1:3])
        elif control[0] == _PING and len(self._out) < _FRAME:  # a server that floods PINGs gets fewer answers (5.5.3)
            self._put(_PONG, control[1:])

    def waits(self, writing):
        """Returns True if the link has to take bytes next; during the handshake the caller's bytes wait."""
        return bool(self._out) or writing and self._answer is None

    def wait(self, ms, writing):
        self._link.wait(ms, self.waits(writing))

    def close(self):
        if self._answer is None and not self._out and not self._ended:
            self._put(_CLOSE, b"\x03\xe8")
            try:
                self._flush()
            except OSError:
                pass  # the link is gone
        self._link.close()
        self.socket = None
