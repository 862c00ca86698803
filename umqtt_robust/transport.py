"""TCP without blocking.

A transport is an object with
    ready()                   True when it can carry bytes, False while it is being made
    read(buf, offset)         how many bytes it put into buf[offset:], None when there are none now, 0 at the end
    write(buf, offset, size)  how many bytes it took, None or 0 when it takes none now
    close()
All of them raise OSError when the link is broken, and none of them waits. One that the program can wait for has
wait(ms, writing) too.
"""

import errno
import select
import socket

from ._platform import Socket, poll
from .errors import LinkLost


class TCP:
    """A TCP connection. Resolving the name is the one thing here that can block: the ports have no other way."""

    def __init__(self, host, port):
        try:
            found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
        except OSError as error:
            raise LinkLost("cannot resolve %s: %s" % (host, error))
        self._addresses = [(entry[0], entry[-1]) for entry in found]
        self._connected = False
        self.socket = None
        self._open_next()

    def _open_next(self):
        family, address = self._addresses.pop(0)
        self.close()
        self.socket = sock = Socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.setsockopt(6, 1, 1)  # TCP_NODELAY, which the unix port does not name: one write is one packet
        except OSError:
            pass  # a port without the option: only slower
        self._poller = poll()
        self._poller.register(sock, select.POLLIN | select.POLLOUT)
        try:
            sock.connect(address)
        except OSError as error:
            if error.errno != errno.EINPROGRESS:
                self._failed(error)

    def _failed(self, error):
        if not self._addresses:
            raise error
        self._open_next()

    def ready(self):
        if self._connected:
            return True
        for event in self._poller.ipoll(0):
            flags = event[1]
            if flags & (select.POLLERR | select.POLLHUP):
                try:
                    self.socket.readinto(bytearray(1))  # names the error
                    error = OSError(errno.ECONNABORTED)
                except OSError as named:
                    error = named
                self._failed(error)
                return False
            if flags & select.POLLOUT:
                self._connected = True
        return self._connected

    def read(self, buf, offset):
        return self.socket.readinto(memoryview(buf)[offset:] if offset else buf)

    def write(self, buf, offset, size):
        return self.socket.write(buf, offset, size)

    def wait(self, ms, writing):
        """Waits up to ms until something arrived, or until it takes bytes when `writing`."""
        self._poller.modify(self.socket, select.POLLIN | (select.POLLOUT if writing or not self._connected else 0))
        for _ in self._poller.ipoll(ms):
            pass

    def close(self):
        if self.socket:
            self.socket.close()
            self.socket = None
