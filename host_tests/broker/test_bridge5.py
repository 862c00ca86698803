"""Bridges that speak MQTT 5 with the remote broker: what a message has beside its payload crosses as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from bridge_parts import BridgedBroker, bridge_config, far_broker
from broker_peer import Peer
from peer5 import Peer5
from umqtt_broker.bridge.session_store import BridgeStore
from umqtt_broker.protocol.packets5 import encode_content

EVERYTHING: dict[str, Any] = {
    "payload_format_indicator": 1,
    "content_type": b"text/plain",
    "response_topic": b"answers/1",
    "correlation_data": b"\x00\xff",
    "user_property": [(b"b", b"1"), (b"a", b"2"), (b"b", b"1")],
}

Connect5 = Callable[[int, bytes], Peer5]


@pytest.fixture
def connect5() -> Iterator[Connect5]:
    with ExitStack() as stack:

        def make(port: int, client_id: bytes) -> Peer5:
            peer = stack.enter_context(Peer5(port))
            peer.connect5(client_id)
            return peer

        yield make


def ways(here: int, there: int) -> list[tuple[int, bytes, int, bytes]]:
    """Outward and inward: the port to publish at and the topic, the port where it arrives and the topic there."""
    return [(here, b"l/a", there, b"r/a"), (there, b"r/b", here, b"l/b")]


def bridge5(port: int, *topics: str, **settings: Any) -> Any:
    """The configuration of a bridge that speaks MQTT 5."""
    return bridge_config(port, *topics, protocol_level=5, **settings)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 200_000], ids=["small", "large"])
def test_properties_cross_in_both_directions(remote: int, connect5: Connect5, qos: int, size: int) -> None:
    # Planted: properties of messages larger than the client's buffer, or at QoS 0, or at QoS 2 inward, are left out.
    with BridgedBroker(bridge5(remote, f"# both {qos} l/ r/")) as broker:
        broker.wait_connected()
        payload = b"x" * size
        for source, its_topic, sink, topic in ways(broker.port, remote):
            one, other = connect5(source, b"one"), connect5(sink, b"other")
            other.subscribe5((topic, 2))
            one.publish5(its_topic, payload, qos, **EVERYTHING)
            got = other.receive_message()
            assert (got.payload == payload, got.qos) == (True, qos)
            assert {name: got.properties[name] for name in EVERYTHING} == EVERYTHING
            one.publish5(its_topic, b"without", qos)
            got = other.receive_message()
            assert (got.payload, got.properties) == (b"without", {})


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_expiry_crosses_as_what_is_left_of_it(remote: int, connect5: Connect5, qos: int) -> None:
    with BridgedBroker(bridge5(remote, f"# both {qos} l/ r/")) as broker:
        broker.wait_connected()
        for source, its_topic, sink, topic in ways(broker.port, remote):
            one, other = connect5(source, b"one"), connect5(sink, b"other")
            other.subscribe5((topic, 2))
            one.publish5(its_topic, b"x", qos, message_expiry_interval=1000)
            assert 900 < other.receive_message().properties["message_expiry_interval"] <= 1000


def test_what_waited_in_the_bridge_has_less_time_left() -> None:
    # Planted: load() as it was put, so that a message that waited for the link comes with all of its time.
    now = [0.0]
    local: Any = type("Local", (), {"session": type("S", (), {"subscriptions": {}, "inbound": []})(), "released": []})()
    store = BridgeStore(local, 4, True, lambda *_: None, clock=lambda: now[0])
    encoded = encode_content(b"", 100)
    store.put(0, 7, 2, b"t\0" + encoded, b"x", 0)
    store.put(1, 8, 2, b"u", b"y", 0)
    now[0] += 30.5
    assert store.load(0) == (b"t\0" + encode_content(b"", 70), b"x")
    assert store.load(1) == (b"u", b"y")
    now[0] += 1000
    assert store.load(0) == (b"t\0" + encode_content(b"", 0), b"x")


def test_properties_are_left_out_where_the_remote_broker_speaks_mqtt_311(remote: int, connect5: Connect5) -> None:
    with BridgedBroker(bridge_config(remote, "# both 1 l/ r/")) as broker:
        broker.wait_connected()
        near, far = connect5(broker.port, b"near"), connect5(remote, b"far")
        far.subscribe5((b"r/a", 1))
        for qos in (0, 1, 2):
            near.publish5(b"l/a", b"x", qos, **EVERYTHING)
            got = far.receive_message()
            assert (got.payload, got.properties) == (b"x", {})


@pytest.mark.parametrize("try_private", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nothing_comes_back_and_the_retain_flag_stays_without_the_mark_of_a_bridge(
    remote: int, connect5: Connect5, qos: int, try_private: bool
) -> None:
    # Planted: subscriptions that are not no-local: each message comes back once; not retain-as-published.
    with BridgedBroker(bridge5(remote, f"a/# both {qos}", try_private=try_private)) as broker:
        broker.wait_connected()
        for source, sink, name in ((broker.port, remote, b"out"), (remote, broker.port, b"in")):
            one, other = connect5(source, b"one"), connect5(sink, b"other")
            other.subscribe5((b"a/" + name, 2 | 8))
            for number in range(10):
                one.publish5(b"a/" + name, b"%d" % number, qos, retain=True)
            for number in range(10):
                got = other.receive_message()
                assert (got.payload, got.retain) == (b"%d" % number, True)
        broker.wait_until(lambda: broker.view.bridges[0].queued == 0)
        status = broker.status()
        assert (status.messages_in, status.messages_out) == (10, 10)


def test_a_message_that_the_remote_broker_refuses_is_counted_and_holds_up_no_other(connect5: Connect5) -> None:
    # Planted: a refusal that ends the link: the message comes again for ever.
    with far_broker(max_packet_size=100_000) as remote, BridgedBroker(bridge5(remote.port, "# out 2")) as broker:
        broker.wait_connected()
        near, far = connect5(broker.port, b"near"), connect5(remote.port, b"far")
        far.subscribe5((b"#", 2))
        for qos in (0, 1, 2):
            near.publish5(b"a", bytes(200_000), qos)
            near.publish5(b"a", b"%d" % qos, qos)
            assert far.receive_message().payload == b"%d" % qos
        status = broker.status()
        assert (status.refused, status.dropped_qos0, status.connects) == (2, 1, 1)


def test_a_broker_that_sends_clients_elsewhere_or_keeps_no_retained_messages_has_its_bridges_all_the_same() -> None:
    # Planted: the bridge's local end is a client of MQTT 5 as any other: it is sent away, or cut off.
    with far_broker() as remote:
        config = bridge5(remote.port, "# both 1 l/ r/")
        settings: dict[str, Any] = {"server_reference": "elsewhere:1883", "retain_available": False}
        with BridgedBroker(config, **settings) as broker, Peer(broker.port) as near, Peer(remote.port) as far:
            broker.wait_connected()
            near.connect(b"near")
            far.connect(b"far")
            near.subscribe(b"l/a", 1)
            far.publish(b"r/a", b"x", 1, retain=True)
            assert near.receive_message().payload == b"x"
            assert broker.status().connects == 1


@pytest.mark.parametrize("name", [b"", b"a/#", b"a" * 65, b"\x1b[2J"])
@pytest.mark.parametrize("level", [4, 5])
def test_a_hostile_remote_broker_gives_itself_no_odd_name(
    connect5: Connect5, level: Any, name: bytes
) -> None:
    # Planted: whatever it says is remembered, as a filter in the store.
    with far_broker() as remote:
        remote.call(lambda: setattr(remote.broker.router.bridge_loops, "broker_id", name))
        with BridgedBroker(bridge_config(remote.port, "# both 1 l/ r/", protocol_level=level)) as broker:
            broker.wait_connected()
            far, near = connect5(remote.port, b"far"), connect5(broker.port, b"near")
            near.subscribe5((b"l/a", 1))
            far.publish5(b"r/a", b"x", 1)
            assert near.receive_message().payload == b"x"
            session = broker.view.session(b"local.bridge")
            assert session is not None and session.origin is None
