"""What a bridge shares and under which names, with mosquitto and with our own broker at the other end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bridge_parts import BridgedBroker, bridge_config, far_broker
from broker_peer import Peer
from umqtt_broker.bridge.topic_map import TopicMap
from umqtt_broker.conf.bridge import parse_topic
from umqtt_broker.settings.bridge import TopicRule

Connect = Callable[[int, bytes], Peer]


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(port: int, client_id: bytes) -> Peer:
            peer = stack.enter_context(Peer(port))
            peer.connect(client_id)
            return peer

        yield make


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("local_store", ["memory", "sqlite"])
def test_messages_cross_in_both_directions_under_the_names_that_the_prefixes_give(
    remote: int, connect: Connect, tmp_path: Path, local_store: str, qos: int
) -> None:
    store = ":memory:" if local_store == "memory" else str(tmp_path / "broker.db")
    rules = (f"up/# out {qos} here/ there/", f"down/# in {qos} here/ there/", f"plain out {qos}")
    with BridgedBroker(bridge_config(remote, *rules), store=store) as broker:
        broker.wait_connected()
        far, near = connect(remote, b"far"), connect(broker.port, b"near")
        far.subscribe(b"there/up/#", 2)
        far.subscribe(b"plain", 2)
        near.subscribe(b"here/down/#", 2)
        sender, far_sender = connect(broker.port, b"sender"), connect(remote, b"far sender")
        for number in range(50):
            sender.publish(b"here/up/%d" % number, b"%d" % number, qos)
            far_sender.publish(b"there/down/%d" % number, b"%d" % number, qos)
        sender.publish(b"plain", b"last", qos)
        for number in range(50):
            message = far.receive_message()
            assert message[3:6] == (b"there/up/%d" % number, b"%d" % number, qos)
            message = near.receive_message()
            assert message[3:6] == (b"here/down/%d" % number, b"%d" % number, qos)
        assert far.receive_message()[3:6] == (b"plain", b"last", qos)
        status = broker.status()
        assert (status.messages_in, status.messages_out, status.unmatched, status.connects) == (50, 51, 0, 1)


def test_a_message_goes_at_the_lower_of_its_qos_and_the_rules(remote: int, connect: Connect) -> None:
    with BridgedBroker(bridge_config(remote, "a/# out 1")) as broker:
        broker.wait_connected()
        far, near = connect(remote, b"far"), connect(broker.port, b"near")
        far.subscribe(b"a/#", 2)
        for qos in (2, 1):
            near.publish(b"a/1", b"x", qos)
            assert far.receive_message().qos == 1
        near.publish(b"a/1", b"x", 0)
        assert far.receive_message().qos == 0


def test_large_messages_cross_whole(remote: int, connect: Connect) -> None:
    payload = bytes(range(256)) * 3000  # larger than every buffer of the bridge
    with BridgedBroker(bridge_config(remote, "out out 2", "in in 2")) as broker:
        broker.wait_connected()
        far, near = connect(remote, b"far"), connect(broker.port, b"near")
        far.subscribe(b"out", 2)
        near.subscribe(b"in", 2)
        for qos in (0, 1, 2):
            connect(broker.port, b"sender").publish(b"out", payload, qos)
            assert far.receive_message().payload == payload
            connect(remote, b"far sender").publish(b"in", payload, qos)
            assert near.receive_message().payload == payload


def test_what_is_larger_than_this_broker_takes_is_counted_and_holds_up_nothing(connect: Connect) -> None:
    with ExitStack() as stack:
        remote = stack.enter_context(far_broker())
        config = bridge_config(remote.port, "# in 2 L/")
        with BridgedBroker(config, max_packet_size=100_000) as broker:
            broker.wait_connected()
            far, near = connect(remote.port, b"far"), connect(broker.port, b"near")
            near.subscribe(b"L/#", 2)
            for qos in (0, 1, 2):
                for size in (99_999, 200_000, 10):
                    far.publish(b"a", bytes(size), qos)
                assert len(near.receive_message().payload) == 10
            assert broker.status().too_large == 6


def test_retained_messages_cross_with_their_flag_when_the_bridge_begins(remote: int, connect: Connect) -> None:
    connect(remote, b"far").publish(b"far/state", b"on", 1, retain=True)
    with far_broker():
        pass
    with BridgedBroker(bridge_config(remote, "far/# in 1")) as broker:
        broker.wait_connected()
        broker.wait_until(lambda: broker.view.bridges[0].messages_in == 1)
        near = connect(broker.port, b"near")
        near.subscribe(b"far/#", 1)
        message = near.receive_message()
        assert (message.payload, message.retain) == (b"on", True)


# The table of mosquitto.conf(5), "topic": pattern, local prefix, remote prefix, local topic, remote topic.
NAMES = [
    ("pattern L/ R/", b"L/pattern", b"R/pattern"),
    ('pattern L/ ""', b"L/pattern", b"pattern"),
    ('pattern "" R/', b"pattern", b"R/pattern"),
    ('pattern "" ""', b"pattern", b"pattern"),
    ('"" local remote', b"local", b"remote"),
]


@pytest.mark.tier(0)
@pytest.mark.parametrize(("words", "local_name", "remote_name"), NAMES)
def test_prefixes_rename_as_the_manual_of_mosquitto_says(words: str, local_name: bytes, remote_name: bytes) -> None:
    pattern, prefixes = words.split(" ", 1)
    rule = parse_topic(f"{pattern} both 0 {prefixes}")
    assert (rule.local_filter, rule.remote_filter) == (local_name, remote_name)
    assert TopicMap([rule], outward=True).find(local_name) == remote_name
    assert TopicMap([rule], outward=False).find(remote_name) == local_name


@pytest.mark.tier(0)
def test_the_first_rule_with_a_prefix_names_a_message_and_one_without_changes_nothing() -> None:
    rules = [parse_topic(text) for text in ("a/# out", 'a/# out 0 "" R/', 'a/b out 0 "" S/', "c out", "d in")]
    outward = TopicMap(rules, outward=True)
    assert [outward.find(name) for name in (b"a/b", b"a/c", b"c", b"d", b"x", b"a/+")] == [
        b"R/a/b",
        b"R/a/c",
        b"c",
        b"",
        b"",
        b"",
    ]


@pytest.mark.tier(0)
def test_a_name_that_becomes_too_long_is_left_out() -> None:
    topic_map = TopicMap([TopicRule(b"#", "out", 0, b"", b"R/")], outward=True)
    assert topic_map.find(b"a" * 65534) == b"" and len(topic_map.find(b"a" * 65533)) == 65535


@pytest.mark.tier(0)
def test_a_long_name_is_mapped_and_not_remembered() -> None:
    names = TopicMap([parse_topic("# out 0 a/ b/")], outward=True)
    for name, is_remembered in ((b"a/short", True), (b"a/" + b"n" * 60_000, False)):
        assert names.find(name) == b"b" + name[1:]
        assert (names.get(name) is not None) == is_remembered


@pytest.mark.parametrize("level", [3, 4, 5])
def test_it_speaks_all_versions_of_the_protocol(remote: int, connect: Connect, level: int) -> None:
    with BridgedBroker(bridge_config(remote, "a both 2 l/ r/", protocol_level=level)) as broker:
        broker.wait_connected()
        far, near = connect(remote, b"far"), connect(broker.port, b"near")
        far.subscribe(b"r/a", 2)
        near.publish(b"l/a", b"x", 2)
        assert far.receive_message().payload == b"x"
        reader, writer = connect(broker.port, b"reader"), connect(remote, b"writer")
        reader.subscribe(b"l/a", 2)
        writer.publish(b"r/a", b"y", 2)
        assert reader.receive_message().payload == b"y"


@pytest.mark.parametrize("topic", [b"$SYS/broker/connection/bridge/state", b"bridges/1"], ids=["$SYS", "named"])
def test_its_state_is_told_at_both_ends(remote: int, connect: Connect, topic: bytes) -> None:
    far = connect(remote, b"far")
    far.subscribe(topic, 1)
    config = bridge_config(remote, "a out", notification_topic=topic)
    with BridgedBroker(config) as broker:
        broker.wait_connected()
        assert far.receive_message().payload == b"1"
        near = connect(broker.port, b"near")
        near.subscribe(topic, 1)
        message = near.receive_message()
        assert (message.payload, message.retain) == (b"1", True)
    assert far.receive_message().payload == b"0"
