"""Who gets what, once, at which QoS: subscriptions, retained messages, wills, keep-alive. On both stores."""

import asyncio
from collections.abc import Callable

import pytest
from broker_peer import BrokerThread, Peer
from broker_wire import Transport
from umqtt_broker import Broker, BrokerConfig, Permission
from umqtt_broker.access.permission import Rights
from umqtt_broker.clients.connection import Connection
from umqtt_broker.core.timers import RESOLUTION
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, UNSUBACK
from umqtt_testkit.virtual_time import run

MakePeer = Callable[..., Peer]


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_a_message_comes_once_at_the_lower_qos(peer: MakePeer, published: int, subscribed: int) -> None:
    subscriber, publisher = peer(b"subscriber"), peer(b"publisher")
    assert subscriber.subscribe(b"a/b", subscribed) == subscribed
    publisher.publish(b"a/b", b"payload", published)
    message = subscriber.receive_message()
    assert (message.topic_name, message.payload) == (b"a/b", b"payload")
    assert (message.qos, message.retain, message.dup) == (min(published, subscribed), False, False)
    if message.qos == 2:
        subscriber.send(encoder.acknowledgement(PUBCOMP, subscriber.expect(PUBREL, message.packet_id).packet_id))
    assert subscriber.flush() == []


def test_overlapping_filters_give_one_message_at_the_highest_qos(peer: MakePeer) -> None:
    subscriber, publisher = peer(b"subscriber"), peer(b"publisher")
    for topic_filter, qos in ((b"a/#", 0), (b"a/+", 2), (b"a/b", 1), (b"#", 0)):
        subscriber.subscribe(topic_filter, qos)
    publisher.publish(b"a/b", b"x", 2)
    assert subscriber.receive_message(acknowledge=False).qos == 2
    assert subscriber.flush() == []


def test_a_second_subscribe_replaces_the_first_and_unsubscribe_ends_it(broker: BrokerThread, peer: MakePeer) -> None:
    subscriber, publisher = peer(b"subscriber"), peer(b"publisher")
    subscriber.subscribe(b"a", 2)
    subscriber.subscribe(b"a", 0)
    publisher.publish(b"a", b"1", 1)
    assert [packet.qos for packet in subscriber.flush()] == [0]
    subscriber.send(encoder.unsubscribe(7, b"a", b"never/subscribed"))
    subscriber.expect(UNSUBACK, 7)
    publisher.publish(b"a", b"2", 1)
    assert subscriber.flush() == []
    assert broker.call(lambda: broker.stats.subscriptions) == 0
    assert broker.call(lambda: broker.view.subscription_nodes) == 0


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/+", b"#"])
def test_a_subscription_counts_from_its_suback_to_its_unsuback_on_a_topic_already_in_use(
    peer: MakePeer, topic_filter: bytes
) -> None:
    subscriber, publisher = peer(b"subscriber"), peer(b"publisher")
    publisher.publish(b"a/b", b"before", 1)
    subscriber.subscribe(topic_filter, 0)
    publisher.publish(b"a/b", b"during", 1)
    subscriber.send(encoder.unsubscribe(7, topic_filter))
    assert subscriber.receive_message().payload == b"during"
    subscriber.expect(UNSUBACK, 7)
    publisher.publish(b"a/b", b"after", 1)
    assert subscriber.flush() == []


def test_wildcards_do_not_reach_dollar_topics(peer: MakePeer) -> None:
    wild, plain, publisher = peer(b"wild"), peer(b"plain"), peer(b"publisher")
    for topic_filter in (b"#", b"+/x"):
        wild.subscribe(topic_filter, 1)
    plain.subscribe(b"$own/#", 1)
    publisher.publish(b"$own/x", b"1", 1)
    assert wild.flush() == []
    assert plain.receive_message().topic_name == b"$own/x"


def test_one_subscribe_answers_each_filter_in_order(peer: MakePeer) -> None:
    subscriber = peer(b"subscriber")
    subscriber.send(encoder.subscribe(9, (b"a", 2), (b"b", 0), (b"c/#", 1)))
    assert subscriber.receive().body == b"\0\x09\x02\x00\x01"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_messages_greet_new_subscribers_behind_the_suback(peer: MakePeer, qos: int) -> None:
    live, publisher = peer(b"live"), peer(b"publisher")
    live.subscribe(b"state/#", 0)
    publisher.publish(b"state/1", b"old", qos, retain=True)
    publisher.publish(b"state/1", b"new", qos, retain=True)
    publisher.publish(b"state/2", b"gone", qos, retain=True)
    publisher.publish(b"state/2", b"", qos, retain=True)
    assert [packet.retain for packet in live.flush()] == [False] * 4
    late = peer(b"late", clean_session=False)
    late.subscribe(b"state/+", 2)
    message = late.receive_message()
    assert (message.payload, message.retain, message.qos) == (b"new", True, qos)
    late.flush()
    late.subscribe(b"state/+", 0)
    message = late.receive_message()
    assert (message.payload, message.retain, message.qos) == (b"new", True, 0)
    assert late.flush() == []


@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_published_when_the_connection_drops_and_not_after_disconnect(peer: MakePeer, retain: bool) -> None:
    watcher = peer(b"watcher")
    watcher.subscribe(b"will/#", 1)
    will = b"will/device", b"gone", 1, retain
    peer(b"polite", will=will).disconnect()
    assert watcher.flush() == []
    peer(b"dropped", will=will).reset()
    assert watcher.receive_message().payload == b"gone"
    peer(b"malformed", will=will).send(b"\xff\x00")
    assert watcher.receive_message().payload == b"gone"
    peer(b"taken-over", will=will)
    peer(b"taken-over")
    assert watcher.receive_message().payload == b"gone"
    late = peer(b"late")
    late.subscribe(b"will/#", 1)
    assert len(late.flush()) == retain


def test_a_silent_client_is_closed_after_one_and_a_half_keep_alives_and_one_that_pings_is_not() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with Broker(BrokerConfig(port=0, sys_interval=0)) as broker:
            pinging, silent = [Connection(broker, broker.config.all_listeners()[0]) for _ in range(2)]
            heard, closed = Transport(), Transport()
            pinging.connection_made(heard)
            silent.connection_made(closed)
            pinging.data_received(encoder.connect(b"pinging", keep_alive=10) + encoder.subscribe(1, (b"will", 0)))
            silent.data_received(encoder.connect(b"silent", keep_alive=10, will=(b"will", b"silent", 0, False)))
            began = loop.time()
            heard.written.clear()
            while not closed.closed:
                await asyncio.sleep(0.5)
                pinging.data_received(encoder.pingreq())
            assert 15 <= loop.time() - began <= 15 + RESOLUTION + 0.5
            assert heard.written.replace(b"\xd0\0", b"") == encoder.publish(b"will", b"silent")
            assert broker.stats.keep_alive_timeouts == 1
            # As rarely as allowed.
            for _ in range(10):
                await asyncio.sleep(14.9)
                pinging.data_received(encoder.pingreq())
            assert not heard.closed
            await asyncio.sleep(15 + RESOLUTION)
            assert heard.closed and broker.stats.keep_alive_timeouts == 2
            for connection in (pinging, silent):
                connection.connection_lost(None)

    run(scenario())


def test_a_client_without_an_identifier_gets_one_only_with_a_clean_session(broker: BrokerThread) -> None:
    with Peer(broker.port) as first, Peer(broker.port) as second, Peer(broker.port) as refused:
        assert first.connect(b"") is False
        assert second.connect(b"") is False
        assert first.flush() == []  # the second one did not take over
        refused.send(encoder.connect(b"", clean_session=False))
        assert refused.expect(CONNACK).body == b"\0\x02"
        assert refused.wait_closed() == []


def test_an_unknown_protocol_level_is_refused_with_return_code_1(broker: BrokerThread) -> None:
    with Peer(broker.port) as peer:
        peer.send(encoder.connect(b"five", level=4).replace(b"MQTT\x04", b"MQTT\x06"))
        assert peer.expect(CONNACK).body == b"\0\x01"
        assert peer.wait_closed() == []


def test_a_denied_subscription_answers_0x80_and_a_denied_message_reaches_nobody(start_broker) -> None:
    class Few(Rights):
        def may_publish(self, topic_name: bytes) -> bool:
            return topic_name != b"secret"

        def grant(self, topic_filter: bytes, qos: int) -> int:
            return 0x80 if topic_filter == b"denied" else qos

    class Deny(Permission):
        def connect(self, packet, peer) -> int:
            return 5 if packet.client_id == b"stranger" else 0

        def rights(self, client_id: bytes, username: bytes | None) -> Rights:
            return Few()

    broker = start_broker(permission=Deny())
    with Peer(broker.port) as peer, Peer(broker.port) as stranger:
        peer.connect(b"peer")
        assert peer.subscribe(b"denied", 1) == 0x80
        assert peer.subscribe(b"#", 1) == 1
        peer.send(encoder.publish(b"secret", b"1", 1, 5) + encoder.publish(b"secret", b"2", 2, 6))
        assert {(packet.kind, packet.packet_id) for packet in peer.flush()} == {(PUBACK, 5), (PUBREC, 6)}
        assert broker.call(lambda: broker.stats.denied) == 2
        stranger.send(encoder.connect(b"stranger"))
        assert stranger.expect(CONNACK).body == b"\0\x05"
        assert stranger.wait_closed() == []


def test_an_incoming_qos_2_message_is_routed_once_however_often_it_is_sent(peer: MakePeer) -> None:
    watcher, publisher = peer(b"watcher"), peer(b"publisher", clean_session=False)
    watcher.subscribe(b"a", 0)
    for dup in (False, True, True):
        publisher.send(encoder.publish(b"a", b"once", 2, 7, dup=dup))
        publisher.expect(PUBREC, 7)
    publisher.close()
    publisher = peer(b"publisher", clean_session=False)
    assert publisher.session_present
    publisher.send(encoder.publish(b"a", b"once", 2, 7, dup=True))
    publisher.expect(PUBREC, 7)
    for _ in range(2):  # the second time as if the first PUBCOMP were lost
        publisher.send(encoder.acknowledgement(PUBREL, 7))
        publisher.expect(PUBCOMP, 7)
    publisher.send(encoder.publish(b"a", b"twice", 2, 7))
    publisher.expect(PUBREC, 7)
    assert [packet.payload for packet in watcher.flush()] == [b"once", b"twice"]


def test_acknowledgements_leave_in_the_order_of_their_messages(peer: MakePeer) -> None:
    keeper, publisher = peer(b"keeper", clean_session=False), peer(b"publisher")
    keeper.subscribe(b"kept", 1)
    batch = b"".join(
        encoder.publish(b"kept" if number % 3 else b"free", b"%d" % number, 1, number) for number in range(1, 200)
    )
    publisher.send(batch)
    assert [publisher.expect(PUBACK).packet_id for _ in range(1, 200)] == list(range(1, 200))
    received = [int(keeper.expect(PUBLISH).payload) for _ in range(133)]
    assert received == [number for number in range(1, 200) if number % 3]
