"""A disk that fails, or is slower than the publishers: the memory does not fill, nobody is forgotten."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_peer import PUBACK, BrokerThread, Closed, Peer, StartBroker, publish_packet
from patience import PATIENCE
from umqtt_broker.store import writer

SIZE = 1000
# Bytes that may wait for the disk; the tests publish many times as much.
MOST = 100_000


class Disk:
    """What the store writes to: works, fails, or waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = threading.Event()
        self.may_write = threading.Event()
        self.may_write.set()
        self._write = writer.write
        monkeypatch.setattr(writer, "write", self._write_or_fail)
        monkeypatch.setattr("umqtt_broker.store.sqlite._RETRY_DELAY", 0.02)
        monkeypatch.setattr("umqtt_broker.store.sqlite._MOST_UNWRITTEN", MOST)

    def _write_or_fail(self, database: sqlite3.Connection, batch: object) -> object:
        assert self.may_write.wait(PATIENCE)
        if self.fails.is_set():
            raise sqlite3.OperationalError("database or disk is full")
        return self._write(database, batch)  # type: ignore


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.fails.clear()
    made.may_write.set()


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path, disk: Disk) -> BrokerThread:
    """A broker with a persistent session that is away and subscribed to everything."""
    made = start_broker(store=str(tmp_path / "broker.db"), queue_qos0_messages=True)
    with Peer(made.port) as keeper:
        keeper.connect(b"keeper", clean_session=False)
        keeper.subscribe(b"kept/#", 1)
        keeper.disconnect()
    return made


def unwritten(broker: BrokerThread) -> int:
    store = broker.broker.store
    return broker.call(lambda: store._unwritten + store._writing)  # type: ignore


def flood(port: int, seconds: float, qos: int, until: Callable[[], bool] = lambda: True) -> None:
    """Publish as much as the broker reads for so long and until `until()`, connecting again and again."""
    packets = b"".join(publish_packet(b"kept/a", bytes(SIZE), qos, number) for number in range(1, 21))
    at_least, at_most = time.monotonic() + seconds, time.monotonic() + PATIENCE
    while time.monotonic() < at_least or not until():
        assert time.monotonic() < at_most
        with contextlib.suppress(Closed, ConnectionError, TimeoutError), Peer(port) as publisher:
            publisher.connect(b"flood")
            publisher.socket.settimeout(0.2)
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                publisher.send(packets)


@pytest.mark.parametrize("qos", [0, 1])
def test_while_the_disk_fails_what_waits_for_it_stays_small_however_often_clients_come_back(
    broker: BrokerThread, disk: Disk, caplog: pytest.LogCaptureFixture, qos: int
) -> None:
    disk.fails.set()
    with Peer(broker.port) as other, Peer(broker.port) as reader:
        reader.connect(b"reader")
        reader.subscribe(b"free", 1)
        other.connect(b"other")
        flood(broker.port, 1.5, qos, lambda: broker.call(lambda: broker.broker.stats.publishers_held) > 0)
        # One read above the limit for each client at most.
        assert unwritten(broker) < MOST + 2 * 300_000
        # Who needs no disk is served.
        other.publish(b"free", b"1", 1)
        assert reader.receive_message().payload == b"1"
    disk.fails.clear()
    broker.wait_until(lambda: not broker.broker.store._failing)  # type: ignore
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        publisher.publish(b"kept/a", b"mended", 1)
    told = [record.message for record in caplog.records if "store" in record.name]
    assert len(told) == 2 and "transaction failed" in told[0] and "works again" in told[1], told


def test_what_a_client_leaves_behind_while_the_disk_fails_is_counted_and_does_not_pile_up(
    broker: BrokerThread, disk: Disk
) -> None:
    disk.fails.set()
    flood(broker.port, 0.2, 1, lambda: broker.call(lambda: broker.broker.store.is_blocked))
    # What it still has under way is not counted here.
    broker.call(lambda: [connection.abort() for connection in list(broker.broker._connections)])
    broker.wait_until(lambda: broker.broker.stats.connections == 0)
    before, dropped = unwritten(broker), broker.call(lambda: broker.broker.stats.dropped_disk)
    for number in range(5):
        with Peer(broker.port) as client:
            client.connect(b"client-%d" % number)
            client.send(publish_packet(b"kept/a", bytes(SIZE), 0) + publish_packet(b"kept/a", b"", 1, 1) + b"\xe0\0")
    broker.wait_until(lambda: broker.broker.stats.dropped_disk == dropped + 5)
    assert unwritten(broker) == before


@pytest.mark.parametrize("qos", [0, 1])
def test_publishers_faster_than_the_disk_wait_for_it_and_lose_nothing(
    broker: BrokerThread, disk: Disk, qos: int
) -> None:
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        disk.may_write.clear()
        sender = threading.Thread(
            target=publisher.send,
            args=(b"".join(publish_packet(b"kept/a", bytes(SIZE), qos, number) for number in range(1, 8001)),),
        )
        sender.start()
        # Eight megabytes do not fit into the sockets' buffers: the broker has stopped reading when it goes on.
        broker.wait_until(lambda: broker.broker.stats.publishers_held > 0)
        before = unwritten(broker)
        assert before < MOST + 600_000
        disk.may_write.set()
        if qos:
            for number in range(1, 8001):
                publisher.expect(PUBACK, number)
        sender.join(PATIENCE)
        assert not sender.is_alive()
        # At QoS 0 nothing says when the last has been taken.
        broker.wait_until(lambda: broker.broker.stats.queued == 8000)
    assert broker.call(lambda: broker.broker.stats.dropped) == 0


def test_without_a_subscriber_that_needs_the_disk_nobody_waits(broker: BrokerThread, disk: Disk) -> None:
    disk.fails.set()
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        for number in range(1, 2001):
            publisher.send(publish_packet(b"free", bytes(SIZE), 1, number))
        for number in range(1, 2001):
            publisher.expect(PUBACK, number)
    assert broker.call(lambda: broker.broker.stats.publishers_held) == 0
