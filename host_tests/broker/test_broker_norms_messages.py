"""What MQTT 3.1.1 demands of a server about messages, subscriptions and topics (index: docs/broker-conformance.md)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from broker_peer import BrokerThread, Peer
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, UNSUBACK

MakePeer = Callable[..., Peer]


def unsubscribe_packet(packet_id: int, *topic_filters: bytes) -> bytes:
    return encoder.unsubscribe(packet_id, *topic_filters)


# Messages


def test_dup_of_an_incoming_message_is_not_handed_on(peer: MakePeer) -> None:
    subscriber, publisher = peer(b"subscriber"), peer(b"publisher")
    subscriber.subscribe(b"a", 2)
    for qos in (1, 2):
        publisher.send(encoder.publish(b"a", b"%d" % qos, qos, qos, dup=True))
        message = subscriber.receive_message()
        assert (message.payload, message.qos, message.dup) == (b"%d" % qos, qos, False)


def test_each_qos_has_its_answer_with_the_packet_identifier_of_the_message(peer: MakePeer) -> None:
    publisher = peer(b"publisher")
    publisher.send(encoder.publish(b"a", b"") + encoder.publish(b"a", b"", 1, 513) + encoder.publish(b"a", b"", 2, 514))
    assert [(each.kind, each.packet_id) for each in publisher.flush()] == [(PUBACK, 513), (PUBREC, 514)]
    publisher.send(encoder.acknowledgement(PUBREL, 514))
    assert publisher.expect(PUBCOMP, 514).body == (514).to_bytes(2, "big")


def test_after_puback_the_same_packet_identifier_is_a_new_message_even_with_dup(peer: MakePeer) -> None:
    subscriber, publisher = peer(b"subscriber"), peer(b"publisher")
    subscriber.subscribe(b"a", 0)
    for payload, dup in ((b"1", False), (b"2", False), (b"3", True)):
        publisher.send(encoder.publish(b"a", payload, 1, 7, dup=dup))
        publisher.expect(PUBACK, 7)
    assert [each.payload for each in subscriber.flush()] == [b"1", b"2", b"3"]


def test_answers_at_qos_2_leave_in_the_order_of_what_they_answer(peer: MakePeer) -> None:
    subscriber, publisher = peer(b"subscriber", clean_session=False), peer(b"publisher")
    subscriber.subscribe(b"a", 2)
    ids = [5, 3, 9, 1]
    publisher.send(b"".join(encoder.publish(b"a", b"%d" % each, 2, each) for each in ids))
    assert [publisher.expect(PUBREC).packet_id for _ in ids] == ids
    publisher.send(b"".join(encoder.acknowledgement(PUBREL, each) for each in reversed(ids)))
    assert [publisher.expect(PUBCOMP).packet_id for _ in ids] == ids[::-1]
    sent = [subscriber.expect(PUBLISH).packet_id for _ in ids]
    order = [sent[2], sent[0], sent[3], sent[1]]
    subscriber.send(b"".join(encoder.acknowledgement(PUBREC, each) for each in order))
    assert [subscriber.expect(PUBREL).packet_id for _ in ids] == order


def test_messages_of_one_topic_keep_their_order_at_every_qos(peer: MakePeer) -> None:
    subscriber, publisher = peer(b"subscriber"), peer(b"publisher")
    subscriber.subscribe(b"a", 2)
    batch = b"".join(encoder.publish(b"a", b"%d" % each, each % 3, each) for each in range(1, 100))
    publisher.send(batch)
    received = [subscriber.receive_message() for _ in range(99)]
    for qos in range(3):
        assert [int(each.payload) for each in received if each.qos == qos] == [
            each for each in range(1, 100) if each % 3 == qos
        ]


# Retained messages


@pytest.mark.parametrize("before", [1, 2])
def test_a_retained_message_at_qos_0_takes_the_place_of_the_one_before(peer: MakePeer, before: int) -> None:
    publisher, late = peer(b"publisher"), peer(b"late")
    publisher.publish(b"state", b"old", before, retain=True)
    publisher.publish(b"state", b"new", 0, retain=True)
    late.subscribe(b"state", 2)
    assert [(each.payload, each.qos, each.retain) for each in late.flush()] == [(b"new", 0, True)]


def test_a_message_without_the_retain_flag_leaves_the_retained_one_alone(peer: MakePeer) -> None:
    publisher, late = peer(b"publisher"), peer(b"late")
    publisher.publish(b"state", b"kept", 1, retain=True)
    for payload in (b"passing", b""):
        publisher.publish(b"state", payload, 1)
        publisher.publish(b"never/retained", payload, 1)
    late.subscribe(b"#", 0)
    assert [(each.topic_name, each.payload) for each in late.flush()] == [(b"state", b"kept")]


def test_an_empty_retained_message_is_delivered_removes_and_is_not_kept(broker: BrokerThread, peer: MakePeer) -> None:
    publisher, live = peer(b"publisher"), peer(b"live")
    publisher.publish(b"state", b"old", 1, retain=True)
    live.subscribe(b"state", 0)
    assert live.receive_message().retain
    publisher.publish(b"state", b"", 1, retain=True)
    message = live.receive_message()
    assert (message.payload, message.retain) == (b"", False)
    late = peer(b"late")
    late.subscribe(b"#", 0)
    assert late.flush() == []
    assert broker.call(lambda: broker.view.retained) == []


def test_subscribing_again_sends_the_retained_message_again_and_interrupts_nothing(peer: MakePeer) -> None:
    publisher, subscriber = peer(b"publisher"), peer(b"subscriber", clean_session=False)
    publisher.publish(b"state", b"kept", 1, retain=True)
    subscriber.subscribe(b"state", 1)
    first = subscriber.receive_message(acknowledge=False)
    assert subscriber.subscribe(b"state", 1) == 1
    again = subscriber.receive_message(acknowledge=False)
    assert (again.payload, again.retain, again.packet_id != first.packet_id) == (b"kept", True, True)
    publisher.publish(b"state", b"live", 1)
    assert subscriber.receive_message().payload == b"live"


# Subscriptions


def test_one_subscribe_with_many_filters_is_as_many_subscriptions_and_one_suback(peer: MakePeer) -> None:
    publisher, subscriber = peer(b"publisher"), peer(b"subscriber")
    for name in (b"a", b"b"):
        publisher.publish(name, name, 1, retain=True)
    subscriber.send(encoder.subscribe(77, (b"a", 0), (b"b", 1), (b"a", 1), (b"c", 2)))
    assert subscriber.expect(SUBACK).body == b"\0\x4d\0\1\1\2"
    # As if they had come one after the other: `a` twice, the second time with another QoS.
    assert sorted((each.payload, each.qos) for each in subscriber.flush()) == [(b"a", 0), (b"a", 1), (b"b", 1)]


@pytest.mark.parametrize(
    "body",
    [
        encoder.string(b"\xff") + b"\0",
        encoder.string(b"a\0") + b"\0",
        encoder.string(b"") + b"\0",
        encoder.string(b"a") + b"\x04",
        encoder.string(b"a") + b"\x81",
        b"\0\5a\0",
    ],
    ids=["not UTF-8", "NUL", "empty", "reserved bit 2", "reserved bit 7", "cut short"],
)
def test_a_subscribe_that_is_not_as_it_must_be_closes_the_connection(peer: MakePeer, body: bytes) -> None:
    client = peer(b"client")
    client.send(encoder.encode(0x82, b"\0\1" + body))
    assert client.wait_closed() == []


@pytest.mark.parametrize(
    "packet",
    [encoder.unsubscribe(1, b"\xff"), encoder.unsubscribe(0, b"a"), encoder.encode(0xA2, b"\0\1\0\5a")]
    + [encoder.encode(0xA0 | flags, b"\0\1" + encoder.string(b"a")) for flags in range(16) if flags != 2],
)
def test_an_unsubscribe_that_is_not_as_it_must_be_closes_the_connection(peer: MakePeer, packet: bytes) -> None:
    client = peer(b"client")
    client.send(packet)
    assert client.wait_closed() == []


def test_unsubscribe_compares_filters_byte_for_byte_and_is_always_answered(peer: MakePeer) -> None:
    publisher, client = peer(b"publisher"), peer(b"client")
    for name in (b"a/+", b"A/b"):
        client.subscribe(name, 0)
    for packet_id, name in ((10, b"a/b"), (11, b"a/#"), (12, b"#"), (13, b"A/+")):
        client.send(unsubscribe_packet(packet_id, name))
        assert client.expect(UNSUBACK).body == packet_id.to_bytes(2, "big")
    publisher.publish(b"a/b", b"1")
    publisher.publish(b"A/b", b"2")
    assert [each.payload for each in client.flush()] == [b"1", b"2"]


def test_one_unsubscribe_with_many_filters_ends_them_all_and_has_one_answer(peer: MakePeer) -> None:
    publisher, client = peer(b"publisher"), peer(b"client")
    for name in (b"a", b"b", b"c"):
        client.subscribe(name, 1)
    client.send(unsubscribe_packet(300, b"a", b"c", b"a"))
    assert [(each.kind, each.packet_id) for each in client.flush()] == [(UNSUBACK, 300)]
    for name in (b"a", b"b", b"c"):
        publisher.publish(name, name, 1)
    assert [each.payload for each in client.flush()] == [b"b"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_before_an_unsubscribe_is_completed_after_it(peer: MakePeer, qos: int) -> None:
    publisher, client = peer(b"publisher"), peer(b"client", clean_session=False)
    client.subscribe(b"a", qos)
    publisher.publish(b"a", b"begun", qos)
    begun = client.receive_message(acknowledge=False)
    client.send(unsubscribe_packet(9, b"a"))
    client.expect(UNSUBACK, 9)
    publisher.publish(b"a", b"late", qos)
    client.reset()
    client = peer(b"client", clean_session=False)
    again = client.receive_message()
    assert (again.payload, again.packet_id, again.dup) == (b"begun", begun.packet_id, True)
    if qos == 2:
        client.expect(PUBREL, begun.packet_id)
        client.send(encoder.acknowledgement(PUBCOMP, begun.packet_id))
    assert client.flush() == []


# Topics


def test_topics_are_neither_normalised_nor_folded(peer: MakePeer) -> None:
    client, publisher = peer(b"client"), peer(b"publisher")
    names = [
        "ACCOUNTS",
        "Accounts",
        "\u00e9",
        "e\u0301",
        "a",
        "a/",
        "/a",
        "a//b",
        "a/ /b",
        "\ufffd",
        "\U0001f680",
        "\u00ad",
    ]
    for name in names:
        assert client.subscribe(name.encode(), 0) == 0
    for name in names:
        publisher.publish(name.encode(), name.encode(), 1)
    assert [(each.topic_name.decode(), each.payload.decode()) for each in client.flush()] == [
        (name, name) for name in names
    ]


def test_topic_names_and_filters_may_have_65535_bytes(peer: MakePeer) -> None:
    client = peer(b"client")
    name = b"a/" * 200 + b"b" * 65_135
    assert len(name) == 65535
    assert client.subscribe(name, 1) == 1
    client.send(encoder.publish(name, b"x", 0))
    assert client.receive_message().topic_name == name


@pytest.mark.parametrize(
    ("topic_filter", "matched", "not_matched"),
    [
        (b"sport/tennis/player1/#", [b"sport/tennis/player1", b"sport/tennis/player1/score/x"], [b"sport/tennis"]),
        (b"sport/#", [b"sport"], [b"sports"]),
        (b"sport/+", [b"sport/"], [b"sport", b"sport/a/b"]),
        (b"+/+", [b"/finance"], [b"finance", b"a/b/c"]),
        (b"/+", [b"/finance"], [b"finance"]),
        (b"+", [b"finance"], [b"/finance"]),
        (b"+/monitor/Clients", [b"a/monitor/Clients"], [b"$own/monitor/Clients"]),
        (b"$own/#", [b"$own", b"$own/x"], [b"own"]),
        (b"#", [b"a", b"/", b"a/$own"], [b"$own"]),
    ],
)
def test_wildcards_match_as_the_examples_of_the_specification_do(
    start_broker, topic_filter: bytes, matched: list[bytes], not_matched: list[bytes]
) -> None:
    broker = start_broker()
    with Peer(broker.port) as client, Peer(broker.port) as publisher:
        client.connect(b"client")
        publisher.connect(b"publisher")
        client.subscribe(topic_filter, 0)
        for name in (*matched, *not_matched):
            publisher.publish(name, b"", 1)
        assert [each.topic_name for each in client.flush()] == matched


def test_a_copy_of_a_message_at_qos_2_is_checked_like_any_other(peer: MakePeer) -> None:
    publisher = peer(b"publisher")
    publisher.publish(b"a", b"x", 1)
    publisher.send(encoder.publish(b"a", b"x", 2, 9))
    publisher.expect(PUBREC, 9)
    publisher.send(encoder.publish(b"\xff", b"x", 2, 9, dup=True))
    assert publisher.wait_closed() == []
