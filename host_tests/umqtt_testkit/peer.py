"""A scripted MQTT peer: does byte for byte what a test says, when the test says it.

Two ways to use it. In the test's own thread, for code that is driven by a tick, which makes the order of events
deterministic::

    with ScriptedPeer() as peer:
        client = Client(b"c", (peer.url,))
        peer.drive = client.tick                    # called while the peer waits
        link = peer.accept()
        link.expect(Type.CONNECT, client_id=b"c")
        link.send(connack())

or with the script in a thread, for code that blocks or runs in another process::

    def script(peer):
        link = peer.accept()
        link.expect(Type.CONNECT)
        link.send(connack())
        link.reset()

    with ScriptedPeer() as peer:
        peer.run(script)
        ...                                         # leaving the block waits for the script and raises its error
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from .encoder import acknowledgement, connack, pingresp, suback
from .ports import bound
from .waiting import WAIT_LIMIT_S
from .wire import Packet, Type, WireError, decode

_DRIVE_EVERY_S = 0.001


class PeerError(AssertionError):
    """The code under test did not do what the script expects; str() says what came instead."""


class ScriptedPeer:
    """A TCP server on 127.0.0.1 for one test.

    drive: called repeatedly while the peer waits in the test's own thread (the tick of the code under test).
    timeout_s: the longest wait of each step.
    """

    def __init__(self, *, timeout_s: float = WAIT_LIMIT_S) -> None:
        self.drive: Callable[[], object] | None = None
        self.timeout_s = timeout_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self._stopped, self._stop = socket.socketpair()
        self._links: list[Link] = []
        self._script: threading.Thread | None = None
        self._script_error: BaseException | None = None

    @property
    def url(self) -> str:
        return f"mqtt://{self.host}:{self.port}"

    def accept(self) -> Link:
        """Return the next connection. Raises PeerError if none comes in time."""
        if not self.wait_readable(self._listener, self.timeout_s):
            raise PeerError(f"no connection within {self.timeout_s:g} s")
        connection, _ = self._listener.accept()
        link = Link(self, connection)
        self._links.append(link)
        return link

    def refuse(self) -> None:
        """Refuse connections from now on, as a machine without a broker does. Open links stay."""
        self._listener.close()
        self._listener = bound(self.host, self.port)

    def run(self, script: Callable[[ScriptedPeer], None]) -> None:
        """Play `script` in a thread; `join` (or leaving the `with` block) waits for its end."""

        def play() -> None:
            try:
                script(self)
            except BaseException as error:  # noqa: BLE001 - handed to the test by join()
                self._script_error = error

        assert self._script is None, "one script at a time: join() the first"
        self._script = threading.Thread(target=play, name="scripted peer")
        self._script.start()

    def join(self) -> None:
        """Wait until the script has ended (each of its steps has its own limit); raise what it raised."""
        assert self._script is not None, "no script runs"
        self._script.join()
        self._script = None
        error, self._script_error = self._script_error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Stop the script where it waits and close every socket."""
        self._stop.close()
        if self._script is not None:
            self._script.join()
            self._script = None
        for link in self._links:
            link.close()
        self._listener.close()
        self._stopped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._script is not None:
                self.join()
        finally:
            self.close()

    def wait_readable(self, sock: socket.socket, timeout_s: float) -> bool:
        """Wait until `sock` is readable, driving the code under test; return False after `timeout_s`.

        Raises PeerError if the peer is closed meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        # A script in a thread must not call into the code under test, which is not thread-safe.
        drive = self.drive if self._script is None else None
        while True:
            if drive is not None:
                drive()
            left = deadline - time.monotonic()
            pause = left if drive is None else min(left, _DRIVE_EVERY_S)
            ready, _, _ = select.select([sock, self._stopped], [], [], max(0.0, pause))
            if self._stopped in ready:
                raise PeerError("the peer was closed while its script waited")
            if ready:
                return True
            if left <= 0:
                return False


class Link:
    """One connection of a ScriptedPeer."""

    def __init__(self, peer: ScriptedPeer, connection: socket.socket) -> None:
        self._peer = peer
        self._socket = connection
        # Each send() must reach the other side as its own segment.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._ended: str | None = None

    def receive(self, timeout_s: float | None = None) -> Packet | None:
        """Return the next packet, or None if the other side has closed. Raises PeerError on silence or a bad packet."""
        limit = self._peer.timeout_s if timeout_s is None else timeout_s
        while True:
            try:
                decoded = decode(self._received)
            except WireError as error:
                raise PeerError(f"malformed packet: {error}; bytes {bytes(self._received[:64]).hex()}") from error
            if decoded is not None:
                packet, length = decoded
                del self._received[:length]
                return packet
            if self._ended is not None:
                if self._received:
                    raise PeerError(f"{self._ended} inside a packet: {bytes(self._received[:64]).hex()}")
                return None
            self._fill(limit)

    def _fill(self, timeout_s: float) -> None:
        if not self._peer.wait_readable(self._socket, timeout_s):
            raise PeerError(f"nothing came within {timeout_s:g} s (incomplete: {bytes(self._received[:64])!r})")
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            self._ended = "reset"
            return
        if not data:
            self._ended = "closed"
        self._received += data

    def expect(self, packet_type: Type, **fields: object) -> Packet:
        """Return the next packet. Raises PeerError unless it has this type and these field values (see wire.Packet)."""
        packet = self.receive()
        if packet is None:
            raise PeerError(f"expected {packet_type.name}, but the connection was {self._ended}")
        if packet.type is not packet_type:
            raise PeerError(f"expected {packet_type.name} {fields or ''}, got {packet}")
        for name, value in fields.items():
            if getattr(packet, name) != value:
                raise PeerError(f"{packet_type.name}: {name} is {getattr(packet, name)!r}, expected {value!r}")
        return packet

    def expect_nothing(self, quiet_s: float) -> None:
        """Raise PeerError if anything comes within `quiet_s` seconds, a byte or the end of the connection."""
        if self._received or self._ended or self._peer.wait_readable(self._socket, quiet_s):
            raise PeerError(f"expected silence, got {self.receive() or self._ended}")

    def expect_closed(self) -> str:
        """Wait for the other side to close, with no packet before; return "closed" (FIN) or "reset" (RST)."""
        packet = self.receive()
        if packet is not None:
            raise PeerError(f"expected the end of the connection, got {packet}")
        assert self._ended is not None
        return self._ended

    def accept_session(self, *, session_present: bool = False, return_code: int = 0) -> Packet:
        """Expect a CONNECT and answer it; return the CONNECT."""
        packet = self.expect(Type.CONNECT)
        self.send(connack(session_present, return_code))
        return packet

    def answer(self, packet: Packet) -> None:
        """Send what a broker answers at once: PUBACK or PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP.

        Does nothing if the other side is gone; the next `receive` reports that.
        """
        packet_id = packet.packet_id or 0
        with suppress(ConnectionError):
            if packet.type is Type.PUBLISH and packet.qos:
                self.send(acknowledgement(Type.PUBACK if packet.qos == 1 else Type.PUBREC, packet_id))
            elif packet.type in _NEXT:
                self.send(acknowledgement(_NEXT[packet.type], packet_id))
            elif packet.type is Type.SUBSCRIBE:
                self.send(suback(packet_id, *(qos for _, qos in packet.topic_filters)))
            elif packet.type is Type.PINGREQ:
                self.send(pingresp())

    def send(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        """Send each piece as its own segment, `pause_s` seconds apart: `send(data[:3], data[3:])` splits a packet."""
        for number, piece in enumerate(pieces):
            if number and pause_s:
                time.sleep(pause_s)
            self._socket.sendall(piece)

    def finish(self) -> None:
        """Send FIN, but keep reading, as a peer does that has nothing more to send."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close (FIN; RST when unread data waits). May be called again."""
        self._socket.close()

    def reset(self) -> None:
        """Send RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


_NEXT = {Type.PUBREC: Type.PUBREL, Type.PUBREL: Type.PUBCOMP, Type.UNSUBSCRIBE: Type.UNSUBACK}
