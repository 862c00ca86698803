"""MQTT over WebSocket (MQTT 3.1.1, chapter 6): decodes frames, so that a connection gets plain bytes."""

import asyncio
from typing import Any, cast

from ...log import RefusalLog
from ...settings.broker import Listener
from ...stats import Stats
from ..peers import peer_address
from ..stream import NOBODY
from .frames import NORMAL, BadFrame, FrameDecoder, encode_binary, encode_close
from .upgrade import MAX_REQUEST, UpgradeRefused, answer_upgrade


class Upgrade(asyncio.Protocol):
    """The protocol of a connection during its HTTP request. It becomes a WebSocket, or is refused and closed.

    The broker counts it as a connection from the start, and its connect_timeout applies.

    connection: the protocol that gets the plain bytes. is_local: only this machine reaches the listener.
    """

    def __init__(
        self, connection: asyncio.Protocol, listener: Listener, stats: Stats, refusals: RefusalLog, is_local: bool
    ) -> None:
        self._connection = connection
        self._listener = listener
        self._stats = stats
        self._refusals = refusals
        self._is_local = is_local
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection with the broker, which counts it and starts its timeout."""
        self._transport = cast(asyncio.Transport, transport)
        self._socket = WebSocket(self._connection, self._transport, self._stats)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of a connection that did not become a WebSocket."""
        self._socket.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Collect the request, answer it, and pass the data behind it to the WebSocket."""
        self._request += data
        try:
            request, end, rest = self._request.partition(b"\r\n\r\n")
            if len(request) > MAX_REQUEST:
                raise UpgradeRefused(431, f"a request has at most {MAX_REQUEST} bytes")
            if not end:
                return
            answer = answer_upgrade(request + end, self._listener.origins, self._is_local)
        except UpgradeRefused as error:
            self._stats.connections_refused += 1
            now, address = asyncio.get_running_loop().time(), peer_address(self._transport)
            self._refusals.refused(now, address, f"no WebSocket: {error}")
            self._transport.write(error.answer)
            self._transport.close()
            return
        self._transport.write(answer)
        self._transport.set_protocol(self._socket)
        self._socket.open(rest)


class WebSocket(asyncio.Protocol):
    """Decodes the frames of a client and passes their payload to `connection`.

    Before open() nothing may be sent: the client still expects the HTTP response. closing: no more frames are sent.
    """

    def __init__(self, connection: asyncio.Protocol, transport: asyncio.Transport, stats: Stats) -> None:
        self._connection = connection
        self._transport = transport
        self._stats = stats
        self._decoder = FrameDecoder()
        self._pong = b""  # the newest PONG, while the client does not read
        self._is_open = False
        self._is_congested = False
        self.closing = False
        connection.connection_made(WebSocketTransport(self, transport))

    def open(self, data: bytes) -> None:
        """Begin, after the answer to the request is sent. data: the data that followed the request."""
        self._is_open = True
        if data:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Pass the payload on, and answer control frames. A malformed frame fails the connection."""
        if self.closing and self._transport.is_closing():
            return
        decoder = self._decoder
        try:
            payload = decoder.receive(data)
        except BadFrame as error:
            self._stats.malformed[f"WebSocket {error}"] += 1
            if error.received:
                self._connection.data_received(error.received)
            self.fail(error.code)
            return
        if payload and not self.closing:
            self._connection.data_received(payload)
        if decoder.replies:
            self._answer(decoder)

    def _answer(self, decoder: FrameDecoder) -> None:
        replies, decoder.replies = decoder.replies, []
        if decoder.closed:
            if not self.closing:
                self._transport.write(replies[-1])
            self.closing = True
            # Both sides have sent a close frame: the server closes first (7.1.1).
            self._transport.close()
        elif self._is_congested:
            self._pong = replies[-1]
        elif not self.closing:
            # Only the newest PING need be answered (5.5.3): a client that sends PINGs and reads nothing must not fill
            # the memory.
            self._transport.write(replies[-1])

    def close(self) -> None:
        """Send close and wait for the client's close; the connection's timer limits the wait."""
        if self.closing:
            return
        self.closing = True
        if self._is_open:
            self._transport.write(encode_close(NORMAL))
            # The client's close, or its end, must be seen even if the connection stopped reading.
            self._transport.resume_reading()
        else:
            self._transport.close()

    def fail(self, code: int) -> None:
        """Send a close frame with `code`, and close without waiting (7.1.7)."""
        if not self.closing:
            self.closing = True
            self._transport.write(encode_close(code))
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the network connection."""
        self.closing = True
        self._connection.connection_lost(exc)
        self._connection = NOBODY

    def pause_writing(self) -> None:
        """Stop output: the buffer is full."""
        self._is_congested = True
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Resume output: the buffer has drained."""
        self._is_congested = False
        pong, self._pong = self._pong, b""
        if pong and not self.closing:
            self._transport.write(pong)
        self._connection.resume_writing()


class WebSocketTransport(asyncio.Transport):
    """The transport of a Connection over WebSocket: each write is one binary frame."""

    def __init__(self, websocket: WebSocket, transport: asyncio.Transport) -> None:
        super().__init__()
        self._websocket = websocket
        self._transport = transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send one frame. Nothing is sent after the close frame (5.5.1)."""
        if not self._websocket.closing:
            self._transport.write(encode_binary(bytes(data)))

    def close(self) -> None:
        """Close in order, after everything written has left."""
        self._websocket.close()

    def is_closing(self) -> bool:
        """Tell whether nothing more can be written."""
        return self._websocket.closing or self._transport.is_closing()

    def abort(self) -> None:
        """Close at once."""
        self._websocket.closing = True
        self._transport.abort()

    def pause_reading(self) -> None:
        """Stop reading from the client."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client again."""
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Tell whether the client is read from."""
        return self._transport.is_reading()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait to be sent."""
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set from how many waiting bytes on the connection counts as congested."""
        self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the network connection, such as "peername" or "peercert"."""
        return self._transport.get_extra_info(name, default)
