"""One TCP or TLS connection to a broker: sending, receiving, deadlines and keep-alive; nothing about sessions."""

import select
import socket
import ssl
import time
from collections.abc import Callable

from .wire import PINGREQ_PACKET

_RECEIVE_BYTES = 1 << 18
_SOCKET_BUFFER_BYTES = 4 << 20
_UNSENT_LIMIT = 1 << 16
# Raised by a non-blocking socket without input or without room for output; TLS has its own exceptions.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Link:
    """A connected, non-blocking socket with its output buffer and keep-alive.

    A ping is queued when nothing was sent, or nothing received, for half of `keep_alive`. The link counts as dead
    when a ping is outstanding and nothing at all arrived within ``min(10 s, keep_alive / 2)``.

    :param keep_alive: seconds, as in CONNECT; 0 switches pings off [3.1.2.10].
    :param tls: the context of a TLS connection, which decides what is verified; None for plain TCP.
    :param timeout_s: seconds allowed for the connect and for the TLS handshake.
    :param clock: a function that returns monotonic seconds.
    :raises OSError: the name look-up, the connect or the TLS handshake failed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        keep_alive: int,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        if tls is not None:
            plain = self._socket
            try:
                self._socket = tls.wrap_socket(plain, server_hostname=host)
            except BaseException:
                plain.close()
                raise
        self._socket.setblocking(False)
        # Each group's acknowledgements are one write; Nagle's algorithm would delay it until the peer's delayed ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        self._clock = clock
        self._output = bytearray()
        self._keep_alive = keep_alive
        self._ping_timeout = min(10.0, keep_alive / 2)
        self._last_sent = self._last_received = clock()
        self._pinged_at: float | None = None

    def set_keep_alive(self, seconds: int) -> None:
        """Use another keep-alive time, in seconds, because the broker has chosen it."""
        self._keep_alive = seconds
        self._ping_timeout = min(10.0, seconds / 2)

    def queue(self, data: bytes) -> None:
        """Queue `data`, and send as much as the socket takes now."""
        self._output += data
        self._send()

    def wait(self, timeout_s: float, wake_fd: int) -> bool:
        """Wait for input, room to send queued data, or a byte at `wake_fd`; return True if there is input.

        Also keeps the link alive: queues a ping when one is due, and returns in time for the next.

        :raises TimeoutError: the broker did not answer a ping, and there is no input from it.
        """
        timeout_s = min(timeout_s, self._keep_alive_step())
        # Bytes that TLS has already decrypted are no longer in the socket, so select does not report them.
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() and len(self._output) < _UNSENT_LIMIT:
            return True
        writers = [self._socket] if self._output else []
        # Stop reading while the broker does not read its acknowledgements: unsent data stays near 64 KiB.
        readers = [self._socket, wake_fd] if len(self._output) < _UNSENT_LIMIT else [wake_fd]
        readable, writable, _ = select.select(readers, writers, [], max(0.0, timeout_s))
        if writable:
            self._send()
        if self._socket in readable:
            return True
        # Checked after the read: the answer may have arrived while this process waited for its disk or was stopped.
        if self._pinged_at is not None and self._clock() - self._pinged_at >= self._ping_timeout:
            raise TimeoutError(f"the broker did not answer a ping within {self._ping_timeout:g} s")
        return False

    def receive(self, buffer: bytearray, limit: int = _RECEIVE_BYTES) -> bool:
        """Append at most `limit` bytes of input to `buffer`; return False if there was none.

        :raises ConnectionError: the broker closed the connection, or the link broke.
        """
        try:
            data = self._socket.recv(min(limit, _RECEIVE_BYTES))
        except _NOT_NOW:
            return False
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        self._last_received = self._clock()
        self._pinged_at = None
        buffer += data
        return True

    def finish(self, timeout_s: float) -> None:
        """Send queued data, then close so that the broker can read all of it; wait at most `timeout_s` seconds.

        Closing with unread input would send RST, which destroys what the broker has not read yet: the last
        acknowledgements and DISCONNECT. Therefore the link is half-closed and then read to its end. Messages read
        here are dropped without acknowledgement, and the broker sends them again in the next connection.
        """
        deadline = self._clock() + timeout_s
        try:
            half_closed = False
            while (left := deadline - self._clock()) > 0:
                if not self._output and not half_closed:
                    self._socket.shutdown(socket.SHUT_WR)
                    half_closed = True
                writers = [self._socket] if self._output else []
                readable, writable, _ = select.select([self._socket], writers, [], left)
                if writable:
                    self._send()
                if readable and self._drained():
                    return
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket at once."""
        self._socket.close()

    def _drained(self) -> bool:
        """Read and drop input; return True if the broker has closed its side."""
        try:
            return not self._socket.recv(_RECEIVE_BYTES)
        except _NOT_NOW:
            return False

    def _send(self) -> None:
        while self._output:
            try:
                sent = self._socket.send(self._output)
            except _NOT_NOW:
                return
            self._last_sent = self._clock()
            del self._output[:sent]

    def _keep_alive_step(self) -> float:
        """Queue a ping if one is due; return the seconds until this must be called again."""
        if not self._keep_alive:
            return float("inf")
        now = self._clock()
        if self._pinged_at is None:
            due = min(self._last_sent, self._last_received) + self._keep_alive / 2
            if now < due:
                return due - now
            # The timeout starts when the ping is queued, so it also detects a link that accepts no bytes.
            self._pinged_at = now
            self.queue(PINGREQ_PACKET)
        return self._pinged_at + self._ping_timeout - now
