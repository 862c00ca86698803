"""Backups are complete, made under load, and restored without losing what was there before."""

import json
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from broker_peer import BrokerProcess, BrokerThread, Peer
from umqtt_broker import BrokerConfig, StoreError
from umqtt_broker.store import backup as backups
from umqtt_testkit.waiting import eventually

from umqtt_cli.__main__ import run


def fill(port: int, count: int) -> None:
    """Leave a persistent session with `count` messages, and one retained."""
    with Peer(port) as keeper:
        keeper.connect(b"keeper", clean_session=False)
        keeper.subscribe(b"kept/#", 1)
        keeper.disconnect()
    publish(port, count)


def publish(port: int, count: int) -> None:
    """Add `count` messages to the session of `fill()`, which is away, and replace the retained one."""
    with Peer(port) as publisher:
        publisher.connect(b"publisher")
        for number in range(count):
            publisher.publish(b"kept/n", b"%d" % number, 1)
        publisher.publish(b"state", b"on", 1, retain=True)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Provide a store with five messages that is not open anywhere."""
    path = str(tmp_path / "broker.db")
    with BrokerThread(BrokerConfig(port=0, store=path)) as broker:
        fill(broker.port, 5)
    return path


def drain(store: str, client_id: bytes = b"keeper") -> list[bytes]:
    """Return the messages that a session finds in a store."""
    with BrokerThread(BrokerConfig(port=0, store=store)) as broker, Peer(broker.port) as keeper:
        queued = broker.call(lambda: broker.stats.queued)
        assert keeper.connect(client_id, clean_session=False)
        return [keeper.receive_message(acknowledge=False).payload for _ in range(queued)]


def test_a_backup_under_load_holds_everything_acknowledged_before_it_began(tmp_path: Path) -> None:
    store, copy = tmp_path / "broker.db", str(tmp_path / "copy.db")
    acknowledged = 0
    stop = threading.Event()
    with BrokerProcess(store) as broker:
        fill(broker.port, 0)

        def publish() -> None:
            nonlocal acknowledged
            with Peer(broker.port) as publisher:
                publisher.connect(b"load")
                while not stop.is_set():
                    publisher.publish(b"kept/n", b"%d" % acknowledged, 1)
                    acknowledged += 1

        load = threading.Thread(target=publish)
        load.start()
        least = []
        try:
            for _ in range(5):
                before = acknowledged
                eventually(lambda before=before: acknowledged >= before + 20 or not load.is_alive())
                least.append(acknowledged)
                assert backups.backup(str(store), copy).queued >= least[-1]
        finally:
            stop.set()
            load.join()
        assert broker.stop() == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["broker.db", "broker.db.lock", "copy.db"]
    assert os.stat(copy).st_mode & 0o777 == 0o600
    other = str(tmp_path / "other" / "broker.db")
    os.mkdir(tmp_path / "other")
    assert backups.restore(copy, other) is None
    found = drain(other)
    assert len(found) >= least[-1]
    assert found == [b"%d" % number for number in range(len(found))]


def test_restore_puts_the_backup_in_place_and_keeps_the_old_store_with_what_was_in_its_log(
    tmp_path: Path, store: str
) -> None:
    copy = str(tmp_path / "copy.db")
    backups.backup(store, copy)
    with BrokerProcess(store) as broker:
        with Peer(broker.port) as publisher:
            publisher.connect(b"publisher")
            publisher.publish(b"kept/n", b"late", 1)
        broker.kill()
    assert os.path.getsize(store + "-wal")
    kept = backups.restore(copy, store)
    assert kept is not None
    assert drain(store) == [b"0", b"1", b"2", b"3", b"4"]
    assert drain(kept) == [b"0", b"1", b"2", b"3", b"4", b"late"]
    # Twice in one second: nothing is overwritten.
    assert backups.restore(copy, store) != backups.restore(copy, store)
    assert drain(store) == [b"0", b"1", b"2", b"3", b"4"]


def test_restore_refuses_while_a_broker_has_the_store_open(tmp_path: Path, store: str) -> None:
    copy = str(tmp_path / "copy.db")
    backups.backup(store, copy)
    with BrokerThread(BrokerConfig(port=0, store=store)), pytest.raises(StoreError, match="another broker"):
        backups.restore(copy, store)


def test_a_link_to_the_store_is_the_store(tmp_path: Path, store: str) -> None:
    copy, link = str(tmp_path / "copy.db"), tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to("../broker.db")
    backups.backup(str(link), copy)
    with BrokerThread(BrokerConfig(port=0, store=store)) as broker:
        publish(broker.port, 1)
        assert backups.info(str(link)) == backups.info(store)
        with pytest.raises(StoreError, match="another broker"):
            backups.restore(copy, str(link))
    kept = backups.restore(copy, str(link))
    assert kept is not None and Path(kept).parent == tmp_path
    assert drain(store) == drain(str(link)) == [b"0", b"1", b"2", b"3", b"4"]
    assert os.listdir(link.parent) == ["link.db"] and link.is_symlink()


@pytest.mark.parametrize("kind", ["text", "foreign", "empty", "newer", "damaged", "missing", "cut"])
def test_restore_refuses_what_is_no_whole_backup_and_leaves_the_store_alone(
    tmp_path: Path, store: str, kind: str
) -> None:
    source = tmp_path / "source"
    backups.backup(store, str(source))
    if kind == "text":
        source.write_text("no database at all\n" * 100)
    elif kind == "empty":
        source.write_bytes(b"")
    elif kind == "missing":
        source.unlink()
    elif kind == "cut":
        source.write_bytes(source.read_bytes()[:-8192])
    elif kind == "damaged":
        data = bytearray(source.read_bytes())
        # A page of one table, not the first page: SQLite opens the file and reads on.
        data[-4096:-4000] = b"\xff" * 96
        source.write_bytes(data)
    else:
        with closing(sqlite3.connect(source)) as database:
            database.execute("PRAGMA application_id = 7" if kind == "foreign" else "PRAGMA user_version = 99")
    with pytest.raises(StoreError):
        backups.restore(str(source), store)
    left = set(os.listdir(tmp_path)) - {"source", "source-wal", "source-shm"}
    assert left == {"broker.db", "broker.db.lock"}
    assert drain(store) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_backup_that_fails_leaves_the_older_one_and_no_half_file(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.db"
    backups.backup(store, str(copy))
    before = copy.read_bytes()

    def fail(path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backups, "_sync", fail)
    with pytest.raises(StoreError, match="No space left on device"):
        backups.backup(store, str(copy))
    assert copy.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["broker.db", "broker.db.lock", "copy.db"]


def test_a_backup_replaces_nothing_but_a_backup(tmp_path: Path, store: str) -> None:
    other = tmp_path / "letter.txt"
    other.write_text("dear")
    for to in (str(other), store):
        with pytest.raises(StoreError):
            backups.backup(store, to)
    assert other.read_text() == "dear"
    assert drain(store) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_folder_is_named_as_one_and_left_alone(
    tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    for arguments in (
        ["backup", "folder", "--store", store],
        ["backup", "copy.db", "--store", "folder"],
        ["restore", "folder", "--store", store],
        ["info", "--store", "folder"],
    ):
        assert run(["store", *arguments]) == 2
        assert capsys.readouterr().err.splitlines()[-1].endswith("folder is a folder — name a file in it")
    assert os.listdir("folder") == []


def test_the_commands_back_up_show_and_restore(
    tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["store", "backup", "copy.db", "--store", "broker.db"]) == 0
    assert capsys.readouterr().out == "backed up broker.db to copy.db: 1 sessions, 5 messages waiting\n"
    assert run(["store", "info", "--store", "copy.db", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sessions"], found["subscriptions"], found["queued"], found["queued_bytes"]) == (1, 1, 5, 5)
    assert (found["retained"], found["wills"], found["size"]) == (1, 0, os.path.getsize("copy.db"))
    assert run(["store", "restore", "copy.db", "--store", "broker.db"]) == 0
    assert capsys.readouterr().out.startswith("restored broker.db from copy.db; the old store is broker.db.replaced-")
    assert run(["store", "restore", "nothing.db", "--store", "broker.db"]) == 2
    assert capsys.readouterr().err == "umqtt: there is no store nothing.db — name it with --store\n"
    assert drain("broker.db") == [b"0", b"1", b"2", b"3", b"4"]
