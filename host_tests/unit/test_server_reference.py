"""A server that an MQTT 5 broker refers to is tried next, once, and over the same transport."""

from umqtt_testkit import encoder
from umqtt_testkit.encoder import connack, properties
from umqtt_testkit.portable import Clock, equal, raises

from umqtt_robust import Client
from umqtt_robust.errors import InvalidArgument, Refused

_ACCEPTED = connack(False, 0, b"\0")


def refusing(reference, code=0x9C):
    """Return a CONNACK that refers to another server."""
    return connack(False, code, properties(server_reference=reference))


class Link:
    """A transport to a broker that answers the first write, and then closes or stays silent."""

    def __init__(self, answer):
        self.socket = self
        self.answer = answer
        self.written = False

    def ready(self):
        return True

    def write(self, buf, offset, size):
        self.written = True
        return size

    def read(self, buf, offset):
        if not self.written:
            return None
        answer, self.answer = self.answer, b""
        if answer is None:
            raise OSError(104)
        buf[offset : offset + len(answer)] = answer
        return len(answer) or None

    def close(self):
        pass


class Net:
    """Brokers by (scheme, host, port); any other address refuses the connection. tried: all attempts, in order."""

    def __init__(self, answers, servers, follows=True, **options):
        self.answers = answers
        self.tried = []
        self.errors = []
        self.clock = Clock()
        transports = {scheme: self._factory(scheme) for scheme in ("mqtt", "mqtts")}
        options.setdefault("protocol", 5)
        self.client = Client(
            "c", servers, transports=transports, ticks=self.clock.ticks_ms, random=lambda n: n - 1,
            on_error=self.errors.append, on_disconnect=self.errors.append, **options
        )  # fmt: skip
        if follows:
            self.client.part("server_reference")

    def _factory(self, scheme):
        def make(host, port, path="/"):
            self.tried.append((scheme, host, port))
            answer = self.answers.get((scheme, host, port))
            if answer is None:
                raise OSError(111)
            return Link(answer)

        return make

    def attempts(self, count):
        """Run until this many attempts were made; return them, and the time of each in ms."""
        times = []
        while len(self.tried) < count:
            before = len(self.tried)
            self.client.tick()
            times += [self.clock.ticks_ms()] * (len(self.tried) - before)
            if not self.client.connected:
                self.clock.advance(500)
            elif len(self.tried) < count:
                self.client.transport.answer = encoder.disconnect(b"\x9d" + properties(server_reference=b"c.example"))
        return self.tried[:count], times


A, B, C = [("mqtts", name + ".example", 8883) for name in "abc"]


def test_the_server_that_was_named_is_tried_next_and_once():
    # Planted: the referenced server stays in the list.
    servers = ["mqtts://a.example", "mqtts://c.example"]
    net = Net({A: refusing(b"b.example x.example"), C: refusing(b"b.example:99")}, servers)
    found, times = net.attempts(6)
    equal(found, [A, B, C, ("mqtts", "b.example", 99), A, B])
    equal(times[1] - times[0], 500)  # without a wait
    equal([error.args for error in net.errors if isinstance(error, Refused)][:1],
          [("connect", 0x9C, b"", b"b.example x.example")])  # fmt: skip
    equal(len(net.client.servers), 2)


def test_two_that_name_each_other_are_no_loop():
    # Planted: a reference of the referenced server is followed too.
    net = Net({A: refusing(b"b.example"), B: refusing(b"a.example")}, "mqtts://a.example")
    found, times = net.attempts(6)
    equal(found, [A, B] * 3)
    assert times[2] - times[1] >= 1000 and times[4] - times[3] >= 1000, times


def test_a_link_that_is_sent_away_goes_to_the_server_that_was_named_and_then_back():
    # Planted: only CONNACK is checked for a reference.
    net = Net({A: _ACCEPTED, C: _ACCEPTED}, "mqtts://a.example")
    found, _ = net.attempts(4)
    equal(found, [A, C, A, C])
    equal([error.args for error in net.errors][:1], [("disconnect", 0x9D, b"", b"c.example")])


def test_the_transport_stays_the_same():
    # Planted: the scheme in the reference is used.
    for reference in (b"mqtt://b.example", b"b.example/path", b"u:p@b.example"):
        net = Net({A: refusing(reference), C: _ACCEPTED}, ["mqtts://a.example", "mqtts://c.example"])
        equal(net.attempts(2)[0], [A, C])
    net = Net({("mqtt", "a.example", 1883): refusing(b"[fe80::1]:8883")}, "mqtt://a.example")
    equal(net.attempts(2)[0][1], ("mqtt", "fe80::1", 8883))
    net = Net({("mqtt", "a.example", 77): refusing(b"[fe80::1]")}, "mqtt://a.example:77")
    equal(net.attempts(2)[0][1], ("mqtt", "fe80::1", 77))


def test_what_is_no_server_is_left_alone():
    # Planted: any text is looked up as a name.
    for reference in (b"", b" ", b"\xff", b"a\0b", b"x" * 64, b"a..b", b".a", b"a.", b"a:0", b"a:65536", b"a:b",
                      b"[::1", b"\xc3\xa4.example", b"a:\xc2\xb2", b"a;b"):  # fmt: skip
        net = Net({A: refusing(reference)}, ["mqtts://a.example", "mqtts://c.example"])
        equal(net.attempts(2)[0], [A, C], reference)


def test_only_the_two_reason_codes_mean_another_server_and_only_the_part_follows():
    # Planted: every refusal with a reference is followed.
    servers = ["mqtts://a.example", "mqtts://c.example"]
    equal(Net({A: refusing(b"b.example", 0x97)}, servers).attempts(2)[0], [A, C])
    equal(Net({A: refusing(b"b.example", 0x9D)}, servers).attempts(2)[0], [A, B])
    equal(Net({A: refusing(b"b.example")}, servers, follows=False).attempts(2)[0], [A, C])
    equal(Net({A: connack(False, 0x9C, b"\0")}, servers).attempts(2)[0], [A, C])
    raises(InvalidArgument, Client("c", "mqtt://h").part, "server_reference")
