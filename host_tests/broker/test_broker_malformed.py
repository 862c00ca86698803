"""Broken packets: the connection is closed and counted, nothing is left behind, nobody else notices."""

import logging

import pytest
from broker_peer import BrokerThread, Peer
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBREL

WILL = b"will", b"payload", 1, True
VALID = {
    "PUBLISH QoS 0": encoder.publish(b"a/b", b""),
    "PUBLISH QoS 1": encoder.publish(b"a/b", b"", 1, 7),
    "PUBLISH QoS 2": encoder.publish(b"a/b", b"", 2, 8),
    "PUBACK": encoder.acknowledgement(4, 9),
    "PUBREC": encoder.acknowledgement(5, 9),
    "PUBREL": encoder.acknowledgement(6, 9),
    "PUBCOMP": encoder.acknowledgement(7, 9),
    "SUBSCRIBE": encoder.subscribe(10, (b"a/+", 1), (b"#", 2)),
    "UNSUBSCRIBE": encoder.unsubscribe(11, b"a/+", b"#"),
}

BROKEN = {
    "remaining length of five bytes": b"\x30\xff\xff\xff\xff\x01",
    "packet larger than allowed": b"\x30\xff\xff\xff\x7f",
    "PUBLISH QoS 3": b"\x36\x06\0\x01a\0\x01x",
    "PUBLISH DUP with QoS 0": b"\x38\x03\0\x01a",
    "PUBLISH packet identifier 0": encoder.publish(b"a", b"", 1, 0),
    "PUBLISH empty topic name": encoder.publish(b"", b"x"),
    "PUBLISH wildcard": encoder.publish(b"a/+", b"x"),
    "PUBLISH NUL": encoder.publish(b"a\0b", b"x"),
    "PUBLISH UTF-8": encoder.publish(b"\xff", b"x"),
    "PUBLISH surrogate": encoder.publish(b"\xed\xa0\x80", b"x"),
    "PUBREL flags": b"\x60\x02\0\x01",
    "PUBACK flags": b"\x41\x02\0\x01",
    "SUBSCRIBE flags": b"\x80" + encoder.subscribe(1, (b"a", 0))[1:],
    "SUBSCRIBE without filters": b"\x82\x02\0\x01",
    "SUBSCRIBE QoS 3": encoder.subscribe(1, (b"a", 3)),
    "SUBSCRIBE packet identifier 0": encoder.subscribe(0, (b"a", 0)),
    "SUBSCRIBE bad filter": encoder.subscribe(1, (b"a/#/b", 0)),
    "UNSUBSCRIBE without filters": b"\xa2\x02\0\x01",
    "UNSUBSCRIBE flags": b"\xa0\x05\0\x01\0\x01a",
    "PINGREQ with a body": b"\xc0\x01x",
    "DISCONNECT with a body": b"\xe0\x01x",
    "second CONNECT": encoder.connect(b"again"),
    "CONNACK from a client": b"\x20\x02\0\0",
    "SUBACK from a client": b"\x90\x03\0\x01\0",
    "PINGRESP from a client": b"\xd0\0",
    "reserved type 0": b"\0\0",
    "reserved type 15": b"\xf0\0",
}

BROKEN_CONNECT = {
    "not MQTT at all": b"GET / HTTP/1.1\r\n\r\n",
    "protocol name": encoder.connect(b"x").replace(b"MQTT", b"MQTX"),
    "reserved flag": encoder.connect(b"x").replace(b"MQTT\x04\x02", b"MQTT\x04\x03"),
    "will QoS 3": encoder.connect(b"x", will=(b"w", b"", 3, False)),
    "will QoS without will": encoder.connect(b"x").replace(b"MQTT\x04\x02", b"MQTT\x04\x0a"),
    "will retain without will": encoder.connect(b"x").replace(b"MQTT\x04\x02", b"MQTT\x04\x22"),
    "password without user name": encoder.encode(0x10, b"\0\x04MQTT\x04\x42\0\0\0\x01x\0\x01p"),
    "will topic with wildcard": encoder.connect(b"x", will=(b"w/#", b"", 0, False)),
    "client identifier not UTF-8": encoder.connect(b"\xc3\x28"),
    "longer than its fields": encoder.encode(0x10, encoder.connect(b"x")[2:] + b"y"),
    "flags": b"\x11" + encoder.connect(b"x")[1:],
    "larger than any CONNECT": b"\x10\xff\xff\xff\x7f",
    "PUBLISH first": encoder.publish(b"a", b""),
    "PINGREQ first": encoder.pingreq(),
}


def assert_nothing_is_left(broker: BrokerThread) -> None:
    """Assert that no connection, session, subscription or message survives the clean sessions of these tests."""
    broker.wait_until(lambda: broker.stats.connections == 0)
    stats = broker.call(broker.stats.as_dict)
    assert (stats["sessions"], stats["subscriptions"], stats["queued"]) == (0, 0, 0)
    assert broker.call(lambda: broker.view.subscription_nodes) == 0
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
        assert sum(broker.call(lambda: broker.stats.malformed).values()) == 1
        assert bystander.flush() == []
    assert_nothing_is_left(broker)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("name", BROKEN_CONNECT)
def test_a_broken_connect_is_closed_without_connack_and_counted(start_broker, name: str) -> None:
    broker = start_broker()
    with Peer(broker.port) as peer:
        peer.send(BROKEN_CONNECT[name])
        assert peer.wait_closed() == []
    assert sum(broker.call(lambda: broker.stats.malformed).values()) == 1
    assert_nothing_is_left(broker)


@pytest.mark.parametrize("name", VALID)
def test_a_packet_cut_short_anywhere_closes_its_connection(start_broker, name: str) -> None:
    """It is cut inside the body, with a matching remaining length, and never taken for a complete packet."""
    broker = start_broker()
    packet = VALID[name]
    for size in range(2, len(packet)):
        with Peer(broker.port) as peer:
            peer.connect(b"cut")
            cut = encoder.encode(packet[0], packet[2:size])
            peer.send(cut)
            if (name == "UNSUBSCRIBE" and size == 2 + 2 + 5) or (name == "SUBSCRIBE" and size == 2 + 2 + 6):
                peer.receive()  # cut between two filters: shorter, and complete
                continue
            assert peer.wait_closed() == [], (name, size)
    assert_nothing_is_left(broker)


def test_a_connection_lost_inside_a_packet_leaves_nothing(start_broker) -> None:
    broker = start_broker(sys_interval=0)
    for packet in (encoder.connect(b"x", will=WILL), *VALID.values()):
        for size in range(1, len(packet)):
            with Peer(broker.port) as peer:
                if packet[0] != 0x10:
                    peer.connect(b"cut")
                peer.send(packet[:size])
    assert_nothing_is_left(broker)
    assert not broker.call(lambda: broker.stats.malformed)
    assert broker.call(lambda: broker.view.retained_count) == 0


def test_a_client_that_never_connects_is_closed_in_time(start_broker) -> None:
    broker = start_broker(connect_timeout=0.2)
    with Peer(broker.port) as peer:
        peer.send(encoder.connect(b"slow")[:-1])
        assert peer.wait_closed() == []
    assert broker.call(lambda: broker.stats.connect_timeouts) == 1


def test_one_connection_above_the_limit_is_closed_and_counted(start_broker) -> None:
    broker = start_broker(max_connections=2)
    with Peer(broker.port) as first, Peer(broker.port) as second, Peer(broker.port) as third:
        first.connect(b"1")
        second.connect(b"2")
        assert third.wait_closed() == []
        assert first.flush() == second.flush() == []
    assert broker.call(lambda: broker.stats.connections_refused) == 1


def test_acknowledgements_nobody_waits_for_are_counted_and_pubrel_is_answered(start_broker) -> None:
    broker = start_broker()
    with Peer(broker.port) as peer:
        peer.connect(b"peer")
        peer.send(
            encoder.acknowledgement(4, 1)
            + encoder.acknowledgement(5, 2)
            + encoder.acknowledgement(PUBREL, 3)
            + encoder.acknowledgement(7, 4)
        )
        assert [(packet.kind, packet.packet_id) for packet in peer.flush()] == [(PUBREL, 2), (7, 3)]
    assert broker.call(lambda: broker.stats.unknown_acknowledgements) == 3
