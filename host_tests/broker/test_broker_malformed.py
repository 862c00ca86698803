"""Broken packets: the connection is closed and counted, nothing is left behind, nobody else notices."""

import logging
import random

import pytest
from broker_peer import (
    CONNACK,
    PUBREL,
    BrokerThread,
    Peer,
    ack_packet,
    connect_packet,
    encode,
    publish_packet,
    subscribe_packet,
    text,
)

WILL = b"will", b"payload", 1, True
VALID = {
    "PUBLISH QoS 0": publish_packet(b"a/b", b""),
    "PUBLISH QoS 1": publish_packet(b"a/b", b"", 1, 7),
    "PUBLISH QoS 2": publish_packet(b"a/b", b"", 2, 8),
    "PUBACK": ack_packet(4, 9),
    "PUBREC": ack_packet(5, 9),
    "PUBREL": ack_packet(6, 9),
    "PUBCOMP": ack_packet(7, 9),
    "SUBSCRIBE": subscribe_packet(10, (b"a/+", 1), (b"#", 2)),
    "UNSUBSCRIBE": encode(0xA2, b"\0\x0b" + text(b"a/+") + text(b"#")),
}

BROKEN = {
    "remaining length of five bytes": b"\x30\xff\xff\xff\xff\x01",
    "packet larger than allowed": b"\x30\xff\xff\xff\x7f",
    "PUBLISH QoS 3": b"\x36\x06\0\x01a\0\x01x",
    "PUBLISH DUP with QoS 0": b"\x38\x03\0\x01a",
    "PUBLISH packet identifier 0": publish_packet(b"a", b"", 1, 0),
    "PUBLISH empty topic name": publish_packet(b"", b"x"),
    "PUBLISH wildcard": publish_packet(b"a/+", b"x"),
    "PUBLISH NUL": publish_packet(b"a\0b", b"x"),
    "PUBLISH UTF-8": publish_packet(b"\xff", b"x"),
    "PUBLISH surrogate": publish_packet(b"\xed\xa0\x80", b"x"),
    "PUBREL flags": b"\x60\x02\0\x01",
    "PUBACK flags": b"\x41\x02\0\x01",
    "SUBSCRIBE flags": b"\x80" + subscribe_packet(1, (b"a", 0))[1:],
    "SUBSCRIBE without filters": b"\x82\x02\0\x01",
    "SUBSCRIBE QoS 3": subscribe_packet(1, (b"a", 3)),
    "SUBSCRIBE packet identifier 0": subscribe_packet(0, (b"a", 0)),
    "SUBSCRIBE bad filter": subscribe_packet(1, (b"a/#/b", 0)),
    "UNSUBSCRIBE without filters": b"\xa2\x02\0\x01",
    "UNSUBSCRIBE flags": b"\xa0\x05\0\x01\0\x01a",
    "PINGREQ with a body": b"\xc0\x01x",
    "DISCONNECT with a body": b"\xe0\x01x",
    "second CONNECT": connect_packet(b"again"),
    "CONNACK from a client": b"\x20\x02\0\0",
    "SUBACK from a client": b"\x90\x03\0\x01\0",
    "PINGRESP from a client": b"\xd0\0",
    "reserved type 0": b"\0\0",
    "reserved type 15": b"\xf0\0",
}

BROKEN_CONNECT = {
    "not MQTT at all": b"GET / HTTP/1.1\r\n\r\n",
    "protocol name": connect_packet(b"x").replace(b"MQTT", b"MQTX"),
    "reserved flag": connect_packet(b"x").replace(b"MQTT\x04\x02", b"MQTT\x04\x03"),
    "will QoS 3": connect_packet(b"x", will=(b"w", b"", 3, False)),
    "will QoS without will": connect_packet(b"x").replace(b"MQTT\x04\x02", b"MQTT\x04\x0a"),
    "will retain without will": connect_packet(b"x").replace(b"MQTT\x04\x02", b"MQTT\x04\x22"),
    "password without user name": encode(0x10, b"\0\x04MQTT\x04\x42\0\0\0\x01x\0\x01p"),
    "will topic with wildcard": connect_packet(b"x", will=(b"w/#", b"", 0, False)),
    "client identifier not UTF-8": connect_packet(b"\xc3\x28"),
    "longer than its fields": encode(0x10, connect_packet(b"x")[2:] + b"y"),
    "flags": b"\x11" + connect_packet(b"x")[1:],
    "larger than any CONNECT": b"\x10\xff\xff\xff\x7f",
    "PUBLISH first": publish_packet(b"a", b""),
    "PINGREQ first": b"\xc0\0",
}


def assert_nothing_is_left(broker: BrokerThread) -> None:
    """No connection, session, subscription or message survives the clean sessions of these tests."""
    broker.wait_until(lambda: broker.broker.stats.connections == 0)
    stats = broker.call(broker.broker.stats.as_dict)
    assert (stats["sessions"], stats["subscriptions"], stats["queued"]) == (0, 0, 0)
    assert broker.call(lambda: broker.broker.router.subscriptions.node_count()) == 0
    assert broker.call(lambda: broker.broker.router.dirty) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_packet_closes_its_connection_and_is_counted(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with caplog.at_level(logging.DEBUG), Peer(broker.port) as bystander:
        bystander.connect(b"bystander")
        with Peer(broker.port) as peer:
            peer.connect(b"broken")
            peer.send(BROKEN[name])
            assert peer.wait_closed() == []
        assert sum(broker.call(lambda: broker.broker.stats.malformed).values()) == 1
        assert bystander.flush() == []
    assert_nothing_is_left(broker)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("name", BROKEN_CONNECT)
def test_a_broken_connect_is_closed_without_connack_and_counted(start_broker, name: str) -> None:
    broker = start_broker()
    with Peer(broker.port) as peer:
        peer.send(BROKEN_CONNECT[name])
        assert peer.wait_closed() == []
    assert sum(broker.call(lambda: broker.broker.stats.malformed).values()) == 1
    assert_nothing_is_left(broker)


@pytest.mark.parametrize("name", VALID)
def test_a_packet_cut_short_anywhere_closes_its_connection(start_broker, name: str) -> None:
    """Cut inside the body, with a remaining length that says so: never taken for a whole packet."""
    broker = start_broker()
    packet = VALID[name]
    for size in range(2, len(packet)):
        with Peer(broker.port) as peer:
            peer.connect(b"cut")
            cut = encode(packet[0], packet[2:size])
            peer.send(cut)
            if (name == "UNSUBSCRIBE" and size == 2 + 2 + 5) or (name == "SUBSCRIBE" and size == 2 + 2 + 6):
                peer.receive()  # cut between two filters: shorter, and whole
                continue
            assert peer.wait_closed() == [], (name, size)
    assert_nothing_is_left(broker)


def test_a_connection_lost_inside_a_packet_leaves_nothing(start_broker) -> None:
    broker = start_broker(sys_interval=0)
    for packet in (connect_packet(b"x", will=WILL), *VALID.values()):
        for size in range(1, len(packet)):
            with Peer(broker.port) as peer:
                if packet[0] != 0x10:
                    peer.connect(b"cut")
                peer.send(packet[:size])
    assert_nothing_is_left(broker)
    assert not broker.call(lambda: broker.broker.stats.malformed)
    assert broker.call(lambda: len(broker.broker.router.retained)) == 0


@pytest.mark.parametrize("seed", range(4))
def test_noise_never_hurts_anyone_else(start_broker, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    rng = random.Random(seed)
    broker = start_broker(connect_timeout=5.0)
    with Peer(broker.port) as bystander:
        bystander.connect(b"bystander")
        for _ in range(150):
            with Peer(broker.port) as peer:
                noise = bytearray(b"".join(rng.choice(list(VALID.values())) for _ in range(rng.randint(1, 6))))
                for _ in range(rng.randint(0, 4)):
                    noise[rng.randrange(len(noise))] = rng.randrange(256)
                peer.send(connect_packet(b"noise") + bytes(noise))
                assert peer.receive().kind == CONNACK
        assert bystander.flush() == []
    broker.wait_until(lambda: broker.broker.stats.connections == 0)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_client_that_never_connects_is_closed_in_time(start_broker) -> None:
    broker = start_broker(connect_timeout=0.2)
    with Peer(broker.port) as peer:
        peer.send(connect_packet(b"slow")[:-1])
        assert peer.wait_closed() == []
    assert broker.call(lambda: broker.broker.stats.connect_timeouts) == 1


def test_one_connection_above_the_limit_is_closed_and_counted(start_broker) -> None:
    broker = start_broker(max_connections=2)
    with Peer(broker.port) as first, Peer(broker.port) as second, Peer(broker.port) as third:
        first.connect(b"1")
        second.connect(b"2")
        assert third.wait_closed() == []
        assert first.flush() == second.flush() == []
    assert broker.call(lambda: broker.broker.stats.connections_refused) == 1


def test_acknowledgements_nobody_waits_for_are_counted_and_pubrel_is_answered(start_broker) -> None:
    broker = start_broker()
    with Peer(broker.port) as peer:
        peer.connect(b"peer")
        peer.send(ack_packet(4, 1) + ack_packet(5, 2) + ack_packet(PUBREL, 3) + ack_packet(7, 4))
        assert [(packet.kind, packet.packet_id) for packet in peer.flush()] == [(PUBREL, 2), (7, 3)]
    assert broker.call(lambda: broker.broker.stats.unknown_acknowledgements) == 3
