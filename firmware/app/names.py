"""Looks names up without blocking: sends a query to the network's DNS server over UDP and polls for the answer.

getaddrinfo() blocks for up to 14 s if the server is silent, on every port, and nothing is measured meanwhile. So the
firmware queries DNS itself (RFC 1035) if Wi-Fi has given it a server. getaddrinfo() still handles addresses, which
takes no time, and names ending in .local or without a dot. It also looks up any name after many failures, ever less
often, because it may know a second server of the network. This module is loaded only if a setting holds a name.
"""

import os
import select
import socket

try:
    from umqtt_robust import TCP, good_addresses  # the library as it is deployed: one module
except ImportError:
    from umqtt_robust.transport import TCP, good_addresses

_PORT = 53
_AGAIN_MS = 2_000
_TRIES = 3
_STREAM = 1
# The error of getaddrinfo() for an unknown name or no answer; reasons.py knows it.
_NOT_FOUND = -2
_NO_SUCH_NAME = 3  # RFC 1035, 4.1.1; others are of the server: it failed, it refuses
_TYPE_A_CLASS_IN = b"\0\1\0\1"


def is_name(host):
    """Return True if host has to be looked up in DNS."""
    return "." in host and not host.endswith(".local") and bool(host.strip("0123456789.")) and ":" not in host


def is_ports_turn(failures):
    """Return True if the port is to look a name up, after so many failures in a row: 8, 16, 32 …"""
    return failures >= 8 and not failures & failures - 1


class Lookup:
    """The look-up of a name. servers: IPv4 addresses, asked in turn; now_ms(): ms since boot. Raises OSError."""

    def __init__(self, host, servers, now_ms):
        self._now_ms = now_ms
        question = b""
        for label in host.rstrip(".").split("."):
            if not 0 < len(label) < 64:  # the limits of RFC 1035, 2.3.4
                raise OSError(_NOT_FOUND)
            question += bytes([len(label)]) + label.encode()
        found = [socket.getaddrinfo(server, _PORT, 0, socket.SOCK_DGRAM)[0] for server in servers]
        self._servers = [entry[-1] for entry in found]
        self.socket = socket.socket(found[0][0], socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self._question = question + b"\0" + _TYPE_A_CLASS_IN
        self._id = os.urandom(2)
        self._tries = 0
        self._ask()

    def step(self):
        """Return the addresses as texts, None until there are any. Raises OSError: no such name, or no answer."""
        try:
            data, sender = self.socket.recvfrom(512)
            addresses = sender in self._servers and _answer(data, self._id, self._question)
            if addresses:
                return addresses
            if addresses == []:  # the server cannot or will not say: the next one, at once
                self._asked_at -= _AGAIN_MS
        except OSError as error:
            if error.args == (_NOT_FOUND,):
                raise
            # EAGAIN, or the port is closed (ICMP): both count as no answer yet.
        if self._now_ms() - self._asked_at >= _AGAIN_MS:
            if self._tries == _TRIES * len(self._servers):
                raise OSError(_NOT_FOUND)
            self._ask()
        return None

    def close(self):
        self.socket.close()

    def _ask(self):
        server = self._servers[self._tries % len(self._servers)]
        self._tries += 1
        self._asked_at = self._now_ms()
        try:
            # One question, recursion desired.
            self.socket.sendto(self._id + b"\1\0\0\1\0\0\0\0\0\0" + self._question, server)
        except OSError:
            pass  # no route, for instance after Wi-Fi was lost: the next try may have one


def _answer(data, query_id, question):
    # Returns the addresses in data, [] if the server did not look for any, None if data does not answer this question.
    # A server may repeat the name in other case (RFC 4343).
    if data[:2] != query_id or data[12 : 12 + len(question)].lower() != question.lower() or not data[2] & 0x80:
        return None
    if data[3] & 15:
        if data[3] & 15 != _NO_SUCH_NAME:
            return []
        raise OSError(_NOT_FOUND)
    found = []
    i = 12 + len(question)
    try:
        for _ in range(int.from_bytes(data[6:8], "big")):
            while data[i] and data[i] < 0xC0:
                i += data[i] + 1
            i += 2 if data[i] else 1
            size = int.from_bytes(data[i + 8 : i + 10], "big")
            if data[i : i + 4] == _TYPE_A_CLASS_IN and size == 4:
                found.append("%d.%d.%d.%d" % (data[i + 10], data[i + 11], data[i + 12], data[i + 13]))
            i += 10 + size
    except IndexError:
        pass  # the answer is truncated
    if found:
        return found
    raise OSError(_NOT_FOUND)


class ByName:
    """A factory of transports that looks the name up before the connection is made.

    board: app.board.Board; factory(host, port, path): None for TCP.
    """

    def __init__(self, board, factory=None):
        self._board = board
        self._factory = factory
        self.failures = 0  # look-ups in a row
        self.turn = 0  # which of the name's addresses is next

    def __call__(self, host, port, path):
        servers = is_name(host) and self._board.wifi.name_servers()
        if is_ports_turn(self.failures):
            self.failures += 1
            servers = None
        # Every other time, the last good address of a broker is tried without a look-up.
        if not servers or not good_addresses.get((host, port), (None, True))[1]:
            return self.connect(host, port, path)
        return _Connection(self, host, port, path, Lookup(host, servers, self._board.clock.uptime_ms))

    def connect(self, host, port, path):
        return self._factory(host, port, path) if self._factory else TCP(host, port)


class _Connection:
    """A transport (umqtt_robust.transport): first the look-up, then the transport that the factory makes."""

    def __init__(self, by_name, host, port, path, lookup):
        self._by_name = by_name
        self._where = host, port, path
        self._lookup = lookup
        self._transport = None
        self.socket = lookup.socket

    def ready(self):
        if not self._transport and not self._look():
            return False
        ready = self._transport.ready()
        self.socket = self._transport.socket  # it changes when TLS wraps it, or for the next address
        return ready

    def _look(self):
        host, port, _ = self._where
        try:
            addresses = self._lookup.step()
            if not addresses:
                return False
            self._by_name.failures = 0
            address = addresses[self._by_name.turn % len(addresses)]
            self._by_name.turn += 1
            entry = socket.getaddrinfo(address, port, 0, _STREAM)[0]
        except OSError:
            self._by_name.failures += 1
            entry = good_addresses.get((host, port), (None,))[0]
            if not entry:
                raise
        # The transport from the factory connects to this address without a look-up of its own.
        good_addresses[host, port] = entry, False
        self._lookup.close()
        self._transport = self._by_name.connect(*self._where)
        return True

    def accepted(self):
        accepted = getattr(self._transport, "accepted", None)
        if accepted:
            accepted()

    def read(self, buf, offset):
        return self._transport.read(buf, offset)

    def write(self, buf, offset, size):
        return self._transport.write(buf, offset, size)

    def wait(self, ms, writing):
        if self._transport:
            self._transport.wait(ms, writing)
        else:
            poller = select.poll()
            poller.register(self.socket, select.POLLIN)
            poller.poll(ms)

    def close(self):
        (self._transport or self._lookup).close()
