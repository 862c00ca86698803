"""What MicroPython has built in, for CPython: used by _platform, tls, aio and flash, and not installed on boards."""

import asyncio
import io
import os
import select
import socket
import ssl
import struct
import tempfile
import time
import traceback

try:
    import fcntl
    import termios
except ImportError:
    fcntl = None  # Windows does not tell what it has sent

_NEVER = 0x1FFFFFFF  # as in _platform
_LOOK = 1000  # ms between two looks at a queue


def const(value):
    return value


def collect():
    """Does nothing. On MicroPython this is gc.collect(); here that would only take time."""


def print_exception(error):
    """Print the traceback to standard error."""
    traceback.print_exception(error)


def ticks_ms():
    return (time.monotonic_ns() // 1000000) & 0x3FFFFFFF


def ticks_diff(later, earlier):
    """Returns a difference that does not wrap; _platform replaces it."""
    return later - earlier


def getaddrinfo(host, port, family, kind):
    """Looks up a name like socket.getaddrinfo(). Raises OSError for every name that cannot be looked up."""
    try:
        return socket.getaddrinfo(host, port, family, kind)
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError("%s cannot be looked up: %s" % (host, error)) from error


class Socket(socket.socket):
    """A socket with MicroPython's stream methods, which return None where CPython's raise BlockingIOError."""

    def readinto(self, buf):
        try:
            return self.recv_into(buf)
        except BlockingIOError:
            return None

    def read(self, size):
        try:
            return self.recv(size)
        except BlockingIOError:
            return None

    def write(self, buf, offset, size):
        try:
            return self.send(memoryview(buf)[offset : offset + size])
        except BlockingIOError:
            return None

    def queue(self):
        """Returns (written bytes that the other end's system has confirmed, bytes that it has not), None if unknown."""
        try:
            info = self.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
            waiting = fcntl.ioctl(self.fileno(), termios.TIOCOUTQ, bytes(4))
            return struct.unpack_from("=Q", info, 120)[0], struct.unpack("=i", waiting)[0]  # tcpi_bytes_acked
        except (AttributeError, OSError, struct.error):
            return None


class _SecureSocket(ssl.SSLSocket):
    """A Socket over TLS. wants: the only event to poll for, POLLIN or POLLOUT; 0: the events that the caller names."""

    wants = 0
    queue = Socket.queue

    def readinto(self, buf):
        self.wants = 0
        try:
            return self.recv_into(buf)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self.wants = select.POLLOUT
            return None

    def write(self, buf, offset, size):
        self.wants = 0
        try:
            return self.send(memoryview(buf)[offset : offset + size])
        except ssl.SSLWantWriteError:
            return None
        except ssl.SSLWantReadError:
            self.wants = select.POLLIN  # the handshake waits for the broker
            return None


class _Context(ssl.SSLContext):
    """An ssl.SSLContext whose methods take MicroPython's arguments: certificates and keys as DER."""

    sslsocket_class = _SecureSocket
    _chain = ""

    def load_verify_locations(self, certificate):
        super().load_verify_locations(cadata=certificate)

    def load_cert_chain(self, certificate, key):
        # ssl reads them from a file only: this one is readable by its owner alone, and removed at the end.
        self._chain += ssl.DER_cert_to_PEM_cert(certificate)
        label = _key_label(key)
        pem = self._chain + ssl.DER_cert_to_PEM_cert(key).replace("CERTIFICATE", label)
        handle, path = tempfile.mkstemp()
        try:
            with open(handle, "w") as file:
                file.write(pem)
            super().load_cert_chain(path)
        finally:
            os.unlink(path)


def _key_label(der):
    # The format shows after SEQUENCE and its length: version 1 is SEC 1; version 0 is PKCS #1 if an INTEGER follows,
    # else PKCS #8.
    i = 2 + (der[1] & 0x7F if der[1] & 0x80 else 0)
    if der[i + 2] == 1:
        return "EC PRIVATE KEY"
    return "RSA PRIVATE KEY" if der[i + 3] == 2 else "PRIVATE KEY"


class tls:
    """Stands in for MicroPython's module tls."""

    PROTOCOL_TLS_CLIENT = ssl.PROTOCOL_TLS_CLIENT
    SSLContext = _Context


class poll:
    """A select.poll with MicroPython's ipoll(), which also reports data that a TLS socket has already decrypted.

    At most one TLS socket can be registered.
    """

    def __init__(self):
        self._poll = select.poll()
        self.modify = self._poll.modify
        self.ipoll = self._poll.poll

    def register(self, sock, events):
        if isinstance(sock, ssl.SSLSocket):  # it may come from the program's own SSLContext
            if not sock.context.check_hostname:
                raise ssl.SSLCertVerificationError("the SSLContext does not check host names")
            sock.__class__ = _SecureSocket
        self._poll.register(sock, events)
        if isinstance(sock, _SecureSocket):
            self._secure = sock
            self._events = events
            self.modify = self._modify_secure
            self.ipoll = self._ipoll_secure

    def _modify_secure(self, sock, events):
        self._events = events

    def _ipoll_secure(self, ms):
        if self._events & select.POLLIN and self._secure.pending():
            return [(self._secure, select.POLLIN)]  # decrypted already: the kernel knows nothing of it
        self._poll.modify(self._secure, self._secure.wants or self._events)
        return self._poll.poll(ms)


class Progress:
    """Restarts the clock of what a client waits for, while that lies in the system's queue and the queue moves.

    A computer takes megabytes at once, however slow the line is, and the answer to a packet cannot come before all that
    was written earlier has left. A queue that does not move restarts no clock, so a dead link is noticed in time.
    """

    def __init__(self, client):
        self._client = client
        self._socket = None  # the one that the rest is about
        # What is awaited: (its clock as set at the last look, the place in the stream where it ends, None: unknown).
        self._awaited = {}
        self._confirmed = self._next_look = 0
        client.timers.append(self.look)

    def look(self):
        """Looks at the queue, at most once a second. Returns ms until the next look."""
        client = self._client
        if not (client.in_flight or client.ping or client.subscriptions.requests):
            return _NEVER
        left = self._next_look - client.now & 0x3FFFFFFF
        sock = client.socket
        if sock is self._socket and 0 < left <= _LOOK:
            return left
        if sock is not self._socket:
            self._socket = sock
            self._awaited = {}
            self._confirmed = 0
        self._next_look = client.now + _LOOK & 0x3FFFFFFF
        queue = getattr(sock, "queue", None)
        found = queue and queue()
        if not found:
            return _NEVER
        moved = found[0] > self._confirmed
        self._confirmed, waiting = found
        self._end = None if client.out.end else self._confirmed + waiting
        self._restart = client.now if moved else None
        self._last, self._awaited = self._awaited, {}
        outbox = client.outbox
        for slot in outbox.in_flight():
            key = outbox.ids[slot], outbox.flags[slot]  # another one for PUBREL
            outbox.sent_at[slot] = self._clock(key, outbox.sent_at[slot])
        subscriptions = client.subscriptions
        if subscriptions.requests:
            subscriptions.asked_at = self._clock("requests", subscriptions.asked_at)
        if client.ping:
            client.ping_at = self._clock("ping", client.ping_at)
        if moved and (client.ping or client.out.end):
            client.out.written_at = client.now  # the broker gets bytes
        return _LOOK if waiting else _NEVER

    def _clock(self, key, clock):
        # Returns when the clock of `key` begins, which was at `clock`.
        seen, end = self._last.get(key, (None, None))
        if seen != clock or end is None:  # sent since the last look, or not written yet then
            end = self._end
        if self._restart is not None and (end is None or end > self._confirmed):
            clock = self._restart
        self._awaited[key] = clock, end
        return clock


async def rest(events, ms):
    """Waits until wake(events), for `ms` at most, None: however long; for aio.py."""
    woken = asyncio.get_running_loop().create_future()
    events.append(woken)
    try:
        await asyncio.wait((woken,), timeout=None if ms is None else ms / 1000)
    finally:
        events.remove(woken)


def wake(events):
    """Ends each rest() of this list."""
    for woken in events:
        if not woken.done():
            woken.set_result(None)


class watch:
    """Calls wake(events) when a socket is readable, or with `writing` also writable, until cancel(); for aio.py."""

    def __init__(self, sock, writing, events):
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        wants = getattr(sock, "wants", 0)
        if wants != select.POLLOUT:
            self._loop.add_reader(sock, wake, events)
        if writing and wants != select.POLLIN:
            self._loop.add_writer(sock, wake, events)
        if isinstance(sock, _SecureSocket) and sock.pending():
            self._loop.call_soon(wake, events)  # the caller does not rest yet

    def __iter__(self):
        return iter((self,))

    def cancel(self):
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)


# For flash.py and backlog.py


def ilistdir(name):
    """Returns (name,) of each file of a folder, in place of MicroPython's os.ilistdir(). Raises OSError."""
    return [(entry,) for entry in os.listdir(name)]


def mkdir_durably(name):
    """Makes a folder, which is on the disk when this returns. Raises OSError."""
    os.mkdir(name)
    _sync_folder(os.path.dirname(name))


def _sync_folder(name):
    descriptor = os.open(name or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class open_durably(io.FileIO):
    """A file like that of open(name, mode): its content and its name are on the disk once flush() has returned."""

    def __init__(self, name, mode):
        self._unsynced = mode == "wb"
        self._new = self._unsynced and not os.path.exists(name)
        io.FileIO.__init__(self, name, mode)

    def flush(self):  # close() calls it again
        if self._unsynced:
            os.fsync(self.fileno())
            if self._new:
                _sync_folder(os.path.dirname(self.name))
            self._unsynced = False
