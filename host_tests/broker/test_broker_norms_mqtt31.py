"""MQTT 3.1 where it differs from 3.1.1: the protocol's name, CONNACK, and DUP on more packets than PUBLISH."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker_peer import BrokerThread, Peer
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PUBCOMP, PUBREC, PUBREL, SUBACK, UNSUBACK


@pytest.fixture
def connect(broker: BrokerThread) -> Iterator:
    """Provide connect(client_id, clean_session=…, will=…), which connects peers that speak 3.1."""
    peers: list[Peer] = []

    def connect(client_id: bytes, **options) -> Peer:
        peer = Peer(broker.port)
        peers.append(peer)
        peer.send(encoder.connect(client_id, level=3, **options))
        assert peer.expect(CONNACK).body == b"\0\0"
        return peer

    yield connect
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_pass_at_every_qos_and_wait_for_a_session_that_is_kept(connect, qos: int) -> None:
    subscriber, publisher = connect(b"subscriber", clean_session=False), connect(b"publisher")
    subscriber.subscribe(b"a/+", qos)
    publisher.publish(b"a/b", b"1", qos)
    message = subscriber.receive_message()
    assert (message.payload, message.qos) == (b"1", qos)
    if qos == 2:
        subscriber.expect(PUBREL, message.packet_id)
        subscriber.send(encoder.acknowledgement(PUBCOMP, message.packet_id))
    subscriber.disconnect()
    publisher.publish(b"a/b", b"2", qos)
    subscriber = connect(b"subscriber", clean_session=False)
    if qos:
        assert subscriber.receive_message().payload == b"2"
    else:
        assert subscriber.flush() == []


def test_a_will_is_published(connect) -> None:
    watcher = connect(b"watcher")
    watcher.subscribe(b"will", 0)
    connect(b"client", will=(b"will", b"gone", 0, False)).reset()
    assert watcher.receive_message().payload == b"gone"


def test_an_empty_client_identifier_is_refused(broker: BrokerThread) -> None:
    with Peer(broker.port) as peer:
        peer.send(encoder.connect(b"", level=3))
        assert peer.expect(CONNACK).body == b"\0\x02"
        assert peer.wait_closed() == []


@pytest.mark.parametrize(
    "connect_bytes",
    [
        encoder.connect(b"x", level=3).replace(b"MQIsdp\x03", b"MQIsdp\x04"),
        encoder.connect(b"x").replace(b"MQTT\x04", b"MQTT\x03"),
    ],
    ids=["MQIsdp 4", "MQTT 3"],
)
def test_a_level_that_does_not_belong_to_the_name_is_refused(broker: BrokerThread, connect_bytes: bytes) -> None:
    with Peer(broker.port) as peer:
        peer.send(connect_bytes)
        assert peer.expect(CONNACK).body == b"\0\x01"
        assert peer.wait_closed() == []


def test_the_unused_flag_of_connect_is_ignored(broker: BrokerThread) -> None:
    with Peer(broker.port) as peer:
        peer.send(encoder.connect(b"x", level=3).replace(b"MQIsdp\x03\x02", b"MQIsdp\x03\x03"))
        assert peer.expect(CONNACK).body == b"\0\0"


def test_subscribe_unsubscribe_and_pubrel_may_carry_dup(connect) -> None:
    client = connect(b"client")
    for dup in (0, 8):
        client.send(bytes((0x82 | dup,)) + encoder.subscribe(1, (b"a", 2))[1:])
        assert client.expect(SUBACK).body == b"\0\1\2"
    client.send(encoder.publish(b"b", b"", 2, 7))
    client.expect(PUBREC, 7)
    for dup in (0, 8):
        client.send(bytes((0x62 | dup,)) + encoder.acknowledgement(PUBREL, 7)[1:])
        client.expect(PUBCOMP, 7)
    for dup in (0, 8):
        client.send(encoder.encode(0xA2 | dup, b"\0\x02" + encoder.string(b"a")))
        client.expect(UNSUBACK, 2)
