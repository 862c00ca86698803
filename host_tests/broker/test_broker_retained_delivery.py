"""Retained messages that a persistent session's new subscription still waits for outlive the broker's process."""

import sqlite3
from contextlib import closing
from pathlib import Path

from broker_peer import BrokerProcess, Peer
from umqtt_broker.store.recovery import recover
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBLISH, SUBACK, UNSUBACK
from umqtt_testkit.waiting import eventually

# More than one slice and one window: the client takes only the first of them.
COUNT = 3000
TAKEN = 5


def retain(port: int, count: int = COUNT) -> set[bytes]:
    """Retain messages at QoS 1. Returns their topic names."""
    names = {b"wide/%d" % number for number in range(count)}
    with Peer(port) as publisher:
        publisher.connect(b"publisher")
        publisher.send(
            b"".join(encoder.publish(name, b"1", 1, number, retain=True) for number, name in enumerate(names, 1))
        )
        for number in range(1, count + 1):
            publisher.expect(PUBACK, number)
    return names


def subscribe_and_take_some(port: int, *topic_filters: bytes) -> None:
    with Peer(port) as client:
        client.connect(b"client", clean_session=False)
        taken = 0
        for topic_filter in topic_filters:
            packet_id = client.next_id()
            client.send(encoder.subscribe(packet_id, (topic_filter, 1)))
            while client.receive().kind != SUBACK:
                taken += 1
        while taken < TAKEN:
            client.receive_message(acknowledge=False)
            taken += 1


def take_all(port: int, store: Path) -> set[bytes]:
    """Receive and acknowledge until nothing is owed according to the store. Returns the topic names."""
    names: set[bytes] = set()
    with Peer(port) as client:
        assert client.connect(b"client", clean_session=False)
        quiet = 0

        def is_quiet() -> bool:
            nonlocal quiet
            packets = client.flush()
            for packet in packets:
                assert packet.kind == PUBLISH and packet.retain
                names.add(packet.topic_name)
                client.send(encoder.acknowledgement(PUBACK, packet.packet_id))
            # What is not owed any more may still be on its way.
            quiet = 0 if packets or owed(store) != [[]] else quiet + 1
            return quiet == 2

        eventually(is_quiet, lambda: owed(store))
    return names


def owed(store: Path) -> list[list[bytes]]:
    """Return what each session is owed according to the store."""
    with closing(sqlite3.connect(store)) as database:
        return [found.retained_pending for found in recover(database)[0].sessions]


def test_what_a_subscription_is_owed_comes_after_kill_9(tmp_path: Path) -> None:
    store = tmp_path / "broker.db"
    with BrokerProcess(store) as broker:
        names = retain(broker.port)
        subscribe_and_take_some(broker.port, b"#", b"wide/1")
        broker.kill()
    # The second waits for the first.
    assert owed(store) == [[b"#", b"wide/1"]]
    with BrokerProcess(store) as broker:
        # Another kill, before anybody took it.
        broker.kill()
    with BrokerProcess(store) as broker:
        assert take_all(broker.port, store) == names
        broker.kill()
    # Once it has come, it is not owed any more.
    assert owed(store) == [[]]


def test_who_unsubscribed_or_subscribed_anew_is_not_owed_what_it_was(tmp_path: Path) -> None:
    store = tmp_path / "broker.db"
    with BrokerProcess(store) as broker:
        retain(broker.port)
        subscribe_and_take_some(broker.port, b"wide/+", b"wide/#", b"wide/#")
        with Peer(broker.port) as client:
            assert client.connect(b"client", clean_session=False)
            client.send(encoder.unsubscribe(65535, b"wide/+"))
            while client.receive().kind != UNSUBACK:
                pass
        broker.kill()
    assert owed(store) == [[b"wide/#"]]
