"""The brokers that play clouds refuse what breaks each of their rules, and take what keeps all of them."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from broker_here import broker_here
from umqtt_broker.cli.authority import Authority
from umqtt_testkit import encoder
from umqtt_testkit.cloud_broker import LOGINS, CloudBroker
from umqtt_testkit.cloud_rules import CLOUDS, RULES, SOURCES, sas_token
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from umqtt_robust import Client

_ID = "pump-7"
_HUB, _KEY = LOGINS["azure"]
_PORT: list[int] = []  # of the one broker behind the clouds of this file
_TELEMETRY = {
    "aws": f"fleet/{_ID}/telemetry",
    "azure": f"devices/{_ID}/messages/events/leaf=telemetry",
    "thingsboard": "v1/devices/me/telemetry",
    "adafruitio": "ada/groups/pump-7",
    "hivemq": f"fleet/{_ID}/telemetry",
    "emqx": f"fleet/{_ID}/telemetry",
}
_COMMANDS = {
    "aws": f"fleet/{_ID}/cmd",
    "azure": f"devices/{_ID}/messages/devicebound/#",
    "thingsboard": "v1/devices/me/rpc/request/+",
    "adafruitio": "ada/feeds/pump-7.cmd",
    "hivemq": f"fleet/{_ID}/cmd",
    "emqx": f"fleet/{_ID}/cmd",
}


@pytest.fixture(scope="module", autouse=True)
def _upstream() -> Iterator[None]:
    with broker_here() as port:
        _PORT.append(port)
        yield


def _cloud(name: str, **options) -> CloudBroker:
    return CloudBroker(name, upstream=_PORT[0], **options)


def _login(cloud: str, **changes) -> dict:
    """Return the user name and password that a cloud wants."""
    user, secret = LOGINS.get(cloud, (None, None))
    if cloud == "aws":
        login = {}
    elif cloud == "azure":
        token = sas_token(f"{_HUB}/devices/{_ID}", _KEY, int(time.time()) + 3600)
        login = {"user_name": f"{_HUB}/{_ID}/?api-version=2021-04-12".encode(), "password": token.encode()}
    elif cloud == "thingsboard":
        login = {"user_name": secret.encode()}
    else:
        login = {"user_name": user.encode(), "password": secret.encode()}
    return login | changes


def _connect(cloud: str, client_id: bytes = _ID.encode(), **changes) -> bytes:
    return encoder.connect(client_id, **_login(cloud, **changes))


def _publish(cloud: str, payload: bytes = b'{"temp_c":21.4}', qos: int = 1, topic: str | None = None) -> bytes:
    return encoder.publish((topic or _TELEMETRY[cloud]).encode(), payload, qos, 7)


def _subscribe(*topic_filters: str, qos: int = 1) -> bytes:
    return encoder.subscribe(9, *((one.encode(), qos) for one in topic_filters))


@contextmanager
def _link(cloud: CloudBroker) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", cloud.port), WAIT_LIMIT_S)) as link:
        yield link


def _packets(link: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Return the next packets, fewer if the link ends before."""
    data, found = b"", []
    while len(found) < count:
        try:
            chunk = link.recv(65536)
        except ConnectionResetError:
            break
        if not chunk:
            break
        found, data = (
            encoder.split_packets(data + chunk) if not found else (found + encoder.split_packets(chunk)[0], b"")
        )
    return found


_AZURE_FILTERS = ("$iothub/twin/res/#", "$iothub/methods/POST/#", "$iothub/twin/PATCH/properties/desired/#")
_EVENTS = f"devices/{_ID}/messages/events"
_LARGE = {"aws": 128, "azure": 256, "thingsboard": 64, "emqx": 1024}
# cloud, words of the rule, packets, the last of which is refused. CONNECT goes before, if it is not there.
_BAD = [
    ("azure", "MQTT 3.1.1", [_connect("azure", level=5, properties=b"\0")]),
    ("adafruitio", "MQTT 3.1.1", [_connect("adafruitio", level=5, properties=b"\0")]),
    ("aws", "a client id of", [_connect("aws", b"x" * 129)]),
    ("aws", "a will on", [_connect("aws", will=(b"fleet/pump-8/status", b"", 1, True))]),
    *[("aws", "QoS 2 gets no", [packet]) for packet in (_publish("aws", qos=2), _subscribe(_COMMANDS["aws"], qos=2))],
    *[(cloud, f"at most {size // 1024 or size}", [_publish(cloud, b" " * (size * 1024 + 1))])
      for cloud, size in _LARGE.items()],
    ("aws", "topics of at most", [_publish("aws", topic=f"fleet/{_ID}/a/b/c/d/e/f/g")]),
    ("aws", "topics that the policy", [_publish("aws", topic="fleet/pump-8/telemetry")]),
    ("aws", "at most 100", [_publish("aws", qos=1)] * 101),
    ("aws", "at most 8", [_subscribe(*(f"fleet/{_ID}/{n}" for n in range(9)))]),
    ("aws", "at most 50", [_subscribe(*(f"fleet/{_ID}/{n}-{m}" for m in range(8))) for n in range(7)]),
    ("aws", "filters that the policy", [_subscribe("fleet/+/cmd")]),
    ("azure", "the user name", [_connect("azure", user_name=f"{_HUB}/pump-8/?api-version=2021-04-12".encode())]),
    ("azure", "a token", [_connect("azure", password=sas_token(f"{_HUB}/devices/{_ID}", _KEY, 1).encode())]),
    ("azure", "a token", [_connect("azure", password=b"SharedAccessSignature sr=a&sig=b&se=9999999999")]),
    ("azure", "a will", [_connect("azure", will=(f"fleet/{_ID}/status".encode(), b"", 1, True))]),
    *[(cloud, "QoS 0 or 1", [_publish(cloud, qos=2)]) for cloud in ("azure", "thingsboard", "adafruitio")],
    ("azure", "devices/ID/", [_publish("azure", topic=f"fleet/{_ID}/telemetry")]),
    ("azure", "devices/ID/", [_publish("azure", topic=f"{_EVENTS}/a=b/c")]),
    ("azure", "the documented", [_subscribe(f"devices/{_ID}/messages/#")]),
    ("azure", "QoS 1 is granted", [_subscribe(_COMMANDS["azure"], qos=2)]),
    ("thingsboard", "a user name", [_connect("thingsboard", user_name=None)]),
    ("thingsboard", "the access token", [_connect("thingsboard", user_name=b"wrong")]),
    ("thingsboard", "the documented topics", [_publish("thingsboard", topic="fleet/pump-7/telemetry")]),
    ("thingsboard", "JSON", [_publish("thingsboard", b"21.4 C")]),
    ("thingsboard", "a number as ts", [_publish("thingsboard", b'{"ts":null,"values":{"temp_c":21.4}}')]),
    ("thingsboard", "the documented filters", [_subscribe("v1/devices/+/telemetry")]),
    ("adafruitio", "user name and key", [_connect("adafruitio", password=b"wrong")]),
    ("adafruitio", "feeds and groups", [_publish("adafruitio", topic="bob/feeds/pump-7")]),
    ("adafruitio", "at most 30", [_publish("adafruitio")] * 31),
    ("adafruitio", "at most 30", [_publish("adafruitio", json.dumps({"feeds": dict.fromkeys(range(31), 1)}).encode())]),
    ("adafruitio", "feeds, groups,", [_subscribe("bob/feeds/#")]),
    *[(cloud, "user name and password", [_connect(cloud, password=b"wrong")]) for cloud in ("hivemq", "emqx")],
    ("emqx", "a client id of", [_connect("emqx", b"x" * 1025)]),
    ("emqx", "at most 10 messages", [_publish("emqx")] * 11),
    ("emqx", "at most 10 subscriptions", [_subscribe(*(f"{n}" for n in range(11)))]),
    ("emqx", "filters of", [_subscribe("1/2/3/4/5/6/7/8/9/10/11")]),
]  # fmt: skip
_ANSWERS = {"silent": b"", "refuse": b"\x90", "grant 1": b"\x90", "throttle": b"\x40", "wait": b"\x40", "close": b""}
_ANSWERS |= {"as 1": b"\x40", "lose": b"\x40", "reject": b""}


# Not the packets: some have a token of this moment, and workers have to agree on the names of tests.
@pytest.mark.parametrize(("name", "words", "packets"), _BAD, ids=[f"{name}-{words}" for name, words, _ in _BAD])
def test_what_breaks_a_rule_is_refused_as_the_row_says(name, words, packets):
    """Planted: a broken rule is noted and the packet passed on."""
    with _cloud(name) as cloud, _link(cloud) as link:
        if packets[0][0] >> 4 != encoder.CONNECT:
            link.sendall(_connect(name))
            assert _packets(link, 1) == [(0x20, b"\0\0")]
        taken = len(packets) - 1
        link.sendall(b"".join(packets))
        eventually(lambda: cloud.refusals)
        rule, who = cloud.refusals[0]
        assert words in rule.text
        if isinstance(rule.answer, int):
            [(first, body)] = _packets(link, 1)
            assert (first, body[1]) == (0x20, 0x84 if b"MQTT\5" in packets[-1] else rule.answer)
            return
        assert who == _ID
        answer = _ANSWERS[rule.answer]
        count = taken + bool(answer)
        # Those of the cloud's own may overtake those of the broker behind it.
        answered = _packets(link, count) if count else []
        assert len(answered) == count and bytes({first for first, _ in answered}) == (answer or b"\x40"[:count])
        if rule.answer in ("refuse", "grant 1"):
            assert {0x80 if rule.answer == "refuse" else 1} in [set(body[2:]) for _, body in answered]
        if rule.packet is encoder.PUBLISH:
            assert len(cloud.messages) == taken + (rule.answer in ("wait", "as 1"))


@pytest.mark.parametrize("name", CLOUDS)
def test_what_keeps_the_rules_is_taken_and_commands_arrive(name):
    """Planted: the topics of azure lack events/."""
    login = _login(name)
    got: set[bytes] = set()
    with _cloud(name) as cloud:
        client = Client(
            _ID, cloud.url, clean_session=False, username=login.get("user_name"), password=login.get("password"),
            on_message=lambda _topic, payload: got.add(payload),
        )  # fmt: skip
        client.subscribe(_COMMANDS[name], 1)
        client.publish(_TELEMETRY[name], b'{"temp_c":21.4}', qos=1)
        eventually(lambda: client.poll(10) is not None and client.subscribed and not client.pending)
        topic = _COMMANDS[name].replace("/#", "/").replace("+", "1")
        cloud.send(topic, b"{}")
        eventually(lambda: client.poll(10) is not None and b"{}" in got)
        # A maintenance ends every link; the session is there again.
        assert cloud.disconnect() == 1
        cloud.send(topic, b"[]")
        eventually(lambda: client.poll(10) is not None and b"[]" in got)
        # The cloud forgets who is away for too long: the client subscribes again.
        links = client.reconnects
        cloud.forget_sessions()
        eventually(lambda: client.poll(10) is not None and client.reconnects > links)
        eventually(lambda: client.poll(10) is not None and client.connected and client.subscribed)
        cloud.send(topic, b"3")
        eventually(lambda: client.poll(10) is not None and b"3" in got)
        assert [(one.topic, one.payload) for one in cloud.messages] == [(_TELEMETRY[name], b'{"temp_c":21.4}')]
        # A client that is cut off may be back within the second.
        assert {rule.text for rule, _ in cloud.refusals} <= {"one CONNECT a second for a client id"}


def test_a_token_that_ends_ends_the_link():
    """Planted: the timer of the token is not set."""
    with _cloud("azure") as cloud, _link(cloud) as link:
        token = sas_token(f"{_HUB}/devices/{_ID}", _KEY, int(time.time()) + 2)
        link.sendall(_connect("azure", password=token.encode()))
        assert _packets(link, 2) == [(0x20, b"\0\0")]


def test_too_many_connections_are_throttled_and_too_many_messages_or_wrong_topics_are_banned():
    """Planted: a ban is forgotten at once."""
    with _cloud("adafruitio") as cloud:
        for _ in range(20):
            with _link(cloud) as link:
                link.sendall(_connect("adafruitio"))
                assert _packets(link, 1) == [(0x20, b"\0\0")]
        with _link(cloud) as link:
            link.sendall(_connect("adafruitio"))
            assert _packets(link, 1) == [(0x20, b"\0\6")]
    with _cloud("adafruitio") as cloud:
        with _link(cloud) as link:
            link.sendall(_connect("adafruitio") + _subscribe("ada/throttle") + _publish("adafruitio") * 40)
            heads = [first for first, _ in _packets(link, 99)]
            assert heads.count(0x30) == 10  # notices; then the link ends
        with _link(cloud) as link:
            link.sendall(_connect("adafruitio"))
            assert _packets(link, 1) == [(0x20, b"\0\7")]
    with _cloud("adafruitio") as cloud, _link(cloud) as link:
        wrong = _publish("adafruitio", topic="fleet/pump-7/telemetry")
        link.sendall(_connect("adafruitio") + _subscribe("ada/errors") + wrong * 11)
        heads = [first for first, _ in _packets(link, 99)]
        assert heads.count(0x30) == 10 and cloud.banned_until > cloud.now()


def test_with_tls_aws_and_hivemq_want_the_name_of_their_endpoint(tmp_path):
    """Planted: a connection without SNI is let in."""
    authority = Authority(tmp_path)
    authority.create("cloud")
    authority.issue_broker(["localhost"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "broker" / "cert.pem", tmp_path / "broker" / "key.pem")
    ours = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    ours.check_hostname = False
    for name in ("aws", "hivemq"):
        with _cloud(name, tls=server) as cloud:
            assert cloud.url.startswith("mqtts://")
            refusal = [] if name == "aws" else [(0x20, b"\0\5")]
            for host, answer in ((None, refusal), ("localhost", [(0x20, b"\0\0")])):
                with _link(cloud) as plain, ours.wrap_socket(plain, server_hostname=host) as link:
                    link.sendall(_connect(name, f"pump-{host}".encode()))
                    assert _packets(link, 1) == answer
            assert [rule.text.startswith("SNI") for rule, _ in cloud.refusals] == [True]


def test_each_rule_names_its_page_and_is_tried_here():
    assert all(rule.source in SOURCES for rule in RULES)
    tried = {words for _, words, _ in _BAD} | {"one CONNECT a second", "SNI", "no ban", "at most 20", "at most 5 sub"}
    assert [rule.text for rule in RULES if not any(words in rule.text for words in tried)] == []
    with pytest.raises(ValueError, match="aws, azure"):
        CloudBroker("ibm")


def test_azure_and_aws_count_across_packets():
    """Planted: rate() forgets the events of the link before."""
    with _cloud("azure") as cloud, _link(cloud) as link:
        link.sendall(_connect("azure") + _subscribe(*_AZURE_FILTERS) + _subscribe(_COMMANDS["azure"]))
        assert [first for first, _ in _packets(link, 3)] == [0x20, 0x90, 0x90]
    with _cloud("aws", now=lambda: 1000.0) as cloud:
        with _link(cloud) as link:
            link.sendall(_connect("aws"))
            assert _packets(link, 1) == [(0x20, b"\0\0")]
        with _link(cloud) as link:
            link.sendall(_connect("aws"))
            assert _packets(link, 1) == []
        assert cloud.refusals[0][0].text.startswith("one CONNECT")
