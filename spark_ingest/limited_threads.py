"""Servers with a thread for each connection, of which one address cannot use up all."""

import contextlib
import socket
import threading
import time
from collections import Counter
from socketserver import ThreadingMixIn
from typing import Any


class LimitedThreads(ThreadingMixIn):
    """Limits the connections of a server of the standard library, each of which has a thread and a file.

    For one more than `max_connections`, the oldest one of the address with most of them is closed. A connection that
    is older than `longest_s` seconds is closed too.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    max_connections = 32
    longest_s = float("inf")

    def __init__(self, *arguments: Any) -> None:
        self._lock = threading.Lock()
        # The open connections with their addresses and when they came, the oldest first.
        self._open: dict[socket.socket, tuple[str, float]] = {}
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for a connection."""
        with self._lock:
            self._open[request] = client_address[0], time.monotonic()
            if len(self._open) > self.max_connections:
                ((largest, _),) = Counter(address for address, _ in self._open.values()).most_common(1)
                oldest = next(one for one, (address, _) in self._open.items() if address == largest)
                del self._open[oldest]
                _hang_up(oldest)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Hang up on clients that take too long; serve_forever() calls it twice a second."""
        with self._lock:
            for connection, (_, since) in self._open.items():
                if time.monotonic() - since > self.longest_s:
                    _hang_up(connection)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        connection = request
        try:
            connection = self.begin(request)
            with self._lock:
                if request not in self._open:
                    raise ConnectionAbortedError("hung up on")
                self._open[connection] = self._open.pop(request)
            super().process_request_thread(connection, client_address)
        except OSError:
            connection.close()  # the client is gone
        finally:
            with self._lock:
                self._open.pop(request, None)
                self._open.pop(connection, None)

    def begin(self, request: Any) -> Any:
        """Return the connection to serve for an accepted one. It must not wait for the client."""
        return request

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about clients that go away."""


def _hang_up(connection: socket.socket) -> None:
    # Wakes the thread that reads from it, which then closes it.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
