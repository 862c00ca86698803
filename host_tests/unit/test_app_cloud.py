"""With the setting `topics` a board speaks as a cloud wants it: topics, payloads, rate, and tokens that are renewed."""

import json

from _app_fakes import Client, Log, clock, identity
from app.cloud import Cloud, token
from app.settings import SettingsError, check_secrets, check_settings, check_together
from app.status import Status
from umqtt_testkit.portable import equal, raises

_ME = "v1/devices/me/"
_TOPICS = {
    "telemetry": [_ME + "telemetry", {"ts": "{ts}", "values": "{m}"}, "{m}"],
    "status": _ME + "attributes",
    "log": [_ME + "telemetry", {"log": "{}"}],
    "reported": "{username}/{device_id}/{leaf}",
    "cmd": [_ME + "rpc/request/+", {"id": "{+}", "cmd": "{method}", "args": "{params}"}],
    "reply": [_ME + "rpc/response/{id}", "{}"],
    "desired": [_ME + "attributes", "{desired}"],
    "throttle": "ada/throttle",
}
_PUBLISH_1 = 0x32


class _Out:
    def __init__(self):
        self.sent = []
        self.room = True

    def put(self, head, payload, topic=b"", packet_id=0, properties=b""):
        if self.room:
            self.sent.append((topic, payload))
        return self.room


class _Client(Client):
    closed = False

    def __init__(self):
        Client.__init__(self)
        self.out = _Out()
        self.timers = []
        self.handlers = {}
        self.calls = []
        self.password = None

    def on(self, topic_filter, handler):
        self.handlers[topic_filter] = handler

    def subscribe(self, topic_filter, qos=0):
        self.calls.append((topic_filter, qos))

    def open(self, write, broker="", accepted=None):
        self.calls.append("open")

    def connect(self):
        self.closed = False
        self.calls.append("connect")

    def disconnect(self):
        self.closed = True
        self.connected = False
        self.calls.append("disconnect")


class _Commands:
    def __init__(self):
        self.got = []

    def handle(self, topic, payload):
        self.got.append((topic, json.loads(payload)))


class _Board:
    def __init__(self, topics, per_minute=0):
        self.ticks, self.clock = clock(lambda: 1_795_000_000_000)
        self.identity = identity()
        self.status = Status(self.identity, "0.1.0")
        self.settings = {"topics": topics, "per_minute": per_minute}
        self.commands = _Commands()
        self.log = Log()


def _attached(topics=_TOPICS, login=None, per_minute=0):
    board = _Board(topics, per_minute)
    cloud = Cloud(board, login or {"username": "ada", "password": "x"})
    client = _Client()
    cloud.attach(client)
    return board, cloud, client


def _send(client, leaf, values, head=_PUBLISH_1):
    return client.out.put(head, json.dumps(values).encode(), b"fleet/pump-7/" + leaf, 7)


def test_what_goes_out_has_the_topic_and_the_payload_of_the_cloud():
    """Planted: a reading without a time has ts null; a message of another kind than PUBLISH is changed."""
    board, cloud, client = _attached()
    record = {"v": 1, "id": "pump-7", "boot": "17-9f", "seq": 3, "ts": 5, "up": 1, "m": {"temp_c": 21.4}}
    assert _send(client, b"telemetry", record)
    record["ts"] = None
    assert _send(client, b"telemetry", record)
    assert _send(client, b"log", {"text": "x"})
    assert _send(client, b"reply", {"id": "4@17-9f", "ok": True})
    assert _send(client, b"reported", {"settings": {}})
    sent = [(topic.decode(), json.loads(payload)) for topic, payload in client.out.sent]
    equal(
        sent,
        [
            (_ME + "telemetry", {"ts": 5, "values": {"temp_c": 21.4}}),
            (_ME + "telemetry", {"temp_c": 21.4}),
            (_ME + "telemetry", {"log": {"text": "x"}}),
            (_ME + "rpc/response/4", {"id": "4@17-9f", "ok": True}),
            ("ada/pump-7/reported", {"settings": {}}),
        ],
    )
    assert client.out.put(0x82, b"SUBSCRIBE")
    equal(client.out.sent[-1], (b"", b"SUBSCRIBE"))
    # At QoS 0, what the cloud has no topic for is dropped.
    assert _send(client, b"update/want", {}, head=0x30)
    equal(len(client.out.sent), 6)
    client.out.room = False
    assert not _send(client, b"telemetry", record)
    equal(cloud.will[0], b"v1/devices/me/attributes")
    equal(json.loads(cloud.will[1])["online"], False)
    equal(cloud.options, {"username": "ada", "password": "x"})


def test_a_text_is_the_topic_of_every_leaf():
    board, _, client = _attached("site/{device_id}/{leaf}")
    client.out.put(_PUBLISH_1, b"\xa1", b"fleet/pump-7/telemetry", 7)
    equal(client.out.sent, [(b"site/pump-7/telemetry", b"\xa1")])
    client.subscribe(b"fleet/pump-7/cmd", 1)
    client.handlers[b"site/pump-7/cmd"](b"site/pump-7/cmd", b"{}")
    equal(board.commands.got, [(b"fleet/pump-7/cmd", {})])


def test_what_comes_in_is_a_command_whose_id_the_boot_knows_once():
    """Planted: the id of a request is the number that the cloud counts anew after its restart."""
    board, _, client = _attached()
    for leaf in (b"cmd", b"desired"):
        client.subscribe(b"fleet/pump-7/" + leaf, 1)
    equal(client.calls, [(b"ada/throttle", 1), (b"v1/devices/me/rpc/request/+", 1), (b"v1/devices/me/attributes", 1)])
    receive = client.handlers[b"v1/devices/me/rpc/request/+"]
    receive(b"v1/devices/me/rpc/request/4", b'{"method":"ping","params":{}}')
    receive(b"v1/devices/me/attributes", b'{"desired":{"id":"8","cmd":"set"}}')
    receive(b"v1/devices/me/attributes", b'{"colour":"red"}')
    boot = board.identity.boot
    equal(
        board.commands.got,
        [
            (b"fleet/pump-7/cmd", {"id": "4@" + boot, "cmd": "ping", "args": {}}),
            (b"fleet/pump-7/desired", {"id": "8", "cmd": "set"}),
        ],
    )


def test_no_minute_has_more_data_points_than_the_cloud_takes():
    """Planted: a reading counts as one; the boot before is forgotten; a throttle notice changes nothing."""
    board, _, client = _attached(per_minute=10)
    record = {"ts": 5, "m": {"a": 1, "b": 2}}
    sent = []
    for second in range(300):
        if _send(client, b"telemetry", record):
            sent.append(second)
        board.ticks.advance(1000)
    equal(sent[:3], [0, 1, 61])  # half of a minute's is taken to be sent before the boot
    for first in range(300):
        assert 2 * len([one for one in sent if first <= one < first + 60]) <= 10
    assert len(sent) > 20
    board.ticks.advance(120_000)
    client.handlers[b"ada/throttle"](b"ada/throttle", b"wait 60 seconds")
    equal(board.log.records, [("warning", "the cloud says on throttle: wait 60 seconds", None)])
    client.handlers[b"ada/throttle"](b"ada/throttle", b"x" + "\u00b0".encode() * 150)  # cut within a character
    assert board.log.records[-1][1].startswith("the cloud says on throttle: b'x"), board.log.records[-1]
    board.ticks.advance(59_000)
    assert not _send(client, b"telemetry", record)
    board.ticks.advance(3_000)
    assert _send(client, b"telemetry", record)


def test_each_link_has_a_new_token_and_the_next_one_comes_before_it_ends():
    """Planted: the token of the first link is used for ever; the link is not renewed."""
    login = {"username": "hub/{device_id}/?api-version=2021-04-12", "sas_key": "c2VjcmV0IGtleSBvZiBwdW1wLTc="}
    board, cloud, client = _attached(login=login)
    equal(cloud.options, {"username": "hub/pump-7/?api-version=2021-04-12"})
    client.connected = False
    client.open(None)
    first = client.password
    # Computed with the hmac of CPython.
    equal(first, token("hub", "pump-7", login["sas_key"], 1_795_003_600))
    signature = b"&sig=5rPzGuNoGxja4MkHHvutizGOnGPLLbYkeFmx3cJQVBQ%3D&se=1795003600"
    equal(first, b"SharedAccessSignature sr=hub%2Fdevices%2Fpump-7" + signature)
    client.connected = True
    for _ in range(3058):
        for timer in client.timers:
            equal(timer(), 1000)
        board.ticks.advance(1000)
    equal(client.calls[1:], ["open"])
    for _ in range(5):
        board.ticks.advance(1000)
        client.timers[0]()
    equal(client.calls[1:], ["open", "disconnect", "connect"])


def _good(**changes):
    values = {"brokers": ["mqtt://a"], "topics": _TOPICS}
    values.update(changes)
    return values


def test_topics_that_cannot_work_are_refused_by_name():
    check_settings(_good())
    check_settings(_good(topics="a/{device_id}/{leaf}", encoding="cbor"))
    for key, value, words in (
        ("topics", "a/{device_id}", "must have"),
        ("topics", {"telemetry": "a"}, "needs status, log, reply, reported"),
        ("topics", dict(_TOPICS, more="a"), "cannot have more"),
        ("topics", dict(_TOPICS, log="a/+"), "no wildcards"),
        ("topics", dict(_TOPICS, cmd=5), "cmd: must be a topic"),
        ("topics", 5, "must be null"),
        ("encoding", "cbor", "must be json"),
        ("home_assistant", True, "must be false"),
        ("per_minute", -1, "data points"),
    ):
        error = raises(SettingsError, check_settings, _good(**{key: value}))
        assert words in str(error), error
    assert "needs topics" in str(raises(SettingsError, check_settings, {"brokers": ["mqtt://a"], "per_minute": 5}))
    secrets = check_secrets({"mqtt": {"username": "a", "sas_key": "b"}})
    error = raises(SettingsError, check_together, check_settings({"brokers": ["mqtt://a"]}), secrets)
    assert "needs topics" in str(error), error
