"""TCP without blocking, and what a transport is.

A transport is an object with
    socket                    what select and poll take, or None
    ready()                   returns True once it can carry bytes, False while it is being made
    read(buf, offset)         returns how many bytes it put into buf[offset:], None if there are none now, 0 at the end
    write(buf, offset, size)  returns how many bytes it took, None or 0 if it takes none now
    close()                   closes the link; raises nothing
    wait(ms, writing)         waits until it can read, or with `writing` write, for at most ms
    accepted()                optional: called when the broker at the other end has accepted the client
    waits(writing)            optional: returns whether the socket must be writable next; writing: the client wants to
The others raise OSError if the link is broken, and only wait() waits.
"""

import errno
import select

from ._platform import Socket, const, getaddrinfo, load, poll

_SOCK_STREAM = const(1)  # on every port

# (host, port): the address where a broker accepted a client last, and whether an attempt with it has begun since.
good_addresses = {}


class TCP:
    """A TCP connection.

    Only the look-up of the name can block: the ports have no other way. So the address that was good last is tried
    first. If that fails, the next attempt looks the name up, and the one after it tries the old address again: while
    the network is away, at most every other attempt blocks. An address is good if a broker accepts the client there:
    one that takes the connection and then stays silent is followed by the next one, as is one that refuses it.
    """

    def __init__(self, host, port):
        self._name = name = host, port
        entry, tried = good_addresses.get(name, (None, True))
        if entry:
            good_addresses[name] = entry, not tried
        self._addresses = found = getaddrinfo(host, port, 0, _SOCK_STREAM) if tried else [entry]
        if len(found) > 1:
            self._addresses = load("servers").turn(name, found)
        self._connected = False
        self.socket = None
        self._next(OSError(errno.ECONNABORTED))

    def _next(self, failure):
        # Tries the next address. failure: the error of the last one, raised if there is no next.
        self.close()
        if not self._addresses:
            raise failure
        self._entry = entry = self._addresses.pop(0)
        try:
            self.socket = sock = Socket(entry[0], _SOCK_STREAM)
            sock.setblocking(False)
            try:
                sock.setsockopt(6, 1, 1)  # TCP_NODELAY, which the unix port does not name: one write is one packet
            except OSError:
                pass  # a port without the option is only slower
            self._poller = poll()
            self._poller.register(sock, select.POLLIN | select.POLLOUT)
            sock.connect(entry[-1])
        except OSError as error:
            if error.errno != errno.EINPROGRESS:
                self._next(error)

    def ready(self):
        if not self._connected:
            for event in self._poller.ipoll(0):
                if event[1] & (select.POLLERR | select.POLLHUP):
                    try:
                        self.socket.readinto(bytearray(1))  # raises the error
                        self._next(OSError(errno.ECONNABORTED))
                    except OSError as error:
                        self._next(error)
                elif event[1] & select.POLLOUT:
                    self._connected = True
        return self._connected

    def accepted(self):
        good_addresses[self._name] = self._entry, False

    def read(self, buf, offset):
        return self.socket.readinto(memoryview(buf)[offset:] if offset else buf)

    def write(self, buf, offset, size):
        return self.socket.write(buf, offset, size)

    def wait(self, ms, writing):
        writing = writing or not self._connected
        self._poller.modify(self.socket, select.POLLIN | (select.POLLOUT if writing else 0))
        for _ in self._poller.ipoll(ms):
            pass

    def close(self):
        sock = self.socket
        self.socket = None
        if sock:
            try:
                sock.close()
            except OSError:
                pass  # it is gone either way: lwIP says EBADF after an error
