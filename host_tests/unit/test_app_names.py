"""A board continues to measure while a name is looked up, whatever the DNS server does."""

import select
import socket
import sys

import _app_fakes as fakes
from app import names
from app.names import ByName, Lookup, is_name
from app.ntp import Ntp
from app.update_http import Http
from umqtt_testkit.portable import WAIT_LIMIT_S, equal, raises

import umqtt_robust
import umqtt_robust.transport as transport
from umqtt_robust import Client

# The module that looks names up; in a bundle it is part of the package.
_LOOKS_UP = transport if hasattr(transport, "getaddrinfo") else umqtt_robust

# lwIP sends four queries within 7 s, and there may be two servers (extmod/modlwip.c, lib/lwip/src/core/dns.c).
_LWIP_BLOCKS_MS = 14_000
_SECONDS = 150


class _Port:
    """The name look-up of a board's port, which blocks for as long as it can."""

    def __init__(self, ticks):
        self.ticks = ticks
        self.asked = 0

    def getaddrinfo(self, host, *others):
        if is_name(host):
            self.asked += 1
            self.ticks.advance(_LWIP_BLOCKS_MS)
            raise OSError(-2)
        return socket.getaddrinfo(host, *others)


class _Server:
    """A DNS server on loopback; answer(query) returns the bytes to send, or None."""

    def __init__(self, answer, host="127.0.0.1"):
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.answer = answer
        self.asked = 0
        # A second server has the port of the first one.
        for port in range(40000, 60000, 7) if host == "127.0.0.1" else (names._PORT,):
            address = socket.getaddrinfo(host, port, 0, socket.SOCK_DGRAM)[0][-1]
            try:
                self._socket.bind(address)
            except OSError:
                continue
            names._PORT = port
            return

    def serve(self, expected=False):
        if expected:
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            assert poller.poll(int(1000 * WAIT_LIMIT_S)), "nothing came"
        try:
            query, sender = self._socket.recvfrom(512)
        except OSError:
            return
        self.asked += 1
        data = self.answer(query)
        if data is not None:
            self._socket.sendto(data, sender)

    def close(self):
        self._socket.close()


class World:
    """A client of a broker's name, a name server, and a clock that only the test and the port advance."""

    def __init__(self, answer, host="broker.example", by_name=True):
        self.ticks, self.clock = fakes.clock()
        sys.modules["app.names"] = names  # a test of another file may have loaded it anew, with another port
        self.server = _Server(answer)
        self.wifi = self
        self.connected = True
        self.port = _Port(self.ticks)
        self._plain = _LOOKS_UP.getaddrinfo
        _LOOKS_UP.getaddrinfo = self.port.getaddrinfo
        transport.good_addresses.clear()
        transports = {"mqtt": ByName(self)} if by_name else None
        self.errors = []
        self.client = Client(
            b"pump-7", "mqtt://%s:1" % host, transports=transports, ticks=self.ticks.ticks_ms, random=lambda n: 0,
            on_error=self.errors.append,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _LOOKS_UP.getaddrinfo = self._plain
        transport.good_addresses.clear()
        self.client.disconnect()
        self.client.tick()
        self.server.close()

    def name_servers(self):
        return ("127.0.0.1",)

    def readings(self):
        """Return how many readings, due once a second, the loop takes in spite of its waits."""
        taken = last = 0
        while self.clock.uptime_ms() <= _SECONDS * 1000:
            self.server.serve()
            self.client.tick()
            now = self.clock.uptime_ms()
            if now - last >= 1000:
                taken += 1
                last = now
            self.ticks.advance(50)
        return taken


def _response(query, records, flags=b"\x81\x80"):
    """Return an answer to a query. records: (type, data)."""
    data = query[:2] + flags + b"\0\1" + bytes([0, len(records), 0, 0, 0, 0]) + query[12:]
    for kind, content in records:
        data += b"\xc0\x0c" + bytes([0, kind, 0, 1, 0, 0, 0, 60, 0, len(content)]) + content
    return data


def _silent(query):
    return None


def test_a_silent_dns_server_costs_no_reading():
    """Planted: the port looks up the name; the stub of the port does not block."""
    with World(_silent) as world:
        world.client.random = lambda n: n // 2
        equal((world.readings(), world.port.asked), (_SECONDS, 0))
        assert world.server.asked >= 3 and world.errors, (world.server.asked, world.errors)
    with World(_silent, by_name=False) as world:
        taken = world.readings()
        assert taken < _SECONDS // 2, taken
        print("readings of %d: %d where the port looks the name up, %d where the firmware does"
              % (_SECONDS, taken, _SECONDS))


def test_a_silent_dns_server_does_not_keep_ntp_waiting_either():
    ticks, clock = fakes.clock()
    with World(_silent) as world:
        ntp = Ntp(clock, "pool.ntp.org", world, fakes.Log().report)
        import app.ntp

        plain = app.ntp.socket.getaddrinfo
        port = _Port(ticks)

        class _Socket:
            SOCK_DGRAM, AF_INET = socket.SOCK_DGRAM, socket.AF_INET
            getaddrinfo = port.getaddrinfo
            socket = socket.socket

        app.ntp.socket = _Socket
        try:
            for _ in range(_SECONDS * 10):
                ntp.step()
                ticks.advance(100)
        finally:
            app.ntp.socket = socket
        equal((port.asked, clock.uptime_ms(), plain is socket.getaddrinfo), (0, _SECONDS * 1000, True))


def _looked_up(answer):
    server = _Server(answer)
    ticks, clock = fakes.clock()
    lookup = Lookup("broker.example", ("127.0.0.1",), clock.uptime_ms)
    try:
        server.serve(expected=True)
        poller = select.poll()
        poller.register(lookup.socket, select.POLLIN)
        poller.poll(int(1000 * WAIT_LIMIT_S))
        return lookup.step()
    finally:
        lookup.close()
        server.close()


def test_the_first_address_of_an_answer_is_taken():
    address = bytes([192, 0, 2, 7])
    equal(_looked_up(lambda query: _response(query, [(1, address)])), ["192.0.2.7"])
    name = b"\1b\7example\0"
    equal(_looked_up(lambda query: _response(query, [(5, name), (28, bytes(16)), (1, address)])), ["192.0.2.7"])


def test_no_such_name_and_every_damaged_answer_are_an_error_and_no_crash():
    """Planted: an answer is read beyond its end."""
    whole = []

    def keep(query):
        whole.append(_response(query, [(5, b"\1b\7example\0"), (1, b"\1\2\3\4")]))
        return whole[0]

    _looked_up(keep)
    question = b"\6broker\7example\0" + names._TYPE_A_CLASS_IN
    for i in range(len(whole[0])):
        try:
            found = names._answer(whole[0][:i], whole[0][:2], question)
            assert found is None, (i, found)
        except OSError as error:
            equal(error.args, (-2,))
    error = raises(OSError, _looked_up, lambda query: _response(query, [], b"\x81\x83"))
    equal(error.args, (-2,))
    raises(OSError, _looked_up, lambda query: _response(query, []))


def test_an_answer_to_another_question_is_none():
    """Planted: the id, or the question, is not checked."""
    for change in (
        lambda data: b"\0\0" + data[2:] if data[:2] != b"\0\0" else b"\0\1" + data[2:],
        lambda data: data.replace(b"broker", b"brokes"),
        lambda data: data[:2] + b"\1" + data[3:],
        lambda data: b"",
        lambda data: data[:11],
    ):
        equal(_looked_up(lambda query, change=change: change(_response(query, [(1, b"\1\2\3\4")]))), None)


def test_the_address_is_connected_to_and_tried_first_the_next_time():
    """Planted: the code that connects looks up the name once more."""
    with World(lambda query: _response(query, [(1, bytes([127, 0, 0, 1]))])) as world:
        for _ in range(200):
            world.server.serve()
            world.client.tick()
            world.ticks.advance(10)
            if world.errors:
                break
        # Nobody listens at port 1: the connection was attempted and refused.
        assert world.errors and world.errors[0].args[0] != -2, world.errors
        equal(world.port.asked, 0)


def test_each_address_of_a_broker_is_tried():
    # Planted: the first address of each answer is.
    tried = set()

    def connect(host, port, path):
        tried.add(str(transport.good_addresses[host, port][0][-1]))
        return names.TCP(host, port)  # nobody listens there

    with World(lambda query: _response(query, [(1, bytes([127, 0, 0, 1])), (1, bytes([127, 0, 0, 2]))])) as world:
        world.client.servers[0] = (ByName(world, connect),) + world.client.servers[0][1:]
        for _ in range(200):
            world.server.serve()
            world.client.tick()
            world.ticks.advance(50)
        equal((len(tried), world.port.asked), (2, 0), tried)


def test_a_name_that_dns_cannot_have_is_an_error_of_the_network():
    """Planted: the name is encoded as it is; its ValueError ends the application."""
    for host in ("a" * 64 + ".example", "a" * 300 + ".example", "broker..example"):
        with World(_silent, host) as world:
            for _ in range(10):
                world.client.tick()
                world.ticks.advance(1000)
            assert world.errors and world.errors[0].args == (-2,), (host, world.errors)


def test_the_server_of_an_update_is_looked_up_by_the_firmware_too():
    """Planted: only brokers are."""
    with World(lambda query: _response(query, [(1, bytes([127, 0, 0, 1]))])) as world:
        http = Http("http://updates.example:1/", {}, world)
        http.open("0" * 64, 0)
        equal(http.read(bytearray(9)), None)
        world.server.serve(expected=True)
        for _ in range(200):
            try:
                http.read(bytearray(9))
            except OSError as error:  # nobody listens there
                assert error.args[0] != -2, error
                break
            world.ticks.advance(10)
        http.end()
        equal((world.server.asked, world.port.asked), (1, 0))


def test_what_is_no_name_is_left_to_the_port():
    for host, asked in (("broker.example", True), ("192.0.2.1", False), ("broker.local", False), ("broker", False),
                        ("::1", False)):  # fmt: skip
        equal(is_name(host), asked, host)


def _address_after(answers):
    """Return what a look-up at servers finds that answer so, each on an address of its own; None: it is silent."""
    ticks, clock = fakes.clock()
    servers = []
    for i in range(len(answers)):
        servers.append(_Server(answers[i], "127.0.0.%d" % (i + 1)))
    lookup = Lookup("broker.example", ["127.0.0.%d" % (i + 1) for i in range(len(answers))], clock.uptime_ms)
    try:
        for _ in range(200):
            answered = 0
            for server in servers:
                asked = server.asked
                server.serve()
                answered += server.asked - asked if server.answer is not _silent else 0
            if answered:
                poller = select.poll()
                poller.register(lookup.socket, select.POLLIN)
                poller.poll(int(1000 * WAIT_LIMIT_S))
            found = lookup.step()
            if found:
                return found
            ticks.advance(100)
    finally:
        lookup.close()
        for server in servers:
            server.close()
    return None


def _right(query):
    return _response(query, [(1, b"\1\2\3\4")])


def test_a_server_that_is_down_fails_or_refuses_is_followed_by_the_next():
    # Planted: only the first server is asked; a failure of the server is taken for an unknown name.
    equal(_address_after([_right]), ["1.2.3.4"])
    for flags in (b"\x81\x82", b"\x81\x85", b"\x81\x84"):
        equal(_address_after([lambda query, flags=flags: _response(query, [], flags), _right]), ["1.2.3.4"])
    equal(_address_after([_silent, _right]), ["1.2.3.4"])
    equal(raises(OSError, _address_after, [_silent, _silent]).args, (-2,))


def test_a_name_in_other_case_is_the_same_name():
    equal(_looked_up(lambda query: _right(query[:12] + query[12:].replace(b"broker", b"bROKEr"))), ["1.2.3.4"])


def test_after_many_failures_the_port_looks_the_name_up():
    # Planted: it never does; it does so at every attempt.
    equal([n for n in range(100) if names.is_ports_turn(n)], [8, 16, 32, 64])
    with World(_silent) as world:
        world.readings()
        equal(world.port.asked, 2)


def test_two_name_servers_of_a_network_are_its_dns_server_and_its_gateway():
    from app.wifi import Wifi

    class Wlan:
        found = ("192.168.1.9", "255.255.255.0", "192.168.1.1", "192.168.1.2")

        def ifconfig(self):
            return self.found

        def isconnected(self):
            return True

    wifi = Wifi(None, {"wifi": []}, {}, fakes.Log().report)
    wifi._wlan = Wlan()
    equal(wifi.connected, True)
    equal(wifi.name_servers(), ("192.168.1.2", "192.168.1.1"))
    Wlan.found = Wlan.found[:2] + ("192.168.1.1", "192.168.1.1")
    equal(wifi.name_servers(), ("192.168.1.1",))
    Wlan.found = Wlan.found[:2] + ("0.0.0.0", "0.0.0.0")
    equal(wifi.name_servers(), ())
