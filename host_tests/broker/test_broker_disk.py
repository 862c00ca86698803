"""A full or broken disk: the broker stays up, acknowledges nothing unsafe, and continues once it is repaired."""

import resource
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import broker_mistakes
import pytest
from broker_peer import BrokerProcess, BrokerThread, Closed, Peer
from umqtt_broker import BrokerConfig
from umqtt_broker.store import sqlite
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK
from umqtt_testkit.waiting import WAIT_LIMIT_S

# SQLite's errors when the disk is full, was mounted read-only, or fails.
FAULTS = ("database or disk is full", "attempt to write a readonly database", "disk I/O error")

# More than fits into the limited space.
ENOUGH = 2000


class SmallRoom:
    """A place for a store that can be made too small, and repaired, while a broker uses it."""

    def __init__(self, shrink: Callable[[int], None], mend: Callable[[int], None], folder: Path) -> None:
        self.shrink, self.mend, self.folder = shrink, mend, folder


@contextmanager
def limited_files(folder: Path) -> Iterator[SmallRoom]:
    """Limit the size of the process's files: writing fails as on a full disk, except for the error number."""

    def limit(process: int, size: int) -> None:
        resource.prlimit(process, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def shrink(process: int) -> None:
        limit(process, 200_000)

    yield SmallRoom(shrink, lambda process: limit(process, resource.RLIM_INFINITY), folder)


@contextmanager
def full_disk(folder: Path) -> Iterator[SmallRoom]:
    """Provide a separate file system with a file that fills it up."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system takes more rights than this user has")
    ballast = folder / "ballast"

    def shrink(_: int) -> None:
        ballast.write_bytes(b"x" * 700_000)

    try:
        yield SmallRoom(shrink, lambda _: ballast.unlink(), folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("make_room", [limited_files, full_disk])
def test_a_full_disk_stops_the_acknowledgements_but_not_the_broker(tmp_path: Path, make_room) -> None:
    folder = tmp_path / "room"
    folder.mkdir()
    with make_room(folder) as room, BrokerProcess(room.folder / "broker.db") as broker:
        with Peer(broker.port) as keeper:
            keeper.connect(b"keeper", clean_session=False)
            keeper.subscribe(b"kept", 1)
            keeper.disconnect()
        with Peer(broker.port) as client, Peer(broker.port) as other:
            client.connect(b"client")
            client.subscribe(b"a", 1)
            other.connect(b"other")
            room.shrink(broker.process.pid)
            acknowledged = publish_until_refused(broker.port)
            # Clients that need no disk are served all the time.
            other.publish(b"a", b"still here", 1)
            assert client.receive_message().payload == b"still here"
        room.mend(broker.process.pid)
        sent = publish_when_mended(broker.port)
        with Peer(broker.port) as keeper:
            assert keeper.connect(b"keeper", clean_session=False)
            found = []
            while not found or found[-1] != b"mended":
                found.append(keeper.receive_message().payload)
            keeper.disconnect()
        code, errors = broker.stop()
    numbers = [int(payload) for payload in found if payload != b"mended"]
    assert numbers[: len(acknowledged)] == acknowledged
    # What was not acknowledged may be there all the same, after the rest and in order.
    assert numbers == sorted(numbers)
    assert sent > 0
    assert code == 0
    assert "transaction failed, will be tried again" in errors


def publish_until_refused(port: int) -> list[int]:
    """Publish numbers with a payload that fills the space.

    Returns those acknowledged before the connection closed.
    """
    acknowledged: list[int] = []
    with Peer(port) as publisher:
        publisher.connect(b"publisher")
        try:
            for number in range(1, ENOUGH):
                publisher.send(encoder.publish(b"kept", b"%01000d" % number, 1, number))
                publisher.expect(PUBACK, number)
                acknowledged.append(number)
        except (Closed, ConnectionError):
            return acknowledged
    raise AssertionError("the room never filled up")


def publish_when_mended(port: int) -> int:
    """Publish one message until it is acknowledged. Returns the number of attempts."""
    for attempt in range(1, 200):
        with Peer(port) as publisher:
            try:
                publisher.connect(b"publisher")
                publisher.publish(b"kept", b"mended", 1)
            except (Closed, ConnectionError):
                continue
            return attempt
    raise AssertionError("the broker did not notice that there is room again")


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_counted_and_outlived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    broken = threading.Event()
    write = sqlite.write_batch

    def fail(database: sqlite3.Connection, batch):
        if broken.is_set():
            database.execute("BEGIN IMMEDIATE")
            raise sqlite3.OperationalError(fault)
        return write(database, batch)

    monkeypatch.setattr(sqlite, "write_batch", fail)
    with BrokerThread(BrokerConfig(port=0, store=str(tmp_path / "broker.db"))) as broker:
        with Peer(broker.port) as keeper:
            keeper.connect(b"keeper", clean_session=False)
            keeper.subscribe(b"kept", 2)
            keeper.disconnect()
        with Peer(broker.port) as one, Peer(broker.port) as two:
            one.connect(b"one")
            two.connect(b"two")
            broken.set()
            for qos, publisher in ((1, one), (2, two)):
                publisher.send(encoder.publish(b"kept", b"%d" % qos, qos, 1))
                with pytest.raises(Closed):
                    publisher.receive()
        # A session that cannot be made safe is not promised to anyone.
        with Peer(broker.port) as newcomer, pytest.raises(Closed):
            newcomer.connect(b"newcomer", clean_session=False)
        assert broker.call(lambda: broker.stats.commit_failures) >= 3
        broken.clear()
        broker.wait_until(lambda: broker.set_ahead(1) or not broker.view.store_failure)
        with Peer(broker.port) as publisher, Peer(broker.port) as keeper:
            publisher.connect(b"publisher")
            publisher.publish(b"kept", b"3", 2)
            assert keeper.connect(b"keeper", clean_session=False)
            assert [keeper.receive_message().payload for _ in "123"] == [b"1", b"2", b"3"]


def test_a_program_that_cannot_write_its_last_changes_says_so_by_its_exit_code(tmp_path: Path) -> None:
    """Planted: GroupCommitStore.lost() is cancelled along with whatever waits for it."""
    mistake = "def fail(*_): raise OSError('no space')\nsqlite.write_batch = fail"
    command = broker_mistakes.command(mistake, "-p", "0", "--store", str(tmp_path / "broker.db"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None and broker.stderr is not None
        port = int(broker.stdout.readline().rpartition(":")[2])
        with Peer(port) as peer:
            peer.send(encoder.connect(b"keeper", clean_session=False))
            peer.wait_closed()
        broker.terminate()
        assert broker.wait(WAIT_LIMIT_S) == 1
        assert "the last changes could not be written to store" in broker.stderr.read()
