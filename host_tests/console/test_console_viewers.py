"""Many open pages, and the console's view of a broker's own API."""

import json
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from broker_here import broker_here
from gold_tables import fleet
from served_console import Serve, ServedConsole
from umqtt_console import events
from umqtt_console.broker_api import BrokerApi
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

VIEWERS = 50


def viewer(console: ServedConsole, stack: ExitStack, watch: str = "") -> socket.socket:
    """Open a stream of events, and return its socket once the first event has come."""
    stream = stack.enter_context(socket.create_connection(("127.0.0.1", console.port), WAIT_LIMIT_S))
    stream.sendall(f"GET /api/events?watch={watch} HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\n\r\n".encode())
    read_until(stream, b"event: hello")
    return stream


def read_until(stream: socket.socket, text: bytes) -> bytes:
    found = b""
    while text not in found:
        piece = stream.recv(65536)
        assert piece, "the stream ended"
        found += piece
    return found


def test_all_viewers_are_told_of_a_new_version_and_of_messages_they_watch(
    serve: Serve, tmp_path: Path, broker: int
) -> None:
    fleet(tmp_path, devices=3, days=0.1)
    console = serve(tmp_path, broker=broker)
    with ExitStack() as stack:
        plain = [viewer(console, stack) for _ in range(5)]
        watching = [viewer(console, stack, "x/%23") for _ in range(5)]
        eventually(lambda: len(console.parts.hub.viewers) == 10)
        client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        client.connect("127.0.0.1", broker)
        client.loop_start()
        client.publish("x/y", b"hello there", 1, retain=True).wait_for_publish(WAIT_LIMIT_S)
        for stream in watching:
            assert b'"topic": "x/y"' in read_until(stream, b"hello there")
        client.publish("x/y", b"", 1, retain=True).wait_for_publish(WAIT_LIMIT_S)
        client.loop_stop()
        fleet(tmp_path, devices=4, days=0.1)
        for stream in [*plain, *watching]:
            read_until(stream, b"event: tables")
        assert len(console.parts.hub.viewers) == 10
    eventually(lambda: not console.parts.hub.viewers)


def test_beyond_the_limit_a_viewer_is_told_so(
    serve: Serve, fleet_of_forty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_MOST_VIEWERS", 2)
    console = serve(fleet_of_forty)
    with ExitStack() as stack:
        for _ in range(2):
            viewer(console, stack)
        refused = console.call("GET", "/api/events")
        assert refused.status == 503 and "close some" in refused.message


@pytest.mark.tier(3)
def test_fifty_idle_viewers_take_less_than_a_tenth_of_a_core(serve: Serve, fleet_of_forty: Path, broker: int) -> None:
    console = serve(fleet_of_forty, broker=broker)
    with ExitStack() as stack:
        for _ in range(VIEWERS):
            viewer(console, stack)
        eventually(lambda: len(console.parts.hub.viewers) == VIEWERS)
        began, worked = time.monotonic(), time.process_time()
        time.sleep(10)
        share = (time.process_time() - worked) / (time.monotonic() - began)
    print(f"{share:.1%} of a core")
    assert share < 0.1


def test_the_brokers_clients_are_shown_kicked_and_written_down(
    serve: Serve, fleet_of_forty: Path, tmp_path: Path
) -> None:
    http, token = reserved_port(), tmp_path / "token"
    with broker_here(http_port=http, http_token_file=str(token)) as port:
        api = BrokerApi(f"http://127.0.0.1:{http}", token)
        console = serve(fleet_of_forty, broker_api=api, audit=tmp_path / "audit.jsonl")
        gone: list[object] = []
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "../victim", reconnect_on_failure=False)
        client.on_disconnect = lambda *told: gone.append(told)
        client.connect("127.0.0.1", port)
        client.loop_start()
        eventually(lambda: console.get("broker")["clients"]["connected"] == 1)
        assert console.get("broker/sessions", search="victim")["sessions"][0]["client_id"] == "../victim"
        assert console.get("broker/sessions/-", client_id="../victim")["session"]["connected"]
        assert console.post("broker/sessions/-/kick?client_id=../victim", {}).json == {"done": True}
        eventually(lambda: gone)
        client.loop_stop()
        assert console.post("broker/sessions/-/kick?client_id=nobody", {}).status == 404
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        assert [one["text"] for one in lines if "who" in one] == ["../victim is kicked.", "nobody is kicked."]
        assert [one["state"] for one in lines if "state" in one] == ["done", "failed"]
        assert "queues" not in console.get("trace", device="a", boot="b", seq=1)["steps"][1]["text"]
        text = token.read_text()
        token.write_text("w" * 43)
        refused = console.call("GET", "/api/broker")
        assert (
            refused.status == 502
            and "wrong or missing token" in refused.message
            and text.strip() not in refused.message
        )
    away = console.call("GET", "/api/broker")
    assert away.status == 502 and "does not answer" in away.message
    assert console.get("fleet")["totals"]["devices"] == 40
    assert serve(fleet_of_forty).call("GET", "/api/broker").status == 404
