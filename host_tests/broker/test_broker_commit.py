"""Nothing leaves before the commit that covers it, and a failed commit acknowledges nothing.

Planted: Store.after_commit() releases its packets at once.
"""

import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from broker_peer import BrokerThread, Closed, Peer
from umqtt_broker.log import NOTICE
from umqtt_broker.store import change_batch, sqlite
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually


class Disk:
    """Precedes the store's transactions: lets them through, stops them, or fails them."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._is_waited_for = threading.Event()
        self._failures = 0
        self._write = sqlite.write_batch

    def stop(self) -> None:
        """Let no transaction through from now on."""
        self._open.clear()

    def go(self) -> None:
        """Let transactions through again."""
        self._open.set()

    def wait_stopped(self) -> None:
        """Wait until a transaction has begun and is stopped."""
        assert self._is_waited_for.wait(WAIT_LIMIT_S)

    def fail(self, count: int) -> None:
        """Fail the next `count` transactions as a full disk does."""
        self._failures = count

    def write(self, database: sqlite3.Connection, batch):
        """Replace sqlite.write_batch."""
        if not self._open.is_set():
            self._is_waited_for.set()
            assert self._open.wait(WAIT_LIMIT_S)
            self._is_waited_for.clear()
        if self._failures:
            self._failures -= 1
            database.execute("BEGIN IMMEDIATE")
            raise sqlite3.OperationalError("database or disk is full")
        return self._write(database, batch)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(sqlite, "write_batch", disk.write)
    return disk


@pytest.fixture
def broker(disk: Disk, tmp_path: Path, start_broker) -> Iterator[BrokerThread]:
    yield start_broker(store=str(tmp_path / "broker.db"))
    disk.go()  # a failed test must not keep the broker from stopping


def assert_silent(broker: BrokerThread, disk: Disk, *peers: Peer) -> None:
    """Assert that the peers' packets wait for the stopped transaction, after everything they sent was read."""
    broker.wait_read()
    disk.wait_stopped()
    broker.call(lambda: None)
    for peer in peers:
        peer.assert_silent()


def keep(broker: BrokerThread, qos: int) -> None:
    """Leave a persistent subscription without a connection."""
    with Peer(broker.port) as keeper:
        keeper.connect(b"keeper", clean_session=False)
        keeper.subscribe(b"kept/#", qos)
        keeper.disconnect()


@pytest.mark.parametrize("qos", [1, 2])
def test_puback_and_pubrec_wait_for_the_message_of_an_absent_session(
    broker: BrokerThread, disk: Disk, qos: int
) -> None:
    keep(broker, qos)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        disk.stop()
        publisher.send(encoder.publish(b"kept/1", b"x", qos, 1) + encoder.publish(b"kept/2", b"y", qos, 2))
        assert_silent(broker, disk, publisher)
        disk.go()
        assert [publisher.expect(PUBACK if qos == 1 else PUBREC).packet_id for _ in "12"] == [1, 2]


def test_puback_does_not_wait_when_nothing_needs_to_be_kept(broker: BrokerThread, disk: Disk) -> None:
    with Peer(broker.port) as publisher, Peer(broker.port) as subscriber:
        publisher.connect(b"publisher")
        subscriber.connect(b"subscriber")
        subscriber.subscribe(b"a", 1)
        disk.stop()
        publisher.publish(b"a", b"x", 1)
        assert subscriber.receive_message().payload == b"x"


def test_puback_needs_no_commit_once_every_persistent_subscriber_has_acknowledged(
    broker: BrokerThread, disk: Disk, tmp_path: Path
) -> None:
    with Peer(broker.port) as one, Peer(broker.port) as other, Peer(broker.port) as publisher:
        for client, name in ((one, b"one"), (other, b"other")):
            client.connect(name, clean_session=False)
            client.subscribe(b"a", 1)
        publisher.connect(b"publisher")
        disk.stop()
        publisher.send(b"".join(encoder.publish(b"a", b"%d" % number, 1, number) for number in (1, 2, 3)))
        for client in (one, other):
            identifiers = [client.expect(PUBLISH).packet_id for _ in "123"]
            client.send(
                b"".join(encoder.acknowledgement(PUBACK, packet_id) for packet_id in identifiers if client is one)
            )
        assert_silent(broker, disk, publisher)
        # Message 3 need not be written any more, but acknowledgements leave in order [MQTT-4.6.0-2], and message 2
        # must be.
        other.send(encoder.acknowledgement(PUBACK, identifiers[0]) + encoder.acknowledgement(PUBACK, identifiers[2]))
        assert_silent(broker, disk, publisher)
        other.send(encoder.acknowledgement(PUBACK, identifiers[1]))
        assert [publisher.expect(PUBACK).packet_id for _ in "123"] == [1, 2, 3]
        assert broker.call(lambda: broker.stats.queued) == 0
        # A transaction with them had begun, and was stopped. The next one removes what that one writes.
        disk.go()
        one.subscribe(b"b", 1)
        with closing(sqlite3.connect(tmp_path / "broker.db")) as database:
            assert database.execute("SELECT count(*) FROM delivery").fetchone() == (0,)


def test_a_subscriber_that_is_slow_to_acknowledge_does_not_hold_up_the_commit(broker: BrokerThread) -> None:
    with Peer(broker.port) as client, Peer(broker.port) as publisher:
        client.connect(b"client", clean_session=False)
        client.subscribe(b"a", 1)
        publisher.connect(b"publisher")
        broker.stop_clock()
        publisher.send(encoder.publish(b"a", b"1", 1, 1))
        assert client.receive_message(acknowledge=False).payload == b"1"
        # For a moment an acknowledgement might still make writing it unnecessary.
        broker.wait_read()
        publisher.assert_silent()
        eventually(lambda: broker.advance(0.001) or publisher.has_received())
        publisher.expect(PUBACK, 1)
        # It did not come: from now on no message waits for one.
        publisher.publish(b"a", b"2", 1)
        assert client.receive_message(acknowledge=False).payload == b"2"


def test_a_batch_that_became_needless_while_another_was_written_does_not_stop_the_next(
    broker: BrokerThread, disk: Disk
) -> None:
    keep(broker, 1)
    with Peer(broker.port) as client, Peer(broker.port) as publisher, Peer(broker.port) as other:
        client.connect(b"client", clean_session=False)
        client.subscribe(b"a", 1)
        publisher.connect(b"publisher")
        other.connect(b"other")
        # Its acknowledgement comes late: from now on nothing waits for one.
        publisher.publish(b"a", b"x", 1)
        client.receive_message()
        assert client.flush() == []
        disk.stop()
        other.send(encoder.publish(b"kept/1", b"x", 1, 1))
        assert_silent(broker, disk, other)
        publisher.send(encoder.publish(b"a", b"x", 1, 2))
        client.receive_message()
        assert client.flush() == []
        disk.go()
        other.expect(PUBACK, 1)
        publisher.expect(PUBACK, 2)
        publisher.publish(b"kept/2", b"x", 1)


def test_puback_waits_for_a_retained_message(broker: BrokerThread, disk: Disk) -> None:
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        disk.stop()
        publisher.send(encoder.publish(b"a", b"x", 1, 1, retain=True))
        assert_silent(broker, disk, publisher)
        # An acknowledgement that needs no commit stays behind one that does [MQTT-4.6.0-2].
        publisher.send(encoder.publish(b"b", b"x", 1, 2))
        assert_silent(broker, disk, publisher)
        disk.go()
        assert [publisher.expect(PUBACK).packet_id for _ in "12"] == [1, 2]


def test_connack_and_suback_wait_for_a_persistent_session_and_its_subscription(
    broker: BrokerThread, disk: Disk
) -> None:
    with Peer(broker.port) as client, Peer(broker.port) as clean:
        disk.stop()
        client.send(encoder.connect(b"client", clean_session=False))
        assert_silent(broker, disk, client)
        disk.go()
        client.expect(CONNACK)
        disk.stop()
        client.send(encoder.subscribe(1, (b"a", 1)))
        assert_silent(broker, disk, client)
        disk.go()
        client.expect(SUBACK, 1)
        disk.stop()
        clean.send(encoder.connect(b"client", clean_session=True))
        assert_silent(broker, disk, clean)
        disk.go()
        assert clean.expect(CONNACK).body == b"\0\0"


def test_outgoing_qos_2_waits_at_every_step_and_qos_1_does_not(broker: BrokerThread, disk: Disk) -> None:
    with Peer(broker.port) as client, Peer(broker.port) as publisher:
        client.connect(b"client", clean_session=False)
        client.subscribe(b"two", 2)
        client.subscribe(b"one", 1)
        publisher.connect(b"publisher")
        disk.stop()
        publisher.send(encoder.publish(b"one", b"x", 1, 1))
        client.send(encoder.acknowledgement(PUBACK, client.expect(PUBLISH).packet_id))
        publisher.expect(PUBACK, 1)
        publisher.send(encoder.publish(b"two", b"x", 2, 2) + encoder.publish(b"one", b"behind", 1, 3))
        assert_silent(broker, disk, client, publisher)
        disk.go()
        message = client.expect(PUBLISH)
        assert message.qos == 2
        assert client.expect(PUBLISH).payload == b"behind"
        disk.stop()
        client.send(encoder.acknowledgement(PUBREC, message.packet_id))
        assert_silent(broker, disk, client)
        disk.go()
        client.expect(PUBREL, message.packet_id)


def test_incoming_qos_2_waits_at_every_step_and_so_does_the_answer_to_a_copy(broker: BrokerThread, disk: Disk) -> None:
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher", clean_session=False)
        disk.stop()
        publisher.send(encoder.publish(b"nobody", b"x", 2, 1))
        assert_silent(broker, disk, publisher)
        publisher.send(encoder.publish(b"nobody", b"x", 2, 1, dup=True))
        assert_silent(broker, disk, publisher)
        disk.go()
        publisher.expect(PUBREC, 1)
        publisher.expect(PUBREC, 1)
        disk.stop()
        publisher.send(encoder.acknowledgement(PUBREL, 1))
        assert_silent(broker, disk, publisher)
        disk.go()
        publisher.expect(PUBCOMP, 1)


def test_a_copy_on_a_new_connection_waits_for_the_first_copys_commit(broker: BrokerThread, disk: Disk) -> None:
    with Peer(broker.port) as first, Peer(broker.port) as second:
        first.connect(b"publisher", clean_session=False)
        disk.stop()
        first.send(encoder.publish(b"nobody", b"x", 2, 1))
        assert_silent(broker, disk, first)
        second.send(
            encoder.connect(b"publisher", clean_session=False) + encoder.publish(b"nobody", b"x", 2, 1, dup=True)
        )
        assert first.wait_closed() == []
        assert_silent(broker, disk, second)
        disk.go()
        second.expect(CONNACK)
        second.expect(PUBREC, 1)


def test_acknowledgements_held_when_the_client_says_disconnect_still_leave(broker: BrokerThread, disk: Disk) -> None:
    keep(broker, 1)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        disk.stop()
        publisher.send(encoder.publish(b"kept/1", b"x", 1, 1) + encoder.disconnect())
        assert_silent(broker, disk, publisher)
        disk.go()
        assert [packet.kind for packet in publisher.wait_closed()] == [PUBACK]


def test_a_failed_commit_closes_without_acknowledging_and_the_next_one_catches_up(
    broker: BrokerThread, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(NOTICE, "umqtt_broker.clients")
    keep(broker, 2)
    with Peer(broker.port) as publisher, Peer(broker.port) as bystander:
        publisher.connect(b"publisher", clean_session=False)
        bystander.connect(b"bystander")
        commits = broker.call(lambda: broker.stats.commits)
        disk.fail(2)
        publisher.send(encoder.publish(b"kept/1", b"x", 2, 1))
        with pytest.raises(Closed):
            publisher.receive()
        assert bystander.flush() == []
    assert "client publisher disconnected: a commit of the store failed" in caplog.messages
    broker.wait_until(lambda: broker.set_ahead(1) or broker.stats.commits > commits)
    with Peer(broker.port) as publisher:
        assert publisher.connect(b"publisher", clean_session=False)
        publisher.send(encoder.publish(b"kept/1", b"x", 2, 1, dup=True))
        publisher.expect(PUBREC, 1)
        publisher.send(encoder.acknowledgement(PUBREL, 1))
        publisher.expect(PUBCOMP, 1)
    with Peer(broker.port) as keeper:
        assert keeper.connect(b"keeper", clean_session=False)
        assert keeper.receive_message(acknowledge=False).payload == b"x"
        assert keeper.flush() == []
    assert broker.call(lambda: broker.stats.commit_failures) == 2


@pytest.mark.tier(0)
@pytest.mark.parametrize("seed", range(20))
def test_ranges_hold_exactly_the_positions_given(seed: int) -> None:
    rng = random.Random(seed)
    positions = rng.sample(range(1, 60), rng.randint(1, 59))
    found = list(change_batch.ranges(positions))
    assert [n for first, last in found for n in range(first, last + 1)] == sorted(positions)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(found))


def test_what_a_session_was_told_before_a_stop_is_there_after_it(tmp_path: Path) -> None:
    from umqtt_broker import BrokerConfig

    config = BrokerConfig(port=0, store=str(tmp_path / "broker.db"), sys_interval=0)
    with BrokerThread(config) as broker:
        keep(broker, 2)
        with Peer(broker.port) as publisher:
            publisher.connect(b"publisher", clean_session=False, will=(b"kept/will", b"gone", 1, True))
            publisher.publish(b"kept/state", b"on", 1, retain=True)
            for number in range(5):
                publisher.publish(b"kept/n", b"%d" % number, 2)
            publisher.send(encoder.publish(b"nobody", b"x", 2, 99))
            publisher.expect(PUBREC, 99)
    with BrokerThread(config) as broker:
        stats = broker.call(broker.stats.as_dict)
        assert (stats["sessions"], stats["subscriptions"], stats["queued"], stats["retained"]) == (2, 1, 7, 2)
        with Peer(broker.port) as keeper:
            assert keeper.connect(b"keeper", clean_session=False)
            messages = [keeper.receive_message() for _ in range(7)]
            assert [message.payload for message in messages] == [b"on", b"0", b"1", b"2", b"3", b"4", b"gone"]
            assert not any(message.dup for message in messages)
            assert {packet.kind for packet in keeper.flush()} <= {PUBREL}
            keeper.disconnect()
    with BrokerThread(config) as broker, Peer(broker.port) as keeper, Peer(broker.port) as publisher:
        # PUBREC was the last packet: only PUBREL comes again, also from the store.
        assert keeper.connect(b"keeper", clean_session=False)
        again = keeper.flush()
        assert [packet.packet_id for packet in again] == [message.packet_id for message in messages if message.qos == 2]
        assert {packet.kind for packet in again} == {PUBREL}
        # The identifier of the unfinished incoming message is still in use.
        keeper.subscribe(b"nobody", 0)
        assert publisher.connect(b"publisher", clean_session=False)
        publisher.send(encoder.publish(b"nobody", b"x", 2, 99, dup=True))
        publisher.expect(PUBREC, 99)
        assert keeper.flush() == []
