"""The HTTP admin API: who may use it, what it answers, and what it does."""

import asyncio
import base64
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from broker_peer import Peer
from broker_wire import Transport
from observed import ObservedBroker
from umqtt_broker import Broker, BrokerConfig, BrokerError, Listener
from umqtt_broker.clients.connection import Connection
from umqtt_broker.log import NOTICE
from umqtt_broker.observation import readings
from umqtt_broker.observation.openapi import SCHEMAS
from umqtt_broker.observation.routes import MAX_BODY, ROUTES
from umqtt_broker.observation.slices import SLICE
from umqtt_broker.sessions.session import Session
from umqtt_broker.store import sqlite
from umqtt_testkit import encoder
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ObservedBroker]:
    with ObservedBroker(tmp_path) as started:
        yield started


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[ObservedBroker]:
    with ObservedBroker(tmp_path, store=str(tmp_path / "broker.db")) as started:
        yield started


EVERY_ROUTE = [(route.method, route.path.replace("{client_id}", "x")) for route in ROUTES] + [
    ("GET", "/metrics"),
    ("GET", "/api/openapi.json"),
]


# Access


@pytest.mark.parametrize(("method", "path"), EVERY_ROUTE)
def test_nothing_but_the_page_and_health_answers_without_the_token(
    broker: ObservedBroker, method: str, path: str
) -> None:
    for value in (
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Basic {broker.token}",
        f"Bearer {broker.token}x",
        f"Bearer {broker.token[:-1]}",
        "Bearer \xff",
    ):
        reply = broker.request(method, path, headers={"Authorization": value})
        assert reply.status == 401 and "token" in reply.message, (value, reply)
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert broker.token not in reply.body.decode()
    assert broker.request("GET", f"/api/broker?token={broker.token}", headers={"Authorization": None}).status == 401


def test_a_program_without_an_origin_gets_in_and_so_does_the_page_itself(broker: ObservedBroker) -> None:
    assert broker.request("GET", "/api/broker").status == 200
    for host in ("127.0.0.1", "localhost"):
        name = f"{host}:{broker.http_port}"
        reply = broker.request(
            "GET", "/api/broker", headers={"Host": name, "Origin": f"http://{name}", "Sec-Fetch-Site": "same-origin"}
        )
        assert reply.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:{port}.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_a_foreign_origin_is_refused_even_with_the_token(
    broker: ObservedBroker, headers: dict[str, str]
) -> None:
    filled: dict[str, str | None] = {name: value.format(port=broker.http_port) for name, value in headers.items()}
    for method, path in EVERY_ROUTE:
        reply = broker.request(method, path, headers=filled)
        assert reply.status == 403 and "origin" in reply.message
        assert not any(name.startswith("access-control") for name in reply.headers)
    assert broker.request("OPTIONS", "/api/publish", headers=filled).status == 403
    assert broker.get("/api/broker")["http_refused"]["origin"] == len(EVERY_ROUTE) + 1


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", None])
def test_a_foreign_host_is_refused_wherever_it_asks(broker: ObservedBroker, host: str | None) -> None:
    sent = {"Host": None if host is None else host.format(port=broker.http_port)}
    for path in ("/", "/healthz", "/readyz", "/metrics", "/api/broker", "/page.js"):
        assert broker.request("GET", path, headers=sent).status in (400, 421)


def test_every_answer_forbids_what_a_page_could_be_tricked_into(broker: ObservedBroker) -> None:
    for path in ("/", "/page.js", "/api/broker", "/nothing", "/metrics"):
        headers = broker.request("GET", path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer" and "access-control-allow-origin" not in headers
        assert "set-cookie" not in headers


# The token file


def test_the_token_file_is_made_for_its_owner_alone_and_kept(tmp_path: Path) -> None:
    with ObservedBroker(tmp_path) as broker:
        assert broker.token_file.stat().st_mode & 0o777 == 0o600
        token = broker.token
        assert len(token) >= 43
    with ObservedBroker(tmp_path) as broker:
        assert broker.token == token


def refusal(tmp_path: Path, **settings: Any) -> str:
    """Start a broker that must refuse its settings; return its one line."""

    async def start() -> None:
        async with Broker(BrokerConfig(port=0, **({"http_port": reserved_port()} | settings))):
            pass

    with pytest.raises(BrokerError) as caught:
        asyncio.run(start())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("a" * 40, 0o640, "chmod 600"),
        ("a" * 40, 0o604, "chmod 600"),
        ("", 0o600, "holds no token"),
        ("short", 0o600, "holds no token"),
        ("two words " * 5, 0o600, "holds no token"),
        ("\u00e4" * 40, 0o600, "not text"),
    ],
)
def test_a_token_file_that_proves_nothing_is_refused(tmp_path: Path, content: str, mode: int, said: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    message = refusal(tmp_path, http_token_file=str(path))
    assert said in message and str(path) in message and (not content or content not in message)


def test_impossible_http_settings_are_one_line_that_names_the_remedy(tmp_path: Path) -> None:
    token = str(tmp_path / "token")
    assert "http_token_file" in refusal(tmp_path)
    assert "cannot make" in refusal(tmp_path, http_token_file=str(tmp_path / "missing" / "token"))
    assert "Is a directory" in refusal(tmp_path, http_token_file=str(tmp_path))
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "is not a file" in refusal(tmp_path, http_token_file=str(tmp_path / "pipe"))
    for host in ("0.0.0.0", "::", "192.0.2.1", "broker.example"):
        assert "ssh -L" in refusal(tmp_path, http_token_file=token, http_host=host)
    with ObservedBroker(tmp_path) as other:
        assert "choose another" in refusal(tmp_path, http_token_file=token, http_port=other.http_port)


def test_a_broker_without_http_port_imports_no_http_library(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from umqtt_broker import Broker, BrokerConfig\n"
        "async def main():\n"
        "    async with Broker(BrokerConfig(port=0)) as broker: await asyncio.sleep(0)\n"
        "asyncio.run(main())\n"
        "assert 'umqtt_broker.observation' in sys.modules\n"
        "print(sorted({'aiohttp', 'prometheus_client'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
    )
    assert result.stdout == "[]\n", result


# Its description


def test_the_openapi_description_has_exactly_the_routes_there_are(broker: ObservedBroker) -> None:
    described = broker.get("/api/openapi.json")
    said = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    beside = {("GET", path) for path in ("/api/openapi.json", "/metrics", "/healthz", "/readyz")}
    assert said == {(route.method, route.path) for route in ROUTES} | beside
    for method, path in said:
        reply = broker.request(method, path.replace("{client_id}", "nobody"), {} if method == "POST" else None)
        assert reply.status in (200, 400) or (reply.status == 404 and "nobody" in reply.message), (method, path, reply)
    text = json.dumps(described)
    for reference in re.findall(r"#/components/schemas/(\w+)", text):
        assert reference in described["components"]["schemas"]


def check_shape(value: Any, schema: str) -> None:
    """Assert that a value conforms to the description, field by field."""
    if schema.endswith("?"):
        if value is not None:
            check_shape(value, schema[:-1])
    elif schema.endswith("[]"):
        assert isinstance(value, list)
        for item in value:
            check_shape(item, schema[:-2])
    elif schema.endswith("{}"):
        assert isinstance(value, dict)
        for item in value.values():
            check_shape(item, schema[:-2])
    elif schema[0].isupper():
        assert set(value) == set(SCHEMAS[schema]), schema
        for name, notation in SCHEMAS[schema].items():
            check_shape(value[name], notation)
    else:
        kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
        assert isinstance(value, kinds[schema]), (value, schema)
        assert schema == "boolean" or not isinstance(value, bool), schema


def test_every_answer_has_the_fields_the_description_says(durable: ObservedBroker) -> None:
    with Peer(durable.port) as one, Peer(durable.port) as other:
        one.connect(b"one", clean_session=False)
        one.subscribe(b"a/#", 1)
        one.subscribe(b"$share/g/a/#", 1)
        other.connect(b"other")
        other.publish(b"a/b", b"\xff\x00", 1, retain=True)
        answered = set()
        calls: list[tuple[str, str, object]] = [
            ("GET", "/api/broker", None),
            ("GET", "/api/history", None),
            ("GET", "/api/sessions", None),
            ("GET", "/api/sessions/one", None),
            ("GET", "/api/subscriptions?topic=a/b", None),
            ("GET", "/api/shared", None),
            ("GET", "/api/retained", None),
            ("POST", "/api/publish", {"topic": "a/c", "payload": "x"}),
            ("DELETE", "/api/retained?filter=a/%23", None),
            ("POST", "/api/sessions/one/kick", None),
            ("DELETE", "/api/sessions/one", None),
        ]
        for method, path, body in calls:
            reply = durable.request(method, path, body)
            assert reply.status == 200, reply
            bare = path.partition("?")[0].replace("/one", "/{client_id}")
            route = next(route for route in ROUTES if (route.method, route.path) == (method, bare))
            check_shape(reply.json, route.answer)
            answered.add((route.method, route.path))
        assert answered == {(route.method, route.path) for route in ROUTES}


# Answers


def test_a_session_is_told_with_its_subscriptions_queue_and_rates(durable: ObservedBroker) -> None:
    with Peer(durable.port) as keeper, Peer(durable.port) as sender:
        keeper.connect(b"keeper", clean_session=False, keep_alive=600)
        keeper.subscribe(b"a/+", 1)
        sender.connect(b"sender")
        sender.publish(b"a/1", b"12345", 1)
        keeper.receive_message(acknowledge=False)
        found = durable.get("/api/sessions/keeper")
        session = found["session"]
        assert session["connected"] and not session["clean_session"] and session["keep_alive"] == 600
        assert session["in_flight"] == 1 and session["queued"] == 0 and session["messages_sent"] >= 1
        assert session["listener"] == "127.0.0.1:0" and "127.0.0.1" in session["address"]
        assert 0 <= session["connected_seconds"] < 60
        assert found["topic_filters"] == [{"topic_filter": "a/+", "qos": 1}]
        assert found["received_per_second"] is not None
        keeper.disconnect()
        for _ in range(3):
            sender.publish(b"a/2", b"12345", 1)
        session = durable.get("/api/sessions/keeper")["session"]
        assert not session["connected"] and session["address"] is None and session["messages_sent"] is None
        assert session["queued"] == 4 and session["queued_bytes"] >= 20
        totals = durable.get("/api/broker")
    assert totals["store"]["durable"] and totals["store"]["commits"] > 0


NAMES = ["..", ".", "-", "a/b", "a b", "%2e", "#", "?x=1", "\u00e4\u20ac", "<script>", "+", "kick"]


def test_clients_of_any_name_can_be_found_kicked_and_forgotten(broker: ObservedBroker) -> None:
    for name in NAMES:
        with Peer(broker.port) as peer:
            peer.connect(name.encode(), clean_session=False)
            query = f"?client_id={quote(name, safe='')}"
            path = "/api/sessions/-"
            assert broker.get(path + query)["session"]["client_id"] == name
            if name not in ("..", "."):  # no path can carry these
                assert broker.get(f"/api/sessions/{quote(name, safe='')}")["session"]["client_id"] == name
            assert broker.request("POST", f"{path}/kick{query}").status == 200
            peer.wait_closed()
            again = broker.request("POST", f"{path}/kick{query}")
            assert again.status == 409 and "not connected" in again.message
            assert broker.request("DELETE", path + query).status == 200
            assert broker.request("GET", path + query).status == 404


def test_a_kick_publishes_the_will_keeps_the_session_and_is_logged_as_such(
    broker: ObservedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(NOTICE, "umqtt_broker.clients")
    with Peer(broker.port) as watcher, Peer(broker.port) as victim:
        watcher.connect(b"watcher")
        watcher.subscribe(b"will")
        victim.connect(b"victim", clean_session=False, will=(b"will", b"gone", 0, False))
        assert broker.request("POST", "/api/sessions/victim/kick").json == {"done": True}
        assert watcher.receive_message().payload == b"gone"
        victim.wait_closed()
        assert not broker.get("/api/sessions/victim")["session"]["connected"]
        assert broker.request("DELETE", "/api/sessions/watcher").status == 200
    ends = [line for line in caplog.messages if "disconnected:" in line]
    assert ends == [
        "client victim disconnected: disconnected by an administrator",
        "client watcher disconnected: its session was deleted by an administrator",
    ]


def test_a_forgotten_session_is_gone_after_a_restart_too(tmp_path: Path) -> None:
    store = str(tmp_path / "broker.db")
    with ObservedBroker(tmp_path, store=store) as broker, Peer(broker.port) as one, Peer(broker.port) as other:
        one.connect(b"connected", clean_session=False)
        one.subscribe(b"a", 1)
        other.connect(b"away", clean_session=False)
        other.subscribe(b"a", 1)
        other.disconnect()
        assert broker.request("DELETE", "/api/sessions/connected").status == 200
        assert broker.request("DELETE", "/api/sessions/away").status == 200
        one.wait_closed()
        assert broker.call(lambda: broker.stats.subscriptions) == 0
    with ObservedBroker(tmp_path, store=store) as broker:
        assert broker.get("/api/sessions")["sessions"] == []


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("DELETE", ""), ("POST", "/kick")])
def test_an_unknown_client_is_404_with_its_name(broker: ObservedBroker, method: str, path: str) -> None:
    reply = broker.request(method, f"/api/sessions/nobody{path}")
    assert reply.status == 404 and reply.message == "there is no session of client nobody"


def test_pages_of_sessions_join_to_the_whole_in_order(broker: ObservedBroker) -> None:
    names = [f"client-{number:03d}" for number in range(25)]
    peers = [Peer(broker.port) for _ in names]
    try:
        for peer, name in zip(peers, reversed(names), strict=True):
            peer.connect(name.encode())
        for limit in (1, 7, 24, 25, 26, 1000):
            seen: list[str] = []
            after = ""
            while True:
                page = broker.get(f"/api/sessions?limit={limit}&after={after}")
                assert page["matched"] == len(names) - len(seen) and len(page["sessions"]) <= limit
                seen += [session["client_id"] for session in page["sessions"]]
                if page["next"] is None:
                    break
                after = page["next"]
            assert seen == names, limit
        found = broker.get("/api/sessions?search=NT-01&state=connected")["sessions"]
        assert [session["client_id"] for session in found] == names[10:20]
        assert broker.get("/api/sessions?state=away")["matched"] == 0
    finally:
        for peer in peers:
            peer.close()


def test_clients_of_one_name_behind_different_mount_points_are_told_apart(tmp_path: Path) -> None:
    listeners = tuple(Listener(port=0, mount_point=mount) for mount in (b"", b"a/", b"b/"))
    with ObservedBroker(tmp_path, listeners=listeners) as broker, ExitStack() as stack:
        ports = broker.view.listening_ports
        peers = [stack.enter_context(Peer(port)) for port in ports]
        for peer in peers:
            peer.connect(b"twin")
            peer.subscribe(b"t")
        page = broker.get("/api/sessions?limit=1")
        found = page["sessions"]
        while page["next"] is not None:
            page = broker.get(f"/api/sessions?limit=1&after={quote(page['next'], safe='')}")
            found += page["sessions"]
        assert sorted((row["client_id"], row["mount_point"]) for row in found) == [
            ("twin", ""),
            ("twin", "a/"),
            ("twin", "b/"),
        ]
        session = broker.get("/api/sessions/twin?mount_point=a/")
        assert session["session"]["mount_point"] == "a/" and session["topic_filters"][0]["topic_filter"] == "a/t"
        assert broker.request("POST", "/api/sessions/twin/kick?mount_point=b/").status == 200
        peers[2].wait_closed()
        assert [peer.flush() for peer in peers[:2]] == [[], []]
        subscribers = broker.get("/api/subscriptions?topic=a/t")["subscribers"]
        assert [row["mount_point"] for row in subscribers] == ["a/"]


def test_a_client_that_is_read_more_slowly_is_marked(tmp_path: Path) -> None:
    with ObservedBroker(tmp_path, max_receive_rate=1) as broker, Peer(broker.port) as eager, Peer(broker.port) as calm:
        eager.connect(b"eager")
        calm.connect(b"calm")
        eager.send(encoder.publish(b"a", b"x") * 50)
        broker.wait_until(lambda: broker.stats.rate_limited > 0)
        held = {row["client_id"]: row["held_back"] for row in broker.get("/api/sessions")["sessions"]}
        assert held == {"eager": True, "calm": False}
        broker.advance(1)  # sums may be a second old
        totals = broker.get("/api/broker")
        assert totals["clients"]["held_back"] == 1 and totals["connections"]["rate_limited"] >= 1


def test_sessions_sort_by_what_they_hold_largest_first(broker: ObservedBroker) -> None:
    with Peer(broker.port) as sender:
        sender.connect(b"sender")
        for number in range(4):
            with Peer(broker.port) as keeper:
                keeper.connect(b"keeper-%d" % number, clean_session=False)
                keeper.subscribe(b"to/%d" % number, 1)
                keeper.disconnect()
            for _ in range(number * 3 % 4):
                sender.publish(b"to/%d" % number, b"x" * 10 * (4 - number), 1)
        for sort in ("queued", "queued_bytes"):
            values = [session[sort] for session in broker.get(f"/api/sessions?sort={sort}")["sessions"]]
            assert all(first >= second for first, second in pairwise(values)) and values[0] > values[-1]
        for sort in ("in_flight", "messages_received", "messages_sent", "connected_seconds"):
            assert broker.get(f"/api/sessions?sort={sort}")["sessions"][0]["client_id"] in ("sender", "keeper-0")


def test_who_is_connected_longest_comes_first_however_long_it_takes_to_look(
    broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sort_value = readings.sort_value

    def look_slowly(session: Session, name: str, now: float) -> float:
        broker.set_ahead(0.05)
        return sort_value(session, name, now)

    with ExitStack() as stack:
        for number, name in enumerate((b"a", b"b", b"c")):
            stack.enter_context(Peer(broker.port)).connect(name)
            session = broker.view.session(name)
            assert session is not None and session.connection is not None
            session.connection.connected_at = 1 + number / 100
        monkeypatch.setattr(readings, "sort_value", look_slowly)
        rows = broker.get("/api/sessions?sort=connected_seconds")["sessions"]
        assert [row["client_id"] for row in rows] == ["a", "b", "c"]


def test_who_gets_a_topic_is_told_with_the_filters_that_match(broker: ObservedBroker) -> None:
    with Peer(broker.port) as peer:
        peer.connect(b"one")
        for topic_filter, qos in ((b"a/+", 0), (b"a/#", 2), (b"b", 1)):
            peer.subscribe(topic_filter, qos)
        page = broker.get("/api/subscriptions?topic=a/b")
        assert page["subscribers"] == [
            {
                "client_id": "one",
                "mount_point": "",
                "connected": True,
                "qos": 2,
                "may_read": True,
                "topic_filters": ["a/#", "a/+"],
            }
        ]
        assert broker.get("/api/subscriptions?topic=c")["subscribers"] == []


# Actions


def test_retained_messages_are_listed_in_pages_and_removed_for_subscribers_too(durable: ObservedBroker) -> None:
    with Peer(durable.port) as peer:
        peer.connect(b"peer")
        payloads = {"a/1": b"text", "a/2": b"\xff\xfe", "a/3": b"x" * 2000, "b": b"stays"}
        for topic_name, payload in payloads.items():
            peer.publish(topic_name.encode(), payload, 1, retain=True)
        rows, after = [], ""
        while True:
            page = durable.get(f"/api/retained?filter=a/%23&limit=2&after={quote(after, safe='')}")
            rows += page["retained"]
            if page["next"] is None:
                break
            after = page["next"]
        assert [row["topic_name"] for row in rows] == ["a/1", "a/2", "a/3"]
        assert rows[0]["payload"] == "text" and rows[0]["encoding"] == "utf-8" and rows[0]["qos"] == 1
        assert base64.b64decode(rows[1]["payload"]) == b"\xff\xfe" and rows[1]["encoding"] == "base64"
        assert rows[2]["size"] == 2000 and len(rows[2]["payload"]) == 1024 and rows[2]["truncated"]
        peer.subscribe(b"a/1", 0)
        assert peer.receive_message().retain
        assert durable.request("DELETE", "/api/retained?filter=a/%2b").json == {"removed": 3}
        assert peer.receive_message().payload == b""
    assert [row["topic_name"] for row in durable.get("/api/retained")["retained"]] == ["b"]
    assert durable.request("DELETE", "/api/retained?filter=$SYS/%23").status == 403
    assert durable.request("DELETE", "/api/retained").status == 400


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_reaches_subscribers_and_is_safe_when_answered(tmp_path: Path, qos: int) -> None:
    store = str(tmp_path / "broker.db")
    with ObservedBroker(tmp_path, store=store) as broker, Peer(broker.port) as peer:
        peer.connect(b"peer", clean_session=False)
        peer.subscribe(b"\xc3\xa4/+", 2)
        body = {"topic": "\u00e4/1", "payload": base64.b64encode(b"\x00\xff").decode(), "encoding": "base64"}
        before = broker.call(lambda: broker.stats.commits)
        assert broker.request("POST", "/api/publish", body | {"qos": qos, "retain": qos == 2}).json == {"done": True}
        if qos:
            assert broker.call(lambda: broker.stats.commits) > before
        got = peer.receive_message()
        assert (got.topic_name, got.payload, got.qos, got.retain) == ("\u00e4/1".encode(), b"\x00\xff", qos, False)
        assert broker.get("/api/retained")["matched"] == (qos == 2)


PUBLISH = {"topic": "a", "payload": "x"}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff", 400, "not JSON"),
        (b"[" * 100000, 400, "not JSON"),
        (b"[]", 400, "not a JSON object"),
        ({"topic": "a"}, 400, "payload is missing"),
        ({"payload": "a"}, 400, "topic is missing"),
        (PUBLISH | {"more": 1}, 400, "more is unknown"),
        (PUBLISH | {"\ud800": 1}, 400, "\\ud800 is unknown"),
        (PUBLISH | {"encoding": "\ud800"}, 400, "encoding utf-8 or base64"),
        (PUBLISH | {"qos": 3}, 400, "qos must be"),
        (PUBLISH | {"qos": True}, 400, "wrong type"),
        (PUBLISH | {"retain": 1}, 400, "wrong type"),
        (PUBLISH | {"topic": "a/#"}, 400, "not a topic name"),
        (PUBLISH | {"topic": ""}, 400, "not a topic name"),
        (PUBLISH | {"topic": "a\0"}, 400, "not a topic name"),
        (PUBLISH | {"topic": "\ud800"}, 400, "not a topic name"),
        (PUBLISH | {"topic": "a" * 65536}, 400, "not a topic name"),
        (PUBLISH | {"topic": "$SYS/broker/uptime"}, 403, "broker's own"),
        (PUBLISH | {"payload": "\ud800"}, 400, "payload is not utf-8"),
        (PUBLISH | {"encoding": "hex"}, 400, "encoding utf-8 or base64"),
        (PUBLISH | {"encoding": "base64", "payload": "%%"}, 400, "payload is not base64"),
        (b" " * (MAX_BODY + 1), 413, "too large"),
    ],
)
def test_a_bad_publish_says_what_is_wrong_and_publishes_nothing(
    broker: ObservedBroker, body: object, status: int, said: str
) -> None:
    before = broker.get("/api/broker")["messages"]
    reply = broker.request("POST", "/api/publish", body)
    assert reply.status == status and said in reply.message
    assert broker.get("/api/broker")["messages"]["retained"] == before["retained"]


def test_what_limits_a_client_limits_a_publish_too(tmp_path: Path) -> None:
    limits = {"max_payload_size": 2, "retain_available": False}
    with ObservedBroker(tmp_path, **limits) as broker, Peer(broker.port) as peer:
        peer.connect(b"peer")
        peer.subscribe(b"a", 0)
        reply = broker.request("POST", "/api/publish", PUBLISH | {"payload": "\u00e4x"})
        assert reply.status == 400 and reply.message == "payload has 3 bytes, message_size_limit is 2"
        broker.request("POST", "/api/publish", PUBLISH | {"payload": "xx", "retain": True})
        assert [packet.payload for packet in peer.flush()] == [b"xx"]
        assert broker.call(lambda: len(list(broker.broker.router.retained.match(b"a")))) == 0


def test_a_body_that_is_not_json_by_type_is_refused(broker: ObservedBroker) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        reply = broker.request("POST", "/api/publish", PUBLISH, headers={"Content-Type": kind})
        assert reply.status == 415 and "application/json" in reply.message


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/sessions?limit=0", "between 1 and 1000"),
        ("/api/sessions?limit=1001", "between 1 and 1000"),
        ("/api/sessions?limit=1e3", "between 1 and 1000"),
        ("/api/sessions?limit=%D9%A3", "between 1 and 1000"),
        ("/api/sessions?limit=" + "9" * 5000, "between 1 and 1000"),
        ("/api/sessions?limit=1&limit=2", "more than once"),
        ("/api/sessions?state=asleep", "none of"),
        ("/api/sessions?sort=queued&after=a", "after goes only"),
        ("/api/sessions?page=2", "unknown parameter page"),
        ("/api/sessions?%ED%A0%80=2", "unknown parameter"),
        ("/api/sessions?state=%ED%A0%80", "none of"),
        ("/api/retained?filter=%ED%A0%80%23", "not a topic filter"),
        ("/api/subscriptions", "topic is missing"),
        ("/api/subscriptions?topic=a/%23", "not a topic name"),
        ("/api/retained?filter=a%23", "not a topic filter"),
        ("/api/broker?x=1", "unknown parameter x"),
    ],
)
def test_a_bad_parameter_is_400_and_named(broker: ObservedBroker, path: str, said: str) -> None:
    reply = broker.request("GET", path)
    assert reply.status == 400 and said in reply.message


def test_unknown_paths_and_methods_are_errors_of_the_same_shape(broker: ObservedBroker) -> None:
    assert broker.request("GET", "/api/nothing").status == 404
    assert "openapi.json" in broker.request("GET", "/api/nothing").message
    for path in ("/../../etc/passwd", "/%2e%2e/server.py", "/page/index.html", "/__init__.py"):
        assert broker.request("GET", path).status == 404
    reply = broker.request("PUT", "/api/broker", {})
    assert reply.status == 405 and "PUT" in reply.message and "GET" in reply.headers["allow"]


# Health


def test_health_is_told_without_a_token(broker: ObservedBroker) -> None:
    for path in ("/healthz", "/readyz"):
        reply = broker.request("GET", path, headers={"Authorization": None})
        assert reply.status == 200 and set(reply.json) == {"status"}


def test_a_store_that_cannot_write_is_not_ready_and_then_ready_again(
    durable: ObservedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(path: str) -> int:
        return durable.request("GET", path, headers={"Authorization": None}).status

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    assert status("/readyz") == 200
    with monkeypatch.context() as full_disk, Peer(durable.port) as peer:
        full_disk.setattr(sqlite, "write_batch", fail)
        peer.send(encoder.connect(b"persistent", clean_session=False))
        assert peer.wait_closed() == []
        assert status("/readyz") == 503 and status("/readyz") == 503
        assert status("/healthz") == 200
    durable.wait_until(lambda: durable.set_ahead(1) or not durable.view.store_failure)
    assert status("/readyz") == 200


# Large numbers


def add_sessions(broker: ObservedBroker, count: int) -> None:
    """Let that many clients connect, without a socket, and leave their sessions behind."""
    for number in range(count):
        connection = Connection(broker.broker, broker.view.listeners[0])
        connection.connection_made(Transport())
        connection.data_received(encoder.connect(b"client-%06d" % number, clean_session=False))
        connection.connection_lost(None)


def test_the_event_loop_has_turns_while_sessions_are_listed(
    broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.call(lambda: add_sessions(broker, 2100))
    names, in_this_turn, most = readings.names, 0, 0

    def count(session: Session) -> Iterator[str]:
        nonlocal in_this_turn, most
        if not in_this_turn:
            broker.broker.loop.call_soon(end_turn)
        in_this_turn += 1
        most = max(most, in_this_turn)
        return names(session)

    def end_turn() -> None:
        nonlocal in_this_turn
        in_this_turn = 0

    monkeypatch.setattr(readings, "names", count)
    assert broker.get("/api/sessions?search=client&limit=3")["matched"] == 2100
    assert 0 < most <= SLICE
