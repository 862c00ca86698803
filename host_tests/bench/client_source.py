"""A broker's side of a connection that sends messages as fast as the client takes them.

The receive rows then measure the client only, and neither a publisher nor a broker's forwarding.

It answers CONNECT, SUBSCRIBE and PINGREQ, and sends from a buffer that was filled before. The topic filter selects
the messages: `bench/QOS/COUNT/SIZE`, COUNT messages of SIZE bytes at that QoS, 0 for an endless stream.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Iterator
from typing import Self

from umqtt_testkit.encoder import publish

_MESSAGES_PER_WRITE = 512


class Source:
    """Listens on 127.0.0.1:port, with one thread per connection; acknowledgements are read and discarded."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="source", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown() wakes the threads, which close() alone would not.
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="source", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        waiting = b""
        try:
            while True:
                # Only small packets come here: none is longer than 127 bytes, so byte 1 is the remaining length.
                while len(waiting) > 1 and len(waiting) >= 2 + waiting[1]:
                    packet, waiting = waiting[: 2 + waiting[1]], waiting[2 + waiting[1] :]
                    if packet[0] == 0x10:
                        connection.sendall(b"\x20\x02\x00\x00")
                    elif packet[0] == 0xC0:
                        connection.sendall(b"\xd0\x00")
                    elif packet[0] == 0x82:
                        topic_filter = packet[6:-1]
                        connection.sendall(bytes((0x90, 3, packet[2], packet[3], packet[-1])))
                        threading.Thread(target=self._send, args=(connection, topic_filter), daemon=True).start()
                received = connection.recv(65536)
                if not received:
                    return
                waiting += received
                if waiting[0] == 0x40:  # only PUBACKs come while messages flow
                    waiting = waiting[len(waiting) & ~3 :]
        except OSError:
            return  # the client has all it wants
        finally:
            self._open.discard(connection)
            connection.close()

    @staticmethod
    def _send(connection: socket.socket, topic_filter: bytes) -> None:
        _, qos, count, size = topic_filter.split(b"/")
        try:
            for chunk in chunks(topic_filter, int(qos), int(count), int(size)):
                connection.sendall(chunk)
        except OSError:
            return  # the client has closed


def chunks(topic: bytes, qos: int, count: int, size: int) -> Iterator[bytes]:
    """Yield bytes to write, many PUBLISHes each; made once and then repeated if count is 0."""
    if count:
        yield b"".join(publish(topic, bytes(size), qos, 1 + i % 65535) for i in range(count))
        return
    # Use all packet ids, so that none is repeated while it is unacknowledged.
    buffers = _all_ids(topic, qos, size)
    while True:
        yield from buffers


@functools.cache
def _all_ids(topic: bytes, qos: int, size: int) -> list[bytes]:
    return [
        b"".join(publish(topic, bytes(size), qos, first + i) for i in range(min(_MESSAGES_PER_WRITE, 65536 - first)))
        for first in range(1, 65536, _MESSAGES_PER_WRITE)
    ]
