"""The client's interface for programs: arguments, URLs, tokens, callbacks."""

from umqtt_testkit.portable import equal, raises

from umqtt_robust import Client, Will
from umqtt_robust.errors import InvalidArgument, OutboxFull
from umqtt_robust.policy import DROP_NEWEST
from umqtt_robust.servers import parse_url
from umqtt_robust.store import MemoryStore


def offline(**options):
    return Client(b"c", "mqtt://127.0.0.1:1", **options)


def test_urls():
    equal(parse_url("mqtt://a.example"), ("mqtt", "a.example", 1883, "/"))
    equal(parse_url("mqtts://a.example"), ("mqtts", "a.example", 8883, "/"))
    equal(parse_url("mqtt://10.0.0.1:2000/"), ("mqtt", "10.0.0.1", 2000, "/"))
    equal(parse_url("wss://a/mqtt"), ("wss", "a", 443, "/mqtt"))
    equal(parse_url("mqtt://[::1]:99"), ("mqtt", "::1", 99, "/"))
    equal(parse_url("mqtt://[::1]"), ("mqtt", "::1", 1883, "/"))
    equal(parse_url("http://[fd77::1]:8000/releases/"), ("http", "fd77::1", 8000, "/releases/"))
    equal(parse_url("https://a/"), ("https", "a", 443, "/"))
    for url in (
        "",
        "a.example",
        "ftp://a",
        "mqtt://a:\xb2",
        "mqtt://",
        "mqtt://:1883",
        "mqtt://a:0",
        "mqtt://a:65536",
        "mqtt://a:x",
        "mqtt://user:word@a",
        "mqtt://[::1",
        "mqtt://[::1]x",
    ):
        raises(InvalidArgument, parse_url, url)


def test_servers_that_differ_in_their_path_are_different_brokers():
    # The store records which broker's packet ids it holds.
    urls = ("ws://h/a", "ws://h/b", "ws://h", "ws://h/")
    servers = Client(b"c", urls, transports={"ws": lambda host, port, path: None}).servers
    equal([name for _, _, name in servers], ["h:80/a", "h:80/b", "h:80", "h:80"])


def test_a_bool_is_no_qos():
    # Planted: True is 1. mqtt_as has publish(topic, payload, retain, qos), which became a retained message at QoS 0.
    client = Client(b"c", "mqtt://h", transports={"mqtt": None})
    for call in (
        lambda: client.publish("t", b"x", False, 1),
        lambda: client.publish("t", b"x", True, 1),
        lambda: client.publish("t", b"x", False),
        lambda: client.subscribe("t", True),
        lambda: Will("t", b"x", False, 1),
    ):
        raises(InvalidArgument, call)
    equal((client.pending, client.discarded, client.subscriptions.filters), (0, 0, {}))


def test_an_option_of_other_clients_is_answered_with_its_name_here():
    # Planted: the error names only what is wrong.
    for wrong, meant in (("keepalive", "keep_alive"), ("user", "username"), ("clean", "clean_session"), ("x", None)):
        error = raises(InvalidArgument, lambda wrong=wrong: Client(b"c", "mqtt://h", **{wrong: 60}))
        equal("did you mean" in error.args[0], meant is not None)
        assert wrong in error.args[0] and (meant or wrong) in error.args[0], error


def test_bad_arguments_are_refused_at_the_call():
    for options in (
        {"keep_alive": -1},
        {"keep_alive": 65536},
        {"keep_alive": "60"},
        {"password": "x"},
        {"keep_alive": 10, "ping_after": 10001},
        {"username": 7},
        {"username": "u", "password": 7},
        {"username": "u", "password": bytes(65536)},
        {"window": 0},
        {"window": "8"},
        {"ack_timeout": "x"},
        {"ping_after": "x"},
        {"policy": "x"},
        {"rx_size": "x"},
        {"tx_size": 10.5},
        {"handler_retries": -1},
        {"will": ("t", b"p", 0, False)},
        {"will": (7, b"p", 0, False, None)},
        {"will": "t"},
        {"will": ""},
        {"will": {}},
        {"will": 0},
        {"store": 5},
        {"store": "outbox"},
        {"store": MemoryStore},
        {"store": ""},
        {"store": {}},
        {"store": 0},
        {"store": False},
    ):
        raises(InvalidArgument, offline, **options)
    raises(InvalidArgument, Client, b"", "mqtt://a", clean_session=False)
    for servers in ((), None, 7, b"mqtt://a", ("mqtt://a", 7)):
        raises(InvalidArgument, Client, b"c", servers)
    raises(InvalidArgument, Client, b"c", "mqtts://a")
    raises(InvalidArgument, Client, b"c\0", "mqtt://a")
    raises(InvalidArgument, Client, "\ud800", "mqtt://a")


def test_a_store_that_is_false_while_it_is_empty_is_used():
    class Counted(MemoryStore):
        def __len__(self):
            return 0

    store = Counted()
    equal(offline(store=store).outbox.store is store, True)


def test_no_silent_downgrade_from_tls():
    transports = {"mqtts": lambda host, port, path: None}
    servers = ("mqtts://a", "mqtt://b")
    raises(InvalidArgument, Client, b"c", servers, transports=transports)
    raises(InvalidArgument, Client, b"c", servers, transports=5)
    Client(b"c", servers, transports=transports, allow_plain=True)


def test_bad_publishes_queue_nothing():
    client = offline()
    for arguments in (
        ("a/+", b""),
        ("", b""),
        (b"a\0", b""),
        ("x" * 65536, b""),
        (7, b""),
        ("a\ud800", b""),
        (bytearray(b"a"), b""),  # it could change after the call
        ("a", 7),
        ("a", None),
        ("a", b"", 3),
        ("a", b"", -1),
        ("a", b"", 1, False, 0),
        ("a", b"", 1, False, "x"),
        (None, b"", 1),
    ):
        raises(InvalidArgument, client.publish, *arguments)
    raises(InvalidArgument, offline().publish, None, b"", 1)
    for topic_filter in ("", "a/#/b", "a+", b"\0", "\ud800"):
        raises(InvalidArgument, client.subscribe, topic_filter)
        raises(InvalidArgument, client.on, topic_filter, print)
    raises(InvalidArgument, client.subscribe, "a", 3)
    equal(client.pending, 0)
    client.publish("a", b"", 1)
    equal(client.pending, 1)


def test_every_kind_of_payload_is_copied():
    client = offline()
    buffer = bytearray(b"buffer")
    for payload in (b"bytes", "stri\xf1g", buffer, memoryview(buffer)):
        client.publish("a", payload, 1)
    buffer[:] = b"######"
    store = client.outbox.store
    equal([store.load(slot)[1] for slot in range(4)], [b"bytes", b"stri\xc3\xb1g", b"buffer", b"buffer"])


def test_qos_0_without_a_link_is_dropped_and_counted():
    client = offline()
    equal(client.publish("a", b"x"), None)
    equal(client.discarded, 1)
    client = offline(queue_qos0=True)
    assert client.publish("a", b"x") > 0
    equal(client.pending, 1)


def test_a_full_outbox_says_so():
    client = offline(store=MemoryStore(2))
    tokens = [client.publish("a", b"x", 1) for _ in range(2)]
    raises(OutboxFull, client.publish, "a", b"x", 1)
    equal([client.is_pending(token) for token in tokens], [True, True])
    client = offline(store=MemoryStore(1), policy=DROP_NEWEST)
    client.publish("a", b"1", 1)
    equal(client.publish("a", b"2", 1), None)
    equal(client.discarded, 1)


def test_a_will_is_part_of_the_connect_packet():
    client = offline(will=Will("s", b"gone", 1, True))
    sent = []
    client.open(lambda buf, i, n: sent.append(bytes(buf[i : i + n])) or n)
    assert b"\x00\x01s\x00\x04gone" in sent[0]


class Recorder:
    """A transport that has an answer to CONNECT and records how long the client wanted to wait."""

    socket = None

    def __init__(self, host, port, path):
        self.answer = b"\x20\x02\x00\x00"
        self.written = b""
        self.waited = []

    def ready(self):
        return True

    def read(self, buf, offset):
        n = len(self.answer)
        buf[offset : offset + n] = self.answer
        self.answer = b""
        return n or None

    def write(self, buf, offset, size):
        self.written += bytes(buf[offset : offset + size])
        return size

    def wait(self, ms, writing):
        self.waited.append(ms)

    def close(self):
        pass


def test_poll_does_not_wait_before_what_was_just_asked_for():
    client = Client(b"c", "mqtt://h", transports={"mqtt": Recorder}, random=lambda n: 0)
    client.poll(0)
    transport = client.transport
    assert client.connected
    for ask, packet in (
        (lambda: client.subscribe("a"), b"\x82"),
        (lambda: client.unsubscribe("a"), b"\xa2"),
        (client.disconnect, b"\xe0\x00"),
    ):
        client.poll(7)
        transport.waited = []
        transport.written = b""
        ask()
        client.poll(5000)
        equal((transport.waited, transport.written[: len(packet)]), ([], packet))


def test_a_program_that_drives_a_session_may_pass_any_buffers():
    # Planted: the view of the first buffer is kept, and each message is the first one.
    session = offline(ticks=lambda: 0)
    got = []
    session.on_message = lambda topic, payload: got.append(payload)
    session.open(lambda buf, offset, size: size)
    session.receive(b"\x20\x02\x00\x00", 4)
    for payload in (b"one", b"two", b"six"):
        packet = b"\x30\x06\x00\x01t" + payload
        equal(session.receive(packet, len(packet)), len(packet))
    equal(got, [b"one", b"two", b"six"])
