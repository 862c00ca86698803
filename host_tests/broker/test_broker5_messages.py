"""MQTT 5, messages: properties, subscriptions with options, messages between versions, expiry."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_peer import BrokerProcess, BrokerThread, Peer, StartBroker
from peer5 import Peer5
from umqtt_broker import BrokerConfig
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBREC, PUBREL, UNSUBACK
from umqtt_testkit.mosquitto import Mosquitto

NO_LOCAL, AS_PUBLISHED, IF_NEW, NEVER = 4, 8, 0x10, 0x20
FOR_EVER = 0xFFFFFFFF

EVERYTHING = {
    "payload_format_indicator": 1,
    "content_type": b"text/plain",
    "user_property": [(b"b", b"1"), (b"a", b"2"), (b"b", b"1")],
    "response_topic": b"answers/1",
    "correlation_data": b"\x00\xff",
}

Connect5 = Callable[..., Peer5]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_subscriber_gets_every_property_in_its_order_and_one_of_311_the_payload_alone(
    peer5: Connect5, peer: Callable[..., Peer], qos: int
) -> None:
    # Planted: user properties are kept in a dictionary, which loses their order and repetitions; a client of 3.1.1
    # gets the properties as part of the payload.
    five, four, sender = peer5(b"five"), peer(b"four"), peer5(b"sender")
    five.subscribe5((b"t", 2))
    four.subscribe(b"t", 2)
    assert sender.publish5(b"t", b"hello", qos, **EVERYTHING) == 0
    got = five.receive_message()
    assert (got.payload, got.properties, list(got.properties)) == (b"hello", EVERYTHING, list(EVERYTHING))
    assert four.receive_message().payload == b"hello"
    four.flush()
    four.send(encoder.publish(b"t", b"from 311"))
    got = five.receive_message()
    assert (got.payload, got.properties) == (b"from 311", {})


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_waits_keeps_its_properties_and_is_resent_with_them(peer5: Connect5, qos: int) -> None:
    # Planted: the queue keeps only the payload; what is resent with DUP has lost the properties.
    away = peer5(b"away", session_expiry_interval=100)
    away.subscribe5((b"t", 2), subscription_identifier=9)
    away.disconnect()
    peer5(b"sender").publish5(b"t", b"hello", qos, **EVERYTHING)
    expected = EVERYTHING | {"subscription_identifier": 9}
    again = peer5(b"away", clean=False, session_expiry_interval=100)
    got = again.receive_message(acknowledge=False)
    assert (got.payload, got.properties, got.dup) == (b"hello", expected, False)
    again.reset()
    got = peer5(b"away", clean=False, session_expiry_interval=100).receive_message()
    assert (got.payload, got.properties, got.dup) == (b"hello", expected, True)


def test_everything_acknowledged_survives_kill_9_with_its_properties(tmp_path: Path) -> None:
    # Planted: the flag that tells content from payload is not stored; a session's identifier or version is not.
    store = tmp_path / "broker.db"
    with BrokerProcess(store) as broker, Peer5(broker.port) as away, Peer(broker.port) as old:
        away.connect5(b"away", session_expiry_interval=FOR_EVER)
        away.subscribe5((b"t/#", 2 | AS_PUBLISHED), subscription_identifier=300)
        old.connect(b"old", clean_session=False)
        old.subscribe(b"t/#", 1)
        away.disconnect()
        old.disconnect()
        with Peer5(broker.port) as sender:
            sender.connect5(b"sender")
            for qos in (1, 2):
                # Larger than the size from which a message for several clients is stored once.
                assert sender.publish5(b"t/%d" % qos, b"x" * 200, qos, retain=True, **EVERYTHING) == 0
        broker.kill()
    with BrokerProcess(store) as broker, Peer5(broker.port) as away, Peer(broker.port) as old:
        with Peer5(broker.port) as sender:
            sender.connect5(b"sender")
            assert sender.publish5(b"t/0", b"x" * 200, 2, retain=True, **EVERYTHING) == 0
        assert away.connect5(b"away", clean=False, session_expiry_interval=FOR_EVER).present
        for qos in (1, 2, 0):
            got = away.receive_message()
            assert (got.topic_name, got.payload, got.qos) == (b"t/%d" % qos, b"x" * 200, qos or 2)
            assert got.properties == EVERYTHING | {"subscription_identifier": 300} and got.retain
        with Peer5(broker.port) as sender:
            sender.connect5(b"sender")
            sender.publish5(b"t/3", b"", 1)
        assert away.receive_message().properties == {"subscription_identifier": 300}
        old.connect(b"old", clean_session=False)
        assert [old.receive_message().payload for _ in range(4)] == [*[b"x" * 200] * 3, b""]
        with Peer5(broker.port) as new:
            new.connect5(b"new")
            new.subscribe5((b"t/#", 2))
            got = [new.receive_message() for _ in range(3)]
            assert [(one.retain, one.properties) for one in got] == [(True, EVERYTHING)] * 3


@pytest.mark.parametrize("first", [4, 5])
@pytest.mark.parametrize("in_memory", [1, 100])
def test_a_session_returns_with_another_version_and_gets_every_message_as_that_has_it(
    start_broker: StartBroker, tmp_path: Path, first: int, in_memory: int
) -> None:
    # Planted: the queue is not converted when the client returns with another version; messages from the disk are
    # not.
    broker = start_broker(store=str(tmp_path / "broker.db"), max_queued_in_memory=in_memory)

    def come(level: int) -> Any:
        peer = Peer5(broker.port) if level == 5 else Peer(broker.port)
        if isinstance(peer, Peer5):
            peer.connect5(b"away", clean=False, session_expiry_interval=FOR_EVER)
        else:
            peer.connect(b"away", clean_session=False)
        return peer

    with come(first) as away, Peer5(broker.port) as sender:
        if first == 5:
            away.subscribe5((b"t", 2), subscription_identifier=7)
        else:
            away.subscribe(b"t", 2)
        away.disconnect()
        sender.connect5(b"sender")
        for number in range(5):
            sender.publish5(b"t", b"%d" % number, 1 + number % 2, content_type=b"text")
        with come(9 - first) as back:
            got = [back.receive_message() for _ in range(5)]
            assert [one.payload for one in got] == [b"%d" % number for number in range(5)]
            if first == 4:
                assert [one.properties for one in got] == [{}] * 5
            sender.publish5(b"t", b"now", 1, content_type=b"text")
            now = back.receive_message()
            assert now.payload == b"now" and (first == 5 or now.properties == {"content_type": b"text"})
        assert broker.call(lambda: broker.view.session(b"away").queued_bytes) == 0


# Filters with options and identifier; then what the client gets of `t/1` from others, and from itself.
OVERLAPS = {
    "one": ([(b"t/1", 1, 1)], [1], [1]),
    "two": ([(b"t/1", 1, 1), (b"t/+", 0, 2)], [1, 2], [1, 2]),
    "one without": ([(b"t/1", 1, 0), (b"t/+", 0, 2)], [2], [2]),
    "no-local": ([(b"t/1", 1 | NO_LOCAL, 1)], [1], None),
    "no-local and not": ([(b"t/1", 1 | NO_LOCAL, 1), (b"t/+", 0, 2)], [1, 2], [2]),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_a_message_comes_once_with_the_identifiers_of_all_subscriptions_that_match(peer5: Connect5, name: str) -> None:
    # Planted: only the identifiers of the first match; no-local for all subscriptions if one has it.
    subscriptions, of_others, of_own = OVERLAPS[name]
    client, other = peer5(b"client"), peer5(b"other")
    for topic_filter, options, identifier in subscriptions:
        more = {"subscription_identifier": identifier} if identifier else {}
        assert client.subscribe5((topic_filter, options), **more) == bytes((options & 3,))

    def identifiers(packets: list[Any]) -> list[Any] | None:
        if not packets:
            return None
        assert len(packets) == 1
        found = packets[0].properties.get("subscription_identifier", [])
        return sorted(found) if isinstance(found, list) else [found]

    other.publish5(b"t/1", b"x", 1)
    got = client.receive_message()
    assert got.qos == 1 and identifiers([got]) == of_others
    client.send(encoder.publish(b"t/1", b"mine", 0, properties=b"\0"))
    # The answer to the first ping may overtake the message.
    assert identifiers(client.flush() + client.flush()) == of_own


def test_subscribing_again_replaces_options_and_identifier_and_unsubscribe_ends_them(
    broker: BrokerThread, peer5: Connect5
) -> None:
    # Planted: the old subscription stays in the tree beside the new one, so the message comes with two identifiers.
    client = peer5(b"client")
    for options, identifier, expected in ((4, 1, None), (0, 2, 2), (0, 0, []), (8, 3, 3), (4, 3, None), (0, 0, [])):
        client.subscribe5((b"t", options), **({"subscription_identifier": identifier} if identifier else {}))
        client.send(encoder.publish(b"t", b"", properties=b"\0"))
        got = [one.properties.get("subscription_identifier", []) for one in client.flush() + client.flush()]
        assert got == ([] if expected is None else [expected])
        assert broker.call(lambda: broker.stats.subscriptions) == 1
    client.subscribe5((b"t", 4), subscription_identifier=3)
    client.send(encoder.unsubscribe(9, b"t", b"never", b"$share/g", properties=b"\0"))
    assert client.expect(UNSUBACK, 9).reason_codes == b"\0\x11\x11"
    assert broker.call(lambda: (broker.stats.subscriptions, broker.view.subscription_nodes)) == (0, 0)


@pytest.mark.parametrize("options", [0, AS_PUBLISHED])
def test_the_retain_flag_is_kept_where_it_is_asked_for(peer5: Connect5, options: int) -> None:
    # Planted: retain-as-published is always assumed, or ignored.
    client, other = peer5(b"client"), peer5(b"other")
    client.subscribe5((b"t", 1 | options))
    for retain in (True, False):
        other.publish5(b"t", b"x", 1, retain=retain)
        assert client.receive_message().retain is (retain and bool(options))


@pytest.mark.parametrize(("handling", "expected"), [(0, [1, 1]), (IF_NEW, [1, 0]), (NEVER, [0, 0])])
def test_retained_messages_come_as_the_subscription_asks(peer5: Connect5, handling: int, expected: list[int]) -> None:
    # Planted: IF_NEW is decided after the subscription is made.
    peer5(b"other").publish5(b"t", b"kept", 1, retain=True, **EVERYTHING)
    client = peer5(b"client")
    for count in expected:
        client.subscribe5((b"t", handling), subscription_identifier=5)
        got = client.flush()
        assert [(one.payload, one.retain, one.properties) for one in got] == [
            (b"kept", True, EVERYTHING | {"subscription_identifier": 5})
        ] * count


def test_a_retained_message_is_forgotten_when_its_time_is_over(broker: BrokerThread, peer5: Connect5) -> None:
    # Planted: the expiry of the old message applies to the one that replaced it; expiry is never checked.
    broker.call(lambda: setattr(broker.broker.context.expiry, "clock", lambda: clock[0]))
    clock = [1000.0]
    sender = peer5(b"sender")
    sender.publish5(b"a", b"old", 1, retain=True, message_expiry_interval=5)
    sender.publish5(b"a", b"new", 1, retain=True, message_expiry_interval=50)
    sender.publish5(b"b", b"", 1, retain=True)
    sender.publish5(b"b", b"five", 1, retain=True, message_expiry_interval=5)
    clock[0] = 1010.0
    client = peer5(b"client")
    client.subscribe5((b"#", 1))
    got = client.receive_message()
    assert (got.payload, got.properties) == (b"new", {"message_expiry_interval": 40})
    assert client.flush() == []
    broker.call(broker.broker.expire)
    assert broker.call(lambda: [one.topic_name for one in broker.view.retained]) == [b"a"]


@pytest.mark.parametrize("level", [4, 5])
def test_a_message_waits_as_long_as_it_may_and_says_how_long_is_left(
    broker: BrokerThread, peer5: Connect5, peer: Callable[..., Peer], level: int
) -> None:
    # Planted: the interval is passed on unchanged; expiry is kept only for subscribers of MQTT 5.
    broker.call(lambda: setattr(broker.broker.context.expiry, "clock", lambda: clock[0]))
    clock = [1000.0]
    if level == 5:
        away = peer5(b"away", session_expiry_interval=FOR_EVER)
        away.subscribe5((b"t", 1))
    else:
        away = peer(b"away", clean_session=False)
        away.subscribe(b"t", 1)
    away.disconnect()
    sender = peer5(b"sender")
    for payload, seconds in ((b"10", 10), (b"30", 30), (b"11", 11), (b"0", 0)):
        sender.publish5(b"t", payload, 1, message_expiry_interval=seconds)
    sender.publish5(b"t", b"for ever", 1)
    clock[0] = 1011.0
    back = peer5(b"away", clean=False) if level == 5 else peer(b"away", clean_session=False)
    got = [back.receive_message(), back.receive_message()]
    assert [one.payload for one in got] == [b"30", b"for ever"] and back.flush() == []
    if level == 5:
        assert [one.properties for one in got] == [{"message_expiry_interval": 19}, {}]
    assert broker.call(lambda: broker.stats.dropped_expired) == 3


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_topic_aliases_stand_for_the_name_that_came_last_with_them(peer5: Connect5, qos: int) -> None:
    # Planted: the first name is kept; the empty name is routed; the packet goes on as it came, with the alias.
    sender, client = peer5(b"sender"), peer5(b"client")
    client.subscribe5((b"#", qos))
    for topic_name, alias, expected in (
        (b"a", 1, b"a"),
        (b"b", 10, b"b"),
        (b"", 1, b"a"),
        (b"c", 1, b"c"),
        (b"", 1, b"c"),
    ):
        sender.publish5(topic_name, b"x", qos, topic_alias=alias)
        got = client.receive_message()
        assert (got.topic_name, got.properties) == (expected, {})


@pytest.mark.parametrize(("alias", "reason"), [(0, 0x94), (11, 0x94), (65535, 0x94), (3, 0x82)])
def test_an_alias_that_stands_for_nothing_ends_the_connection(peer5: Connect5, alias: int, reason: int) -> None:
    # Planted: aliases of the client's other connection are still known.
    first = peer5(b"client")
    first.publish5(b"a", b"x", 1, topic_alias=3)
    first.disconnect()
    sender = peer5(b"client")
    sender.send(encoder.publish(b"", b"x", properties=encoder.properties(topic_alias=alias)))
    assert [one.reason_codes for one in sender.wait_closed()] == [bytes((reason,))]


class _Aliases:
    """Replaces aliases by the topic names they stand for, as a client does."""

    def __init__(self) -> None:
        self.names: dict[int, bytes] = {}

    def resolve(self, packet: Any) -> tuple[bytes, bytes, dict[str, Any]]:
        properties = dict(packet.properties)
        alias = properties.pop("topic_alias", None)
        if alias is None:
            return packet.topic_name, packet.payload, properties
        if packet.topic_name:
            self.names[alias] = packet.topic_name
        return self.names[alias], packet.payload, properties


@pytest.mark.parametrize("limit", [0, 60])
def test_the_broker_uses_as_many_aliases_as_the_client_allows_and_they_end_with_the_connection(
    start_broker: StartBroker, limit: int
) -> None:
    # Planted: an alias above the maximum; aliases of the previous connection; an alias that makes a message too
    # large.
    rng, plain = random.Random(limit), encoder.properties(content_type=b"text", subscription_identifier=300)
    names = [b"t/%d" % number + b"x" * rng.randint(0, 20) for number in range(15)]
    options: dict[str, Any] = {"maximum_packet_size": limit} if limit else {}
    options["session_expiry_interval"] = 100
    broker = start_broker()
    with Peer5(broker.port) as sender:
        sender.connect5(b"sender")
        for maximum, most in ((3, 3), (65535, 10), (1, 1), (0, 0), (None, 0)):
            aliases = _Aliases()
            more = {} if maximum is None else {"topic_alias_maximum": maximum}
            with Peer5(broker.port) as client:
                client.connect5(b"client", clean=False, **options, **more)
                client.subscribe5((b"t/#", 2), subscription_identifier=300)
                for _ in range(40):
                    name, qos, payload = rng.choice([*names, b"t"]), rng.randint(0, 1), b""
                    if limit:
                        # Slightly smaller than the client accepts, or a byte larger.
                        size = limit - len(encoder.publish(name, b"", qos, 1, properties=plain))
                        payload = b"x" * (size - rng.randint(-1, 4))
                    sender.publish5(name, payload, qos, content_type=b"text")
                    if limit and len(payload) > size:
                        continue
                    got = client.receive_message()
                    properties = encoder.properties(**got.properties)
                    encoded = encoder.publish(got.topic_name, got.payload, got.qos, 1, properties=properties)
                    assert not limit or len(encoded) <= limit
                    found = {"content_type": b"text", "subscription_identifier": 300}
                    assert aliases.resolve(got) == (name, payload, found)
                    assert got.topic_name or aliases.names
                assert set(aliases.names) == set(range(1, len(aliases.names) + 1))
                assert len(aliases.names) == most or (limit and 0 < len(aliases.names) < most)
                assert b"t" not in aliases.names.values()


@pytest.mark.parametrize("reason", [0x80, 0x87, 0x97])
def test_a_pubrec_that_says_no_ends_the_message(broker: BrokerThread, peer5: Connect5, reason: int) -> None:
    # Planted: PUBREL is sent all the same; the message is kept in the window.
    client = peer5(b"client", session_expiry_interval=100, receive_maximum=1)
    client.subscribe5((b"t", 2))
    sender = peer5(b"sender")
    sender.publish5(b"t", b"1", 2)
    sender.publish5(b"t", b"2", 2)
    got = client.receive_message(acknowledge=False)
    client.send(encoder.acknowledgement(PUBREC, got.packet_id, bytes((reason,))))
    assert client.receive_message(acknowledge=False).payload == b"2"
    assert broker.call(lambda: len(broker.view.session(b"client").in_flight)) == 1


@pytest.mark.parametrize("maximum", [1, 3])
def test_no_more_is_on_the_way_than_the_client_can_receive(peer5: Connect5, maximum: int) -> None:
    # Planted: the window of the settings; a QoS 2 message leaves the window at its PUBREC.
    client = peer5(b"client", receive_maximum=maximum)
    client.subscribe5((b"t", 2))
    sender = peer5(b"sender")
    for number in range(8):
        sender.publish5(b"t", b"%d" % number, 1 + number % 2)
    came: list[Any] = []
    for number in range(8):
        # The answer to the first ping may overtake messages.
        came += [one for one in client.flush() + client.flush() if one.kind == encoder.PUBLISH]
        assert len(came) == min(8, number + maximum)
        got = came[number]
        assert got.payload == b"%d" % number
        if got.qos == 1:
            client.send(encoder.acknowledgement(PUBACK, got.packet_id))
        else:
            client.send(encoder.acknowledgement(PUBREC, got.packet_id))
            assert [one.kind for one in client.flush()] == [encoder.PUBREL]
            client.send(encoder.acknowledgement(encoder.PUBCOMP, got.packet_id))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("was_away", [False, True])
def test_what_is_larger_than_the_client_takes_is_left_out_and_counted(
    broker: BrokerThread, peer5: Connect5, qos: int, was_away: bool
) -> None:
    # Planted: a byte too many is let through; queued messages are not checked.
    limit = 2 + 2 + 1 + (2 if qos else 0) + 1 + 20
    options = {"session_expiry_interval": 100, "maximum_packet_size": limit}
    client = peer5(b"client", **options)
    client.subscribe5((b"t", 2))
    sender = peer5(b"sender")
    if was_away and qos:
        client.disconnect()
    for size in (20, 21, 19):
        sender.publish5(b"t", b"x" * size, qos)
    if was_away and qos:
        client = peer5(b"client", clean=False, **options)
    assert [len(client.receive_message().payload) for _ in range(2)] == [20, 19]
    assert client.flush() == [] or qos == 2
    assert broker.call(lambda: (broker.stats.dropped_too_large, broker.view.session(b"client").dropped)) == (1, 1)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_client_that_returns_with_a_smaller_limit_is_held_to_it(
    broker: BrokerThread, peer5: Connect5, qos: int
) -> None:
    # Planted: the broker remembers for a topic name that a subscriber takes packets of any size.
    client, sender = peer5(b"client", session_expiry_interval=100), peer5(b"sender")
    client.subscribe5((b"t", 1))
    for limit, sizes in ((0, [100, 19]), (40, [19]), (0, [100, 19])):
        client.disconnect()
        limited = {"maximum_packet_size": limit} if limit else {}
        client = peer5(b"client", clean=False, session_expiry_interval=100, **limited)
        for size in (100, 19):
            sender.publish5(b"t", b"x" * size, qos)
        assert [len(client.receive_message().payload) for _ in sizes] == sizes
        assert client.flush() == []
    assert broker.call(lambda: broker.stats.dropped_too_large) == 1


_PLAIN, _IDENTIFIED, _SELF, _LIMITED, _OLD = "plain", "identified", "no-local", "limited", "3.1.1"


@pytest.mark.parametrize("seed", range(4))
def test_subscribers_of_every_kind_get_the_same_message_each_in_its_form(
    peer5: Connect5, peer: Callable[..., Peer], seed: int
) -> None:
    """Random subscribers come and go between messages, with and without properties, from publishers of each version."""
    # Planted: those who subscribe without options get the payload of the message before; a message without properties
    # has those of the one before it in the same read; no-local counts for the first message of a read only.
    chance = random.Random(seed)
    here: dict[bytes, tuple[str, Any]] = {}
    senders = {5: peer5(b"sender"), 4: peer(b"old sender")}
    kinds = (_PLAIN, _PLAIN, _IDENTIFIED, _SELF, _LIMITED, _OLD)
    for turn in range(12):
        for number, kind in enumerate(chance.sample(kinds, 2)):
            name, qos = b"%d-%d" % (turn, number), chance.randrange(2)
            limited = {"maximum_packet_size": 60} if kind == _LIMITED else {}
            client = peer(name) if kind == _OLD else peer5(name, **limited)
            if kind == _OLD:
                client.subscribe(b"t", qos)
            else:
                identifier = {"subscription_identifier": 7} if kind == _IDENTIFIED else {}
                client.subscribe5((b"t", qos | (NO_LOCAL if kind == _SELF else 0)), **identifier)
            here[name] = kind, client
        if turn % 4 == 3:
            for name in chance.sample(sorted(here), 3):
                here.pop(name)[1].disconnect()
        source = chance.choice([4, 5, *(name for name, (kind, _) in here.items() if kind == _SELF)])
        # Three in one write, which the broker reads at once.
        batch, expected = b"", []
        for number in range(3):
            payload, with_it = b"%d %d" % (turn, number), {}
            if source != 4 and chance.randrange(2):
                with_it = EVERYTHING if chance.randrange(2) else {"content_type": b"x" * 60}
            encoded = b"" if source == 4 else encoder.properties(**with_it)
            batch += encoder.publish(b"t", payload, properties=encoded)
            expected.append((payload, with_it))
        sender = senders.get(source) or here[source][1]
        sender.send(batch)
        # Whoever has subscribed with no-local gets nothing of its own: flush() finds what does come.
        for name, (kind, client) in here.items():
            if name == source:
                continue
            wanted = [one for one in expected if kind != _LIMITED or not one[1]]
            got = [client.receive_message() for _ in wanted]
            assert [one.payload for one in got] == [payload for payload, _ in wanted], (seed, turn, name, kind)
            if kind != _OLD:
                extra = {"subscription_identifier": 7} if kind == _IDENTIFIED else {}
                assert [one.properties for one in got] == [with_it | extra for _, with_it in wanted]
        assert sender.flush() == [] and all(not client.flush() for _, client in here.values())


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_at_qos_0_that_waits_comes_in_the_form_of_the_client_that_returns(
    start_broker: StartBroker, version: int
) -> None:
    # Planted: what a publisher of MQTT 5 has sent without properties waits without their length.
    port = start_broker(queue_qos0_messages=True).port
    with Peer5(port) as away:
        away.connect5(b"away", session_expiry_interval=100)
        away.subscribe5((b"t", 0))
        away.disconnect()
    with Peer(port) as old, Peer5(port) as new:
        old.connect(b"old")
        new.connect5(b"new")
        old.publish(b"t", b"1")
        old.flush()
        new.publish5(b"t", b"2")
        new.publish5(b"t", b"3", **EVERYTHING)
        new.flush()
    with Peer5(port) if version == 5 else Peer(port) as back:
        if isinstance(back, Peer5):
            back.connect5(b"away", clean=False, session_expiry_interval=100)
        else:
            back.connect(b"away", clean_session=False)
        got: list[Any] = [back.receive_message() for _ in range(3)]
        assert version == 4 or [one.properties for one in got] == [{}, {}, EVERYTHING]
        assert [(one.topic_name, one.payload) for one in got] == [(b"t", b"1"), (b"t", b"2"), (b"t", b"3")]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_packet_goes_on_as_it_came_only_where_the_subscriber_must_get_the_same(
    peer5: Connect5, peer: Callable[..., Peer], qos: int, version: int
) -> None:
    # Planted, one by one: DUP and RETAIN are passed on; a length with more bytes than it needs is; a subscriber of the
    # other version, or at a lower QoS, gets the bytes of the publisher.
    subscribers: list[tuple[int, Peer]] = []
    for granted in (0, 1, 2):
        old, new = peer(b"old-%d" % granted), peer5(b"new-%d" % granted)
        subscribers += (granted, old), (granted, new)
        old.subscribe(b"t", granted)
        new.subscribe5((b"t", granted))
    publisher = peer(b"publisher") if version == 4 else peer5(b"publisher")
    properties = b"" if version == 4 else b"\0"
    for size in (1, 200, 20_000):
        for dup, retain, padding in itertools.product((False, True), repeat=3):
            if dup and not qos:
                continue
            packet_id = publisher.next_id()
            packet = encoder.publish(b"t", bytes(size), qos, packet_id, retain=retain, dup=dup, properties=properties)
            publisher.send(_padded(packet) if padding else packet)
            if qos == 1:
                publisher.expect(PUBACK, packet_id)
            elif qos:
                publisher.expect(PUBREC, packet_id)
                publisher.send(encoder.acknowledgement(PUBREL, packet_id))
                publisher.expect(PUBCOMP, packet_id)
            for granted, subscriber in subscribers:
                got = subscriber.receive_message()
                assert (len(got.payload), got.qos, got.retain, got.dup) == (size, min(granted, qos), False, False)
    assert not any(subscriber.flush() for _, subscriber in subscribers if qos < 2)


def _padded(packet: bytes) -> bytes:
    """Return the packet with one byte more for its remaining length."""
    last = next(at for at in range(1, 5) if packet[at] < 128)
    return packet[:last] + bytes((packet[last] | 128, 0)) + packet[last + 1 :]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_group_of_both_versions_shares_messages_each_as_its_version_has_it(
    peer5: Connect5, peer: Callable[..., Peer], qos: int
) -> None:
    # Planted: the group keeps the form for the member that came first; one member's identifier is given to another.
    name = b"$share/g/t"
    old, five, other = peer(b"old"), peer5(b"five"), peer5(b"other")
    old.subscribe(name, 2)
    five.subscribe5((name, 2), subscription_identifier=1)
    other.subscribe5((name, 2))
    sender = peer5(b"sender")
    for number in range(3):
        sender.publish5(b"t", b"%d" % number, qos, **EVERYTHING)
    got = {member: member.receive_message() for member in (old, five, other)}
    assert sorted(one.payload for one in got.values()) == [b"0", b"1", b"2"]
    assert got[five].properties == EVERYTHING | {"subscription_identifier": 1}
    assert got[other].properties == EVERYTHING


def test_what_a_member_leaves_unacknowledged_goes_to_another_with_its_properties(
    peer5: Connect5, peer: Callable[..., Peer]
) -> None:
    # Planted: a message that an old member gives back has lost them; the identifier of the departed is still there.
    name = b"$share/g/t"
    for leaver, level in ((peer(b"old"), 4), (peer5(b"five"), 5)):
        if level == 5:
            leaver.subscribe5((name, 1), subscription_identifier=8)
        else:
            leaver.subscribe(name, 1)
        heir = peer5(b"heir %d" % level, receive_maximum=1)
        heir.subscribe5((name, 1), subscription_identifier=9)
        sender = peer5(b"sender")
        for number in range(2):
            sender.publish5(b"t", b"%d" % number, 1, **EVERYTHING)
        kept = heir.receive_message(acknowledge=False)
        leaver.receive_message(acknowledge=False)
        leaver.reset()
        heir.send(encoder.acknowledgement(PUBACK, kept.packet_id))
        got = heir.receive_message()
        assert got.dup and got.payload != kept.payload
        assert got.properties == EVERYTHING | {"subscription_identifier": 9}
        heir.disconnect()


@pytest.mark.parametrize(
    ("waits", "store", "qos"),
    [
        *(("no", store, qos) for store in (":memory:", "broker.db") for qos in (0, 1, 2)),
        *(("for the member", store, qos) for store in (":memory:", "broker.db") for qos in (1, 2)),
        *((waits, "broker.db", qos) for waits in ("over a restart", "again, over a restart") for qos in (1, 2)),
    ],
)
def test_each_member_of_a_group_sees_the_retain_flag_as_it_subscribed(
    tmp_path: Path, waits: str, store: str, qos: int
) -> None:
    # Planted: the group's messages never have the flag, or for all members; a message at QoS 2 is recorded without it.
    path = store if store == ":memory:" else str(tmp_path / store)
    settings: dict[str, Any] = {"session_expiry_interval": 1000}
    for options, expected in ((2, False), (2 | AS_PUBLISHED, True)):
        with BrokerThread(BrokerConfig(port=0, store=path)) as broker:
            with Peer5(broker.port) as member, Peer5(broker.port) as writer:
                member.connect5(b"member", **settings)
                member.subscribe5((b"$share/g/t", options))
                if waits in ("for the member", "over a restart"):
                    member.disconnect()
                writer.connect5(b"writer")
                writer.publish5(b"t", b"retained", qos, retain=True)
                writer.publish5(b"t", b"other", qos)
                if waits == "no":
                    assert _flags_seen(member, qos) == [expected, False]
                elif waits == "again, over a restart":
                    assert [member.receive_message(acknowledge=False).retain for _ in range(2)] == [expected, False]
            if waits == "for the member":
                with Peer5(broker.port) as member:
                    member.connect5(b"member", clean=False, **settings)
                    assert _flags_seen(member, qos) == [expected, False]
        if "restart" in waits:
            with BrokerThread(BrokerConfig(port=0, store=path)) as broker, Peer5(broker.port) as member:
                member.connect5(b"member", clean=False, **settings)
                assert _flags_seen(member, qos) == [expected, False]


def _flags_seen(member: Peer5, qos: int) -> list[bool]:
    """Return the retain flags of two messages that come at this QoS."""
    seen = []
    for _ in range(2):
        got = member.receive_message()
        assert got.qos == qos
        seen.append(got.retain)
    return seen


def test_a_group_shows_the_retain_flag_as_mosquitto_does(start_broker: StartBroker, tmp_path: Path) -> None:
    # Planted: as above.
    seen = []
    with Mosquitto(tmp_path, "allow_anonymous true") as mosquitto:
        for port in (start_broker().port, mosquitto.port):
            with Peer5(port) as member, Peer5(port) as writer:
                member.connect5(b"member")
                writer.connect5(b"writer")
                member.subscribe5((b"$share/g/x", 1 | AS_PUBLISHED), (b"$share/h/x", 1))
                writer.send(encoder.publish(b"x", b"m", 1, 1, retain=True, properties=b"\0"))
                seen.append(sorted(member.receive_message().retain for _ in range(2)))
    assert seen == [[False, True]] * 2
