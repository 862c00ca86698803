"""A disk that fails, or is slower than the publishers: memory does not fill up, and nobody is forgotten."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_peer import BrokerThread, Closed, Peer, StartBroker
from umqtt_broker.store import sqlite
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

SIZE = 1000
# Bytes that may wait for the disk; the tests publish many times as much.
MOST = 100_000
# How often a flooding client comes back.
ROUNDS = 20


class Disk:
    """The disk of the store: it works, fails, or waits until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = threading.Event()
        self.may_write = threading.Event()
        self.may_write.set()
        self._write = sqlite.write_batch
        monkeypatch.setattr(sqlite, "write_batch", self._write_or_fail)
        monkeypatch.setattr("umqtt_broker.store.group_commit._MOST_UNWRITTEN", MOST)

    def _write_or_fail(self, database: sqlite3.Connection, batch: object) -> object:
        assert self.may_write.wait(WAIT_LIMIT_S)
        if self.fails.is_set():
            raise sqlite3.OperationalError("database or disk is full")
        return self._write(database, batch)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.fails.clear()
    made.may_write.set()


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path, disk: Disk) -> BrokerThread:
    """Provide a broker with a persistent session that is away and subscribed to everything."""
    made = start_broker(store=str(tmp_path / "broker.db"), queue_qos0_messages=True)
    with Peer(made.port) as keeper:
        keeper.connect(b"keeper", clean_session=False)
        keeper.subscribe(b"kept/#", 1)
        keeper.disconnect()
    return made


def flood(broker: BrokerThread, qos: int) -> None:
    """Publish as much as the broker reads of one connection: until it reads no more, or closes it."""
    packets = b"".join(encoder.publish(b"kept/a", bytes(SIZE), qos, number) for number in range(1, 21))

    def is_paused() -> bool:
        backpressure = [connection.backpressure for connection in broker.view.connections]
        return any(one is not None and one.paused for one in backpressure)

    sent = 0

    def is_enough() -> bool:
        nonlocal sent
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += publisher.socket.send(packets[sent % len(packets) :])
        return broker.call(is_paused)

    with contextlib.suppress(Closed, ConnectionError), Peer(broker.port) as publisher:
        publisher.connect(b"flood")
        publisher.socket.setblocking(False)
        eventually(is_enough)


@pytest.mark.parametrize("qos", [0, 1])
def test_while_the_disk_fails_what_waits_for_it_stays_small_however_often_clients_come_back(
    broker: BrokerThread, disk: Disk, caplog: pytest.LogCaptureFixture, qos: int
) -> None:
    disk.fails.set()
    with Peer(broker.port) as other, Peer(broker.port) as reader:
        reader.connect(b"reader")
        reader.subscribe(b"free", 1)
        other.connect(b"other")
        for _ in range(ROUNDS):
            flood(broker, qos)
        assert broker.call(lambda: broker.stats.publishers_held) > 0
        # At most one read above the limit for each client.
        assert broker.call(lambda: broker.view.store_backlog) < MOST + 2 * 300_000
        # Clients that need no disk are served.
        other.publish(b"free", b"1", 1)
        assert reader.receive_message().payload == b"1"
    disk.fails.clear()
    broker.wait_until(lambda: broker.set_ahead(1) or not broker.view.store_failure)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        publisher.publish(b"kept/a", b"mended", 1)
    told = [record.message for record in caplog.records if "store" in record.name]
    assert len(told) == 2 and "transaction failed" in told[0] and "works again" in told[1], told


def test_what_a_client_leaves_behind_while_the_disk_fails_is_counted_and_does_not_pile_up(
    broker: BrokerThread, disk: Disk
) -> None:
    disk.fails.set()
    eventually(lambda: flood(broker, 1) or broker.call(lambda: broker.broker.store.is_blocked))
    # Its messages in flight are not counted here.
    broker.call(lambda: [connection.abort("the test") for connection in list(broker.view.connections)])
    broker.wait_until(lambda: broker.stats.connections == 0)
    before, dropped = broker.call(lambda: (broker.view.store_backlog, broker.stats.dropped_disk))
    for number in range(5):
        with Peer(broker.port) as client:
            client.connect(b"client-%d" % number)
            client.send(
                encoder.publish(b"kept/a", bytes(SIZE), 0)
                + encoder.publish(b"kept/a", b"", 1, 1)
                + encoder.disconnect()
            )
    broker.wait_until(lambda: broker.stats.dropped_disk == dropped + 5)
    assert broker.call(lambda: broker.view.store_backlog) == before


@pytest.mark.parametrize("qos", [0, 1])
def test_publishers_faster_than_the_disk_wait_for_it_and_lose_nothing(
    broker: BrokerThread, disk: Disk, qos: int
) -> None:
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        disk.may_write.clear()
        sender = threading.Thread(
            target=publisher.send,
            args=(b"".join(encoder.publish(b"kept/a", bytes(SIZE), qos, number) for number in range(1, 8001)),),
        )
        sender.start()
        # Eight megabytes do not fit into the sockets' buffers: the broker has stopped reading when it continues.
        broker.wait_until(lambda: broker.stats.publishers_held > 0)
        assert broker.call(lambda: broker.view.store_backlog) < MOST + 600_000
        disk.may_write.set()
        if qos:
            for number in range(1, 8001):
                publisher.expect(PUBACK, number)
        sender.join(WAIT_LIMIT_S)
        assert not sender.is_alive()
        # At QoS 0 nothing says when the last one was processed.
        broker.wait_until(lambda: broker.stats.queued == 8000)
    assert broker.call(lambda: broker.stats.dropped) == 0


def test_without_a_subscriber_that_needs_the_disk_nobody_waits(broker: BrokerThread, disk: Disk) -> None:
    disk.fails.set()
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        for number in range(1, 2001):
            publisher.send(encoder.publish(b"free", bytes(SIZE), 1, number))
        for number in range(1, 2001):
            publisher.expect(PUBACK, number)
    assert broker.call(lambda: broker.stats.publishers_held) == 0
