"""Sockets in memory that behave like those of the ports, under umqtt_robust.transport.TCP.

The unix port alone is not enough: error numbers differ by port, and so does what follows an error.
"""

import errno
import select
import sys

from cut_wire import Wire
from world import World

import umqtt_robust
from umqtt_robust import transport

if not hasattr(transport, "Socket"):  # in the bundle all modules are one
    transport = umqtt_robust


def error(number):
    """Return an OSError with this errno; the text is needed because CPython sets errno only with one."""
    return OSError(number, "shim")


class Port:
    """The behaviour of one port's sockets.

    errno: the numbers of the port's module `errno`. reset_read, reset_write: numbers that mean a reset. after_error:
    what follows an error: an error number, or 0 for the end of the stream for ever. failed: poll events of a
    connection that failed. close_error: close() raises it after an error. piece: bytes that one write takes, before a
    write that takes none.
    """

    def __init__(
        self, name, numbers, reset_read, reset_write, after_error, failed, close_error=0, piece=0, options=True
    ):
        self.name = name
        if sys.implementation.name == "micropython":
            numbers = (errno.EINPROGRESS,) + numbers[1:]  # its compiler puts in its own numbers of `errno`
        self.EINPROGRESS, self.ECONNREFUSED, self.ECONNABORTED, self.EHOSTUNREACH, self.ETIMEDOUT = numbers
        self.reset_read = reset_read
        self.reset_write = reset_write
        self.after_error = after_error
        self.failed = failed
        self.close_error = close_error
        self.piece = piece
        self.options = options


_ALL = select.POLLOUT | select.POLLERR | select.POLLHUP
LINUX = (115, 111, 103, 113, 110)
PORTS = (
    Port("unix", LINUX, 104, 32, 0, _ALL | select.POLLIN),
    # newlib's numbers; the end of the stream stays; close() fails after an error
    Port("esp32", (119, 111, 113, 118, 116), 104, 128, 0, select.POLLOUT | select.POLLHUP, close_error=9),
    # lwIP: one error, and then EBADF for ever; a write takes a part
    Port("rp2", LINUX, 104, 104, 9, select.POLLERR, piece=11),
    # lwIP without a table of numbers, and without TCP_NODELAY
    Port("lwip -1", LINUX, -1, -1, 9, _ALL, close_error=9, piece=3, options=False),
)


class Net:
    """The network: one host whose addresses answer or not.

    addresses: one of "ok", "refused", "unreachable", "silent", "no such family" (the system makes no socket for it),
    "mute" (it accepts the connection and says nothing) or "closes" for each address of the host.
    lookup_error: raised by getaddrinfo. lookups: how often getaddrinfo was called.
    turns: by how many places the list of addresses turns at each look-up.
    """

    def __init__(self, port, world):
        self.port = port
        self.world = world
        self.addresses = ["ok"]
        self.lookup_error = None
        self.lookups = 0
        self.turns = 0
        self.sockets = []

    def getaddrinfo(self, host, port, family=0, kind=0):
        self.lookups += 1
        if self.lookup_error:
            raise self.lookup_error
        broker = self.world.brokers[int(host[4:])]
        self.addresses = self.addresses[self.turns :] + self.addresses[: self.turns]
        return [(10 if one == "no such family" else 2, 1, 0, "", (one, broker)) for one in self.addresses]

    def socket(self, family=2, kind=1):
        if family != 2:
            raise error(97)
        made = ShimSocket(self)
        self.sockets.append(made)
        return made

    def open_sockets(self):
        return len([one for one in self.sockets if not one.closed])


class ShimSocket:
    def __init__(self, net):
        self.net = net
        self.port = net.port
        self.wire = None
        self.state = "new"
        self.closed = False
        self.error = 0  # raised by the next call
        self.failed = False  # an error was raised
        self.rest = False  # the last write was partial: the next one takes nothing

    def setblocking(self, flag):
        assert not flag

    def setsockopt(self, level, option, value):
        if not self.port.options:
            raise error(92)

    def connect(self, address):
        how, broker = address
        if self.net.world.unreachable or broker.down:
            how = "refused"
        if how == "unreachable":
            raise error(self.port.EHOSTUNREACH)
        self.state = "connecting"
        self.how = how
        self.broker = broker
        self.polls = 0
        raise error(self.port.EINPROGRESS)

    def progress(self):
        """Move the connection on by one poll."""
        if self.state == "connecting" and self.how != "silent":
            self.polls += 1
            if self.polls > 2:
                if self.how == "refused":
                    self.state = "failed"
                    self.error = self.port.ECONNREFUSED
                else:
                    self.state = "up"
                    self.wire = Wire(self.broker, **self.net.world.next_cut())
                    self.net.world.wires.append(self.wire)
                    self.wire.mute = self.how in ("mute", "closes")
                    self.wire.fin = self.how == "closes"

    def _name_the_error(self):
        assert not self.closed, "used after close()"
        if self.state in ("new", "connecting"):
            raise error(128 if self.port.name == "esp32" else 107)  # ENOTCONN
        if self.state == "failed":
            number = self.error
            self.error = self.port.after_error
            self.failed = True
            if number:
                raise error(number)

    def _broken(self, number):
        self.state = "failed"
        self.error = self.port.after_error
        self.failed = True
        raise error(number)

    def readinto(self, buf):
        self._name_the_error()
        if self.state == "failed":
            return 0  # the end of the stream stays
        try:
            return self.wire.read(buf, 0)
        except OSError:
            self._broken(self.port.reset_read)

    def write(self, buf, offset, size):
        self._name_the_error()
        if self.state == "failed":
            raise error(self.port.reset_write)
        if self.port.piece:
            self.rest = not self.rest
            if not self.rest:
                return None
            size = min(size, self.port.piece)
        try:
            return self.wire.write(buf, offset, size)
        except OSError:
            self._broken(self.port.reset_write)

    def close(self):
        if self.closed:
            return
        self.closed = True
        if self.wire:
            self.wire.close()
        if self.failed and self.port.close_error:
            raise error(self.port.close_error)


class ShimPoll:
    """select.poll over ShimSockets, where waiting takes no time."""

    def __init__(self):
        self.sock = None

    def register(self, sock, events):
        self.sock = sock
        self.events = events

    def modify(self, sock, events):
        if sock is not self.sock:
            raise error(2)
        self.events = events

    def ipoll(self, ms):
        sock = self.sock
        sock.progress()
        events = 0
        if sock.state == "failed":
            events = sock.port.failed
        elif sock.state == "up":
            wire = sock.wire
            events = 0 if wire.full else select.POLLOUT
            if wire.down or wire.fin or not wire.alive:
                events |= select.POLLIN
            if not wire.alive:
                events |= select.POLLHUP
        events &= self.events | select.POLLERR | select.POLLHUP
        return [(sock, events)] if events else []


class ShimWorld(World):
    """A World whose client uses the real TCP transport over shim sockets."""

    def __init__(self, port, brokers=None, **options):
        self.port = port
        self.net = None
        World.__init__(self, brokers, **options)

    def next_cut(self):
        return self.cuts.pop(0) if self.cuts else {}

    def start(self):
        if self.net is None:
            self.net = Net(self.port, self)
        return World.start(self)

    def _make(self, host, port, path):
        return transport.TCP(host, port)

    def _more(self):
        for broker in self.brokers:
            broker.release_held()
        link = self.client.transport
        if link is None:
            return False
        sock = link.socket
        if sock.state != "up":
            return sock.state == "failed" or sock.how != "silent"
        return sock.wire.down and not sock.wire.mute or not sock.wire.alive or self._trickles(sock)

    def _trickles(self, sock):
        return self.port.piece and not sock.wire.full and self.client.out.end > 0


class Shim:
    """Puts the shim under umqtt_robust.transport: `with Shim(port) as make_world:`; make_world(**options)."""

    def __init__(self, port):
        self.port = port
        self.worlds = []

    def __enter__(self):
        self.saved = transport.Socket, transport.poll, transport.getaddrinfo, transport.errno
        transport.Socket = lambda family, kind: self.worlds[-1].net.socket(family, kind)
        transport.poll = ShimPoll
        transport.errno = self.port
        transport.getaddrinfo = self.getaddrinfo
        return self.make

    def __exit__(self, *unused):
        transport.Socket, transport.poll, transport.getaddrinfo, transport.errno = self.saved

    def getaddrinfo(self, host, port, family=0, kind=0):
        return self.worlds[-1].net.getaddrinfo(host, port, family, kind)

    def make(self, brokers=None, **options):
        transport.good_addresses.clear()
        world = ShimWorld(self.port, brokers, **options)
        self.worlds = [world]
        return world
