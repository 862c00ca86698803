# Cases of programs for umqtt.simple and umqtt.robust, on either interpreter: reads JSON {"server", "port", "case"}.
import json
import select
import sys

from umqtt_robust import robust, simple
from umqtt_robust.errors import InvalidArgument
from umqtt_robust.simple import MQTTException

config = json.loads(sys.stdin.readline())
server = config["server"]
port = config["port"]
got = []


def say(event, **more):
    more["event"] = event
    print(json.dumps(more))


def fails(error, call, *arguments):
    try:
        call(*arguments)
    except error as caught:
        return caught
    raise AssertionError("no error")


def client(kind=simple, name=b"compat", **options):
    made = kind.MQTTClient(name, server, port, **options)
    made.set_callback(lambda topic, payload: got.append((topic, payload)))
    return made


def broker():
    """Use the whole API with a broker."""
    one = client(keepalive=10, user="u", password="p")
    one.set_last_will("compat/will", b"gone", qos=1)
    assert not one.connect()
    assert one.sock is not None
    assert one.check_msg() is None
    one.subscribe("compat/#", 1)
    one.publish(b"compat/a", "str", True, 1)
    one.publish("compat/b", b"bytes", qos=2)
    one.publish("compat/c", bytearray(b"0"))
    # As with umqtt.simple, messages that come before an acknowledgement are handed over while publish() waits for it.
    while len(got) < 3:
        before = len(got)
        assert one.wait_msg() & 0xF0 == 0x30
        assert len(got) == before + 1, "one message a call, never two: a program counts on it"
    assert sorted(got) == [(b"compat/a", b"str"), (b"compat/b", b"bytes"), (b"compat/c", b"0")], got
    one.ping()
    assert one.wait_msg() is None
    one.publish("compat/large", b"l" * 9000, qos=1)
    while len(got) < 4:
        one.wait_msg()
    assert got[-1] == (b"compat/large", b"l" * 9000)
    one.unsubscribe("compat/#")
    one.publish("compat/a", b"", True, 1)
    assert one.check_msg() is None and len(got) == 4
    one.disconnect()
    fails(OSError, one.publish, "a", "b")
    fails(OSError, one.check_msg)
    fails(OSError, one.wait_msg)
    # In a session that the broker keeps, messages queued meanwhile arrive, and the program learns of the session.
    one = client(name=b"keeper")
    assert not one.connect(clean_session=False)
    one.subscribe("kept", 1)
    one.disconnect()
    other = client(name=b"other")
    other.connect()
    other.publish("kept", b"while away", qos=1)
    assert one.connect(clean_session=False)
    one.wait_msg()
    assert got[-1] == (b"kept", b"while away")
    one.connect(clean_session=True)
    one.disconnect()
    other.disconnect()


def selected():
    """Wait for `sock` and then call check_msg(): messages that it leaves behind are still in `sock`."""
    one = client()
    one.connect()
    one.subscribe("compat/many")
    other = client(name=b"other")
    other.connect()
    for i in range(10):
        other.publish("compat/many", b"%d" % i)
    other.publish("compat/end", b"", qos=1)
    poller = select.poll()
    poller.register(one.sock, select.POLLIN)
    while len(got) < 10:
        assert poller.poll(int(config["limit_s"] * 1000)), got
        one.check_msg()
    assert got == [(b"compat/many", b"%d" % i) for i in range(10)]
    one.disconnect()


def secure():
    """Accept the program's SSLContext, as umqtt.simple does, but never one that does not verify."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if hasattr(context, "check_hostname"):
        context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    fails(InvalidArgument, simple.MQTTClient("c", "localhost", port, ssl=context).connect)
    context.verify_mode = ssl.CERT_REQUIRED
    if hasattr(context, "check_hostname"):
        context.check_hostname = True
        context.load_verify_locations(config["ca"])
    else:
        with open(config["der"], "rb") as file:
            context.load_verify_locations(cadata=file.read())
    for way in ({"ssl": context}, {"ssl": True, "ssl_params": {"cadata": config["ca"]}}, {"ssl": 1, "ssl_params": {
            "cadata": config["ca"]}}):  # fmt: skip
        one = simple.MQTTClient("c", "localhost", port, **way)
        one.set_callback(lambda topic, payload: got.append(payload))
        one.connect()
        one.subscribe("compat/tls")
        one.publish("compat/tls", b"over TLS")
        one.wait_msg()
        one.disconnect()
    assert got == [b"over TLS"] * 3, got
    fails(OSError, simple.MQTTClient("c", "127.0.0.1", port, ssl=context).connect)  # another name


def refused():
    assert fails(MQTTException, client().connect).args == (5,)
    one = client()
    one.connect()
    assert fails(MQTTException, one.subscribe, "a").args == (0x80,)
    one.publish("still", b"here", qos=1)
    one.disconnect()


def robust_goes_on():
    class Robust(robust.MQTTClient):
        DELAY = 0
        DEBUG = True
        connects = 0

        def connect(self, clean_session=True):
            self.connects += 1
            return super().connect(clean_session)

        def log(self, in_reconnect, e):
            assert isinstance(e, OSError) and in_reconnect in (True, False)

    class Here:
        MQTTClient = Robust

    one = client(Here)
    one.connect()
    one.publish("a", b"1", qos=1)
    one.wait_msg()
    while one.connects < 4:  # it may take time for the end of the link to arrive
        one.check_msg()
    assert got == [(b"m", b"n")], got
    one.disconnect()


def sock_of_a_lost_link():
    """Close `sock` in the handler of an error, and connect again."""
    one = client()
    for _ in range(2):
        one.connect()
        fails(OSError, one.publish, "a", b"b", False, 1)
        one.sock.close()
    one.connect()
    one.publish("a", b"again", qos=1)
    one.disconnect()
    one.sock.close()


def silent():
    """Learn from errno that the server is silent."""
    import errno

    assert fails(OSError, client().connect, True, 0.3).errno == errno.ETIMEDOUT
    one = client(keepalive=1)
    one.connect()
    assert fails(OSError, one.publish, "a", b"b", False, 1).errno == errno.ETIMEDOUT


def callbacks():
    """The callback runs in calls that read: not in a publish() at QoS 0, in ping() or in disconnect()."""
    one = client()
    one.connect()
    one.subscribe("compat/calls")
    other = client(name=b"other")
    other.connect()
    poller = select.poll()
    poller.register(one.sock, select.POLLIN)
    for call in (
        lambda: one.publish("compat/other", b"x", True),
        one.ping,
        lambda: one.publish("compat/o", bytes(9000)),
    ):
        other.publish("compat/calls", b"here", qos=1)
        assert poller.poll(int(config["limit_s"] * 1000))
        call()
        call()
        assert got == [], got
        while not got:
            one.check_msg()
        got.clear()
        while one.check_msg():
            pass
    other.publish("compat/calls", b"here", qos=1)
    assert poller.poll(int(config["limit_s"] * 1000))
    one.disconnect()
    assert got == [], got
    other.publish("compat/other", b"", True, 1)
    other.disconnect()


def overridden():
    """Override wait_msg(), which check_msg() calls; read a packet by hand, with _recv_len()."""

    class Counting(simple.MQTTClient):
        calls = 0

        def wait_msg(self):
            self.calls += 1
            return super().wait_msg()

    class ByHand(simple.MQTTClient):
        def wait_msg(self):
            read = getattr(self.sock, "read", None) or self.sock.recv
            self.sock.setblocking(True)
            assert read(1) == b"\x30"
            size = self._recv_len()
            body = b""
            while len(body) < size:
                body += read(size - len(body))
            k = 2 + body[1]
            self.cb(body[2:k], body[k:])
            return 0x30

    class Here:
        MQTTClient = Counting

    one = client(Here)
    one.connect()
    one.subscribe("compat/sub")
    one.check_msg()
    one.publish("compat/sub", b"x")
    one.wait_msg()
    assert one.calls == 2 and len(got) == 1
    one.disconnect()
    Here.MQTTClient = ByHand
    one = client(Here)
    one.connect()
    one.subscribe("compat/sub")
    for size in (10, 300):
        one.publish("compat/sub", bytes(size))
        assert one.check_msg() == 0x30
        assert got[-1] == (b"compat/sub", bytes(size))
    one.disconnect()


def robust2():
    """The loop of umqtt.robust2's example."""
    one = client(robust)
    one.DELAY = 0
    assert one.is_conn_issue()
    one.connect(clean_session=True)
    assert not one.is_conn_issue()
    one.subscribe("compat/two")
    one.sock.close()
    turns = 0
    while len(got) < 3:
        while one.is_conn_issue():
            one.reconnect()
        one.resubscribe()
        one.publish("compat/two", b"%d" % turns, qos=1)
        turns += 1
        one.check_msg()
        one.send_queue()
    assert got[-1][0] == b"compat/two"
    one.disconnect()


def no_authority():
    """Without a CA's certificate there is no TLS; the error is one that such programs catch, and says what to do."""
    for parameters in ({}, {"server_hostname": "localhost"}):
        error = fails(OSError, simple.MQTTClient("c", server, port, ssl=True, ssl_params=parameters).connect)
        assert "cadata" in str(error)


globals()[config["case"]]()
say("done")
