"""The time server is asked without blocking, disbelieved if its answer is doubtful, and asked again, but rarely."""

import os
import select
import socket
import time

import _app_fakes as fakes
from app.ntp import Ntp
from app.ntp_answer import set_calendar
from umqtt_testkit.portable import WAIT_LIMIT_S, equal, raises

_NOW = 1795000000123
_ERA_SECONDS = 1 << 32
_NTP_OFFSET = 2208988800


def _arrives(sock):
    """Wait for a datagram: on a busy machine even loopback takes time."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    assert poller.poll(int(1000 * WAIT_LIMIT_S)), "nothing came"


class _Server:
    """An SNTP server in the same process; serve() answers requests as the test has set it up.

    coming: datagrams on their way to the client.
    """

    def __init__(self):
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.port = self._bind()
        self.unix_ms = _NOW
        self.asked = self.coming = 0
        self.silent = False
        # Fields of the answer that a test can change: first byte, stratum, reference identifier, transmit timestamp.
        self.head = 0x24
        self.stratum = 2
        self.reference = b"GPS\0"
        self.transmit = None
        self.before = b""

    def _bind(self):
        if hasattr(self._socket, "getsockname"):
            self._socket.bind(("127.0.0.1", 0))
            return self._socket.getsockname()[1]
        # MicroPython cannot report which port it was given.
        while True:
            port = 20000 + int.from_bytes(os.urandom(2), "big") % 30000
            try:
                self._socket.bind(socket.getaddrinfo("127.0.0.1", port, 0, socket.SOCK_DGRAM)[0][-1])
            except OSError:
                continue
            return port

    def serve(self, requests):
        """Answer until all requests are answered. requests: how many were made so far."""
        while self.asked < requests:
            _arrives(self._socket)
            request, sender = self._socket.recvfrom(128)
            self.asked += 1
            equal((len(request), request[0]), (48, 0x23))
            if self.silent:
                continue
            if self.before:
                self._socket.sendto(self.before, sender)
                self.coming += 1
            self._socket.sendto(self._answer(request), sender)
            self.coming += 1

    def _answer(self, request):
        transmit = self.transmit
        if transmit is None:
            seconds, ms = self.unix_ms // 1000, self.unix_ms % 1000
            # Rounded up, because the client rounds down.
            fraction = (ms * _ERA_SECONDS + 999) // 1000
            transmit = ((seconds + _NTP_OFFSET) % _ERA_SECONDS).to_bytes(4, "big") + fraction.to_bytes(4, "big")
        head = bytes([self.head, self.stratum]) + bytes(10) + self.reference
        return head + bytes(8) + request[40:] + bytes(8) + transmit

    def close(self):
        self._socket.close()


class _Wifi:
    connected = True

    def name_servers(self):
        return ()


class _World:
    """A server, a clock that only the test advances, and the part."""

    def __init__(self, rtc=None):
        self.server = _Server()
        self.ticks, self.clock = fakes.clock()
        self.log = fakes.Log()
        self.wifi = _Wifi()
        host = "127.0.0.1:%d" % self.server.port
        self.ntp = Ntp(self.clock, host, self.wifi, self.log.report, rtc)
        self.waited = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ntp._close()
        self.server.close()

    def run(self, ms):
        """Let ms pass on both clocks; the part is called when it asked to be."""
        end = self.clock.uptime_ms() + ms
        while True:
            self.server.serve(self.ntp.requests)
            wait = min(self.step(), end - self.clock.uptime_ms())
            self.waited.append(wait)
            if wait <= 0:
                return
            self.ticks.advance(wait)
            self.server.unix_ms += wait

    def step(self):
        """Run one step of the part, after the next datagram under way has arrived."""
        if not self.ntp._socket:
            self.server.coming = 0
        if self.server.coming:
            _arrives(self.ntp._socket)
            self.server.coming -= 1
        return self.ntp.step()

    def texts(self):
        return [text[text.index(": ") + 2 :] for _, text, _ in self.log.records]


def test_an_answer_sets_the_clock_to_the_middle_of_the_way_there_and_back():
    with _World() as world:
        equal(world.clock.unix_ms(), None)
        world.run(1000)
        assert abs(world.clock.unix_ms() - world.server.unix_ms) <= 10, (world.clock.unix_ms(), world.server.unix_ms)
        equal((world.ntp.requests, world.ntp.answers), (1, 1))


def test_half_of_the_time_that_the_answer_took_is_added():
    with _World() as world:
        world.ntp.step()
        world.ticks.advance(400)
        world.server.unix_ms += 400
        world.server.serve(world.ntp.requests)
        world.ticks.advance(400)
        world.server.unix_ms += 400
        world.step()
        equal(world.clock.unix_ms(), world.server.unix_ms)


def test_a_fleet_that_came_back_together_does_not_ask_together():
    waits = set()
    for _ in range(5):
        with _World() as world:
            world.run(1000)
            waits.add(world.ntp._next_ms // 1000)
    assert len(waits) > 1 and min(waits) >= 3600 and max(waits) < 3900, waits


def test_nothing_is_asked_while_there_is_no_network():
    with _World() as world:
        world.wifi.connected = False
        world.run(60000)
        equal(world.server.asked, 0)
        world.wifi.connected = True
        world.run(1000)
        equal(world.server.asked, 1)


def test_it_is_asked_again_about_once_an_hour_and_the_drift_is_measured():
    with _World() as world:
        for _ in range(10):
            world.run(3600000)
            world.server.unix_ms += 180  # this board's clock loses 50 ppm
        assert 8 <= world.server.asked <= 10, world.server.asked
        assert 40 <= world.clock.drift_ppm <= 60, world.clock.drift_ppm
        equal([level for level, _, _ in world.log.records], ["info"])


def test_a_large_step_is_reported():
    with _World() as world:
        world.run(1000)
        world.server.unix_ms += 3600000
        world.run(4000000)
        assert "clock: set forward by 36000" in world.log.records[-1][1], world.log.records


def test_a_server_that_never_answers_is_asked_ever_less_and_reported_once():
    with _World() as world:
        world.server.silent = True
        world.run(3600000)
        # The requests are 8, 16 … 1024 s apart, and each waits 2 s.
        equal(world.server.asked, 10)
        equal(len(world.log.records), 1)
        assert max(world.waited) <= 1024000
        world.server.silent = False
        world.run(1100000)
        assert world.clock.unix_ms() is not None


def test_answers_that_must_not_be_believed_leave_the_clock_alone():
    for change, text in (
        ({"stratum": 0, "reference": b"RATE"}, "it asks not to be asked: RATE"),
        ({"stratum": 16}, "not synchronised"),
        ({"head": 0xE4}, "not synchronised"),
        ({"head": 0x23}, "mode 3"),
        ({"transmit": bytes(8)}, "without a time"),
        ({"unix_ms": 1704067199000}, "before 2024"),
        ({"unix_ms": 0}, "before 2024"),
        ({"unix_ms": 946684800000}, "before 2024"),
    ):
        with _World() as world:
            for name, value in change.items():
                setattr(world.server, name, value)
            world.run(5000)
            equal(world.clock.unix_ms(), None, repr(change))
            assert text in world.texts()[0], (change, world.texts())
            equal(world.server.asked, 1)


def test_a_kiss_of_death_silences_for_the_longest_pause():
    with _World() as world:
        world.server.stratum = 0
        world.run(1000000)
        equal(world.server.asked, 1)


def test_datagrams_that_answer_nothing_of_ours_are_left_out_and_the_right_one_counts():
    for junk in (b"x", bytes(48), b"\x24\x02" + bytes(60)):
        with _World() as world:
            world.server.before = junk
            world.run(1000)
            assert abs(world.clock.unix_ms() - world.server.unix_ms) <= 20, repr(junk)


def test_time_goes_on_when_the_seconds_of_ntp_begin_again_in_2036():
    rollover_ms = (_ERA_SECONDS - _NTP_OFFSET) * 1000
    for offset in (-86400000, -2000, -1000, -1, 0, 1, 999, 1000, 86400000, 10**12):
        with _World() as world:
            world.server.unix_ms = rollover_ms + offset
            if world.server.unix_ms % 1000 == 0 and offset == 0:
                world.server.unix_ms += 1  # all zeros would mean "no time" (RFC 5905, 6)
            world.run(1000)
            assert abs(world.clock.unix_ms() - world.server.unix_ms) <= 10, offset


def test_a_name_that_cannot_be_found_is_asked_for_ever_less():
    ticks, clock = fakes.clock()
    log = fakes.Log()
    ntp = Ntp(clock, "no-such-host.invalid", _Wifi(), log.report)
    lookups = 0
    plain = socket.getaddrinfo

    def fail(*_):
        raise OSError(-2)

    import app.ntp

    class _Socket:
        SOCK_DGRAM = socket.SOCK_DGRAM
        getaddrinfo = staticmethod(fail)

    app.ntp.socket = _Socket
    try:
        while clock.uptime_ms() < 3600000:
            lookups += 1
            ticks.advance(ntp.step())
    finally:
        app.ntp.socket = socket
    equal((lookups, len(log.records), socket.getaddrinfo is plain), (10, 1, True))


def test_an_address_is_kept_until_it_was_silent_three_times():
    import app.ntp

    asked = []

    class _Socket:
        SOCK_DGRAM = socket.SOCK_DGRAM
        socket = socket.socket

        @staticmethod
        def getaddrinfo(*arguments):
            asked.append(arguments[0])
            return socket.getaddrinfo(*arguments)

    app.ntp.socket = _Socket
    try:
        with _World() as world:
            world.run(36000000)
            equal(len(asked), 1)
            world.server.silent = True
            world.run(7200000)
            assert 2 <= len(asked) <= 1 + world.server.asked // 3, (asked, world.server.asked)
    finally:
        app.ntp.socket = socket


def test_the_boards_calendar_is_set_by_the_epoch_of_its_port():
    class _Rtc:
        def datetime(self, value):
            self.value = value

    expected = (2026, 11, 18, 2, 11, 6, 40, 0)
    calendar = time.gmtime if hasattr(time, "gmtime") else None
    zero = calendar(0)[0]
    rtc = _Rtc()
    set_calendar(rtc, calendar, 1795000000123)
    equal(rtc.value, expected)

    def other(seconds):
        # The same calendar on a port whose seconds count from the other year.
        shift = 946684800 if zero == 1970 else -946684800
        return calendar(seconds + shift)

    rtc = _Rtc()
    set_calendar(rtc, other, 1795000000123)
    equal(rtc.value, expected)


def test_a_calendar_that_cannot_be_set_does_not_matter():
    class _Rtc:
        def datetime(self, value):
            raise OSError(1)

    with _World(_Rtc()) as world:
        world.run(1000)
        assert world.clock.unix_ms() is not None
        equal([level for level, _, _ in world.log.records], ["info", "debug"])


def test_a_host_may_be_an_ipv6_address():
    _, clock = fakes.clock()
    for host, expected in (("::1", ("::1", 123)), ("a:5", ("a", 5)), ("a", ("a", 123))):
        ntp = Ntp(clock, host, _Wifi(), None)
        equal((ntp.host, ntp.port), expected)


def test_the_clock_refuses_the_past_and_tells_its_steps():
    ticks, clock = fakes.clock()
    raises(ValueError, clock.synchronised, 1704067199999)
    equal(clock.synchronised(_NOW), None)
    ticks.advance(1000)
    equal(clock.synchronised(_NOW + 1500), 500)
    equal(clock.drift_ppm, None)


def _two_addresses(fields):
    """Ask a name with two addresses for an hour; the first answers with such fields, or cannot be sent to (None).

    Returns whether the clock is set, and how often each was asked.
    """
    import app.ntp

    bad, good = _Server(), _Server()
    for name in fields or ():
        setattr(bad, name, fields[name])
    ports = (0 if fields is None else bad.port, good.port)

    class _Module:
        SOCK_DGRAM = socket.SOCK_DGRAM
        socket = socket.socket

        @staticmethod
        def getaddrinfo(*_):
            return [socket.getaddrinfo("127.0.0.1", port, 0, socket.SOCK_DGRAM)[0] for port in ports]

    ticks, clock = fakes.clock()
    ntp = Ntp(clock, "two.example", _Wifi(), fakes.Log().report)
    app.ntp.socket = _Module
    try:
        while clock.uptime_ms() < 3600000:
            before = ntp._socket
            wait = ntp.step()
            if ntp._socket and ntp._socket is not before:
                server = good if ntp.address[-1] == _Module.getaddrinfo()[1][-1] else bad
                server.serve(server.asked + 1)
                if not server.silent:
                    _arrives(ntp._socket)
            ticks.advance(wait)
    finally:
        app.ntp.socket = socket
        ntp._close()
        for server in (bad, good):
            server.close()
    return clock.unix_ms() is not None, bad.asked, good.asked


def test_a_server_of_no_use_is_left_for_the_next_address_of_its_name():
    # Planted: the first address is kept for ever.
    for fields in (
        {"stratum": 16},
        {"head": 0xE4},
        {"stratum": 0, "reference": b"RATE"},
        {"stratum": 0, "reference": b"DENY"},
        None,
    ):
        equal(_two_addresses(fields), (True, 0 if fields is None else 1, 1), repr(fields))
    equal(_two_addresses({"silent": True}), (True, 3, 1))


def test_a_server_that_denies_its_service_is_never_asked_again():
    # Planted: DENY is forgotten with the address.
    with _World() as world:
        world.server.stratum = 0
        world.server.reference = b"DENY"
        world.run(24 * 3600000)
        equal(world.server.asked, 1)
        assert "denies its service" in world.texts()[-1], world.texts()
