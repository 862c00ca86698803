"""A publisher at QoS 1 that keeps unacknowledged messages over every connection, as a device with flash does."""

from __future__ import annotations

import socket
import struct
import threading
import time

from spark_helpers import SPARK_LIMIT_S, publish_packet
from umqtt_testkit import encoder

from .fleet import Fleet, Message

_WINDOW = 50
_TICK_S = 0.02
# A large message takes several rounds of the broker's loop.
_SEND_LIMIT_S = 60


class Publisher:
    """A thread that publishes what `fleet` makes while `go` is set, `rate` messages a second.

    acknowledged: the number of acknowledged messages. It raises nothing: what broke is in `failure`.
    """

    def __init__(self, fleet: Fleet, port: int, client_id: str, rate: float) -> None:
        self.fleet = fleet
        self.go = threading.Event()
        self.acknowledged = 0
        self.failure = ""
        self._port = port
        self._client_id = client_id.encode()
        self._rate = rate
        # By packet identifier, in the order of their PUBLISH.
        self._window: dict[int, Message] = {}
        self._rest: list[Message] = []
        self._last_id = 0
        self._buffer = bytearray()
        self._is_closed = False
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=client_id, daemon=True)

    def start(self) -> None:
        """Start the thread; it publishes while `go` is set."""
        self._thread.start()

    def settle(self) -> None:
        """Stop publishing, and return once everything is acknowledged."""
        self._settled.clear()
        self.go.clear()
        deadline = time.monotonic() + SPARK_LIMIT_S
        while not self._settled.wait(0.1):
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise AssertionError(f"{self._client_id.decode()}: {len(self._window)} not acknowledged {self.failure}")

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._thread.join(SPARK_LIMIT_S)

    def _run(self) -> None:
        while not self._is_closed:
            try:
                with socket.create_connection(("127.0.0.1", self._port), _SEND_LIMIT_S) as link:
                    self._one_connection(link)
            except OSError:
                time.sleep(0.05)  # the broker was killed, and is not back yet

    def _one_connection(self, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer.clear()
        link.sendall(encoder.connect(self._client_id, clean_session=False))
        while len(self._buffer) < 4:
            self._receive(link)
        if self._buffer[:2] != b"\x20\2" or self._buffer[3]:
            self.failure = f"{self._client_id.decode()}: refused with {self._buffer[:4].hex()}"
        del self._buffer[:4]
        for packet_id, message in self._window.items():
            link.sendall(publish_packet(*message, packet_id, dup=True))
        while not self._is_closed:
            began = time.monotonic()
            link.settimeout(_SEND_LIMIT_S)
            if self.go.is_set():
                self._publish(link, 1 + round(self._rate * _TICK_S))
            elif not self._settled.is_set():
                self._settle(link)
            link.settimeout(_TICK_S)
            self._take_acknowledgements(link, began + _TICK_S)

    def _publish(self, link: socket.socket, count: int) -> None:
        # Packet by packet, so that a kill of the broker can fall between any two of them.
        for _ in range(min(count, _WINDOW - len(self._window))):
            self._send(link, self.fleet.next())

    def _settle(self, link: socket.socket) -> None:
        self._rest += self.fleet.rest()
        while self._rest and len(self._window) < _WINDOW:
            self._send(link, self._rest.pop(0))
        if not self._rest and not self._window:
            self._settled.set()

    def _send(self, link: socket.socket, message: Message) -> None:
        self._last_id = self._last_id % 65535 + 1
        self._window[self._last_id] = message  # recorded first: if sending fails, it must be sent again
        link.sendall(publish_packet(*message, self._last_id))

    def _take_acknowledgements(self, link: socket.socket, until: float) -> None:
        while True:
            try:
                self._receive(link)
            except TimeoutError:
                return
            while len(self._buffer) >= 4:
                first, length, packet_id = struct.unpack_from(">BBH", self._buffer)
                if (first, length) != (0x40, 2) or self._window.pop(packet_id, None) is None:
                    self.failure = f"{self._client_id.decode()}: unexpected packet {self._buffer[:4].hex()}"
                else:
                    self.acknowledged += 1
                del self._buffer[:4]
            if time.monotonic() > until:
                return

    def _receive(self, link: socket.socket) -> None:
        data = link.recv(65536)
        if not data:
            raise ConnectionResetError("closed")
        self._buffer += data
