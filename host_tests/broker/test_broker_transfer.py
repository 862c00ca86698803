"""What a lost broker had acknowledged moves to another one: all of it or nothing, once, in its clients' sessions."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from broker_peer import BrokerProcess, Peer
from umqtt_broker import StoreError
from umqtt_broker.protocol.messages import MessageProperties, RetainedMessage, Will
from umqtt_broker.store import schema, sqlite, transfer
from umqtt_broker.store.base import Owner
from umqtt_broker.store.change_batch import Batch
from umqtt_broker.store.recovery import recover
from umqtt_kit.__main__ import run
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBCOMP, PUBLISH, PUBREC, PUBREL

_FULL = bool(os.getenv("UMQTT_FULL_SWEEPS"))
LARGE = b"x" * 500
# Where a process dies: percent of its steps.
CUTS = range(1, 101) if _FULL else (30, 75, 100)


def make_store(path: Path) -> str:
    """Make a store with one of everything: the lost broker's."""
    batch = Batch()
    batch.sessions = {1: (b"both", Owner()), 2: (b"moves", Owner(b"anna", 5, 60)), 3: (b"pub\0c", Owner())}
    batch.shares = {4: b"\0$share/g/t"}
    batch.subscriptions = {
        (1, b"a/#"): (1, 0),
        (2, b"$share/g/t"): (1, 0),
        (2, b"b"): (2 | 8, 7),
        (3, b"pub/c"): (1, 0),
    }
    batch.sent_limits = {1: 2, 2: 2}
    batch.inbound = {(1, 9): True, (2, 8): True}
    batch.deliveries = [
        (1, 1, 1, 1, 0, 1, 0, b"a/1", b"sent", 0),
        (1, 2, 2, 2, 0, 1, 0, b"a/2", b"", 0),
        (1, 3, 3, 2, 1, 0, 0, b"a/3", LARGE, 1_795_000_000),
        (2, 1, 1, 2, 0, 1, 0, b"b", b"", 0),
        (2, 2, 2, 2, 0, 1, 0, b"b", b"in flight", 0),
        (2, 3, 3, 1, 2, 0, 0, b"b", b"\0payload of MQTT 5", 0),
        (2, 4, 4, 1, 0, 0, 0, b"a/3", LARGE, 0),
        (4, 1, 0, 1, 0, 0, 0, b"t", b"shared", 0),
    ]
    batch.released = [(1, 1, 2), (2, 2, 1)]
    batch.retained = {
        b"state": RetainedMessage(b"state", b"old", 1),
        b"alone": RetainedMessage(b"alone", b"kept", 1, b"\x03\0\1t", 1_795_000_060),
    }
    gone = Will(b"t", b"gone", 1, False, MessageProperties(30, b"\x03\0\1t"), 60)
    batch.wills = {b"both": Will(b"state", b"gone", 1, True), b"moves": gone}
    with closing(schema.connect(str(path))) as database:
        sqlite.write_batch(database, batch)
    return str(path)


def make_other(path: Path) -> str:
    """Make the store of the remaining broker: `both` is here already."""
    batch = Batch()
    batch.sessions = {1: (b"here", Owner()), 5: (b"both", Owner())}
    batch.subscriptions = {(5, b"a/#"): (0, 0)}
    batch.sent_limits = {5: 80}
    batch.deliveries = [(5, 7, 1, 1, 0, 0, 0, b"a/0", LARGE, 0), (1, 7, 1, 1, 0, 0, 0, b"a/0", LARGE, 0)]
    batch.retained = {b"state": RetainedMessage(b"state", b"new", 1)}
    with closing(schema.connect(str(path))) as database:
        sqlite.write_batch(database, batch)
        sqlite.write_batch(database, Batch())
    return str(path)


@pytest.fixture
def lost(tmp_path: Path) -> str:
    return make_store(tmp_path / "lost.db")


@pytest.fixture
def other(tmp_path: Path) -> str:
    return make_other(tmp_path / "other.db")


@pytest.fixture
def file(tmp_path: Path, lost: str) -> str:
    transfer.export(lost, str(tmp_path / "file"))
    return str(tmp_path / "file")


def content(path: str) -> dict[str, list[Any]]:
    """Return every row that matters."""
    tables = ("session", "share", "subscription", "delivery", "message", "inbound", "retained", "will", "quarantine")
    with closing(schema.connect(path)) as database:
        found = {table: database.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables}
        found["imported"] = database.execute("SELECT count(*) FROM imported").fetchall()
    return found


def queue(path: str, client_id: bytes) -> list[Any]:
    """Return (packet_id, qos, flags, sent, is_released, payload, expires_at) of a session's messages, in order."""
    with closing(schema.connect(path)) as database:
        return database.execute(
            "SELECT packet_id, qos, flags, sent, released > 0, coalesce((SELECT m.payload FROM message m"
            " WHERE m.number = message), payload), expires_at FROM delivery"
            " WHERE session = (SELECT number FROM session WHERE client_id = ?) ORDER BY position",
            (client_id,),
        ).fetchall()


@pytest.mark.tier(0)
def test_a_session_moves_as_it_is_and_one_that_is_there_already_gets_what_waited(file: str, other: str) -> None:
    """Planted: in a session that exists already, sent messages keep their DUP; its inbound identifiers come too;
    released ones come again; wills of clients that have come since; the file's retained message replaces the newer
    one; numbers of shared messages are not shifted.
    """
    before = queue(other, b"both")
    assert transfer.import_(file, other) == transfer.Imported(3, 7, 1, 1, 0)
    assert queue(other, b"moves") == [
        (1, 2, 0, 1, True, b"", 0),
        (2, 2, 0, 1, False, b"in flight", 0),
        (3, 1, 2, 0, False, b"\0payload of MQTT 5", 0),
        (4, 1, 0, 0, False, LARGE, 0),
    ]
    assert queue(other, b"both") == [
        *before,
        (1, 1, 0, 0, False, b"sent", 0),
        (3, 2, 1, 0, False, LARGE, 1_795_000_000),
    ]
    with closing(schema.connect(other)) as database:
        found = recover(database)[0]
        copies = database.execute("SELECT copies FROM message ORDER BY number").fetchall()
    sessions = {session.client_id: session for session in found.sessions}
    assert sorted(sessions) == [b"both", b"here", b"moves", b"pub\0c"]
    moved, both = sessions[b"moves"], sessions[b"both"]
    assert (moved.username, moved.protocol_level, moved.session_expiry, moved.sent_limit) == (b"anna", 5, 60, 2)
    assert (moved.inbound, both.inbound) == ({8}, set())
    assert moved.subscriptions == [(b"$share/g/t", 1, 0), (b"b", 10, 7)]
    assert both.subscriptions == [(b"a/#", 0, 0)]
    assert both.last_position > 80  # after what the other broker may have sent
    assert [(share.client_id, share.queued) for share in found.shares] == [(b"\0$share/g/t", 1)]
    assert sorted(message[:2] for message in found.retained) == [(b"alone", b"kept"), (b"state", b"new")]
    assert list(found.wills) == [b"moves"]
    assert copies == [(2,), (2,)]


def test_clients_of_a_lost_broker_go_on_at_another_one(tmp_path: Path) -> None:
    """Kill -9, export, import: every acknowledged message is there, at QoS 2 once.

    Planted: packet identifiers are assigned anew; inbound identifiers are left behind.
    """
    lost, other, file = (str(tmp_path / name) for name in ("lost.db", "other.db", "file"))
    with BrokerProcess(lost) as broker:
        keeper, sender = Peer(broker.port), Peer(broker.port)
        keeper.connect(b"keeper", clean_session=False, will=(b"state/keeper", b"gone", 1, True))
        keeper.subscribe(b"kept/#", 2)
        sender.connect(b"sender", clean_session=False)
        sender.publish(b"kept/2", b"once", 2)
        sent = keeper.receive_message(acknowledge=False)
        sender.send(encoder.publish(b"kept/2", b"half", 2, 77))
        sender.expect(PUBREC, 77)
        keeper.flush()
        sender.publish(b"kept/1", b"waits", 1)
        broker.kill()
        keeper.close()
        sender.close()
    with BrokerProcess(other) as broker:
        broker.stop()
    transfer.export(lost, file)
    transfer.import_(file, other)
    with BrokerProcess(other) as broker, Peer(broker.port) as keeper, Peer(broker.port) as sender:
        assert sender.connect(b"sender", clean_session=False)
        sender.send(encoder.publish(b"kept/2", b"half", 2, 77, dup=True))
        sender.expect(PUBREC, 77)
        sender.send(encoder.acknowledgement(PUBREL, 77))
        sender.expect(PUBCOMP, 77)
        sender.subscribe(b"state/#", 1)
        assert sender.receive_message().payload == b"gone"
        assert keeper.connect(b"keeper", clean_session=False)
        received = [keeper.receive_message(acknowledge=False) for _ in range(3)]
        assert [message.payload for message in received] == [b"once", b"half", b"waits"]
        assert (received[0].packet_id, received[0].dup) == (sent.packet_id, True)
        assert not [packet for packet in keeper.flush() if packet.kind == PUBLISH]
        broker.stop()


def _refused(file: str, store: str, what: Any) -> str:
    with pytest.raises(StoreError) as refused:
        what(file, store)
    text = str(refused.value)
    assert "\n" not in text, text
    assert " — " in text or "nothing to do" in text, text
    return text


DIES = """
import os, signal, sqlite3, sys
left = int(sys.argv[1])
def count():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
class Dying(sqlite3.Connection):
    def execute(self, *arguments):
        count()
        return super().execute(*arguments)
connect = sqlite3.connect
sqlite3.connect = lambda *arguments, **options: connect(*arguments, factory=Dying, **options)
for name in ("fsync", "link", "unlink", "rename"):
    def dying(*arguments, function=getattr(os, name), **options):
        count()
        return function(*arguments, **options)
    setattr(os, name, dying)
from umqtt_broker.store import transfer
getattr(transfer, sys.argv[2])(*sys.argv[3:])
print(-left)
"""


def cut(at: int, function: str, *arguments: str) -> int:
    """Run a function in a process that dies at its n-th step on a database or the disk (0: never).

    Returns the number of its steps.
    """
    command = [sys.executable, "-c", DIES, str(at), function, *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=False).stdout or 0)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Provide the number of steps of each function."""
    folder = tmp_path_factory.mktemp("steps")
    lost, other, file = make_store(folder / "lost.db"), make_other(folder / "other.db"), str(folder / "file")
    return {"export": cut(0, "export", lost, file), "import_": cut(0, "import_", file, other)}


@pytest.mark.parametrize("percent", CUTS)
def test_an_import_that_is_cut_off_anywhere_has_done_all_or_nothing_and_can_be_repeated(
    file: str, other: str, tmp_path: Path, steps: dict[str, int], percent: int
) -> None:
    # Planted: a commit after each table; the identity of the file's broker is not checked.
    whole = make_other(tmp_path / "whole.db")
    transfer.import_(file, whole)
    states = [content(other), content(whole)]
    assert not cut(max(1, steps["import_"] * percent // 100), "import_", file, other)
    assert content(other) in states, percent
    try:
        transfer.import_(file, other)
    except StoreError as error:
        assert "imported into this store before" in str(error)
    assert content(other) == states[1]


@pytest.mark.parametrize("percent", CUTS)
def test_an_export_that_is_cut_off_anywhere_leaves_the_store_or_a_whole_file(
    lost: str, other: str, tmp_path: Path, steps: dict[str, int], percent: int
) -> None:
    # Planted: the store is renamed before the file is complete.
    file = str(tmp_path / "file")
    assert not cut(max(1, steps["export"] * percent // 100), "export", lost, file)
    if os.path.exists(lost):
        transfer.export(lost, file)
    assert transfer.import_(file, other) == transfer.Imported(3, 7, 1, 1, 0)


@pytest.mark.tier(0)
def test_nothing_is_imported_twice_by_whatever_way(tmp_path: Path, lost: str, file: str, other: str) -> None:
    # Planted: the identities that the file's broker had imported are not passed on.
    assert not os.path.exists(lost)
    transfer.import_(file, other)
    once = content(other)
    assert "before: there is nothing to do" in _refused(file, other, transfer.import_)
    onward, third = str(tmp_path / "onward"), make_other(tmp_path / "third.db")
    transfer.export(other, onward)
    transfer.import_(onward, third)
    assert "nothing to do" in _refused(file, third, transfer.import_)
    assert len(content(third)["delivery"]) == len(once["delivery"]) + 2


# Damage to a file, and the message about it.
HOSTILE = {
    "UPDATE session SET client_id = x'ff' WHERE number = 1": "a session that no broker writes",
    "UPDATE session SET client_id = x'0061' WHERE number = 1": "a session that no broker writes",
    "UPDATE session SET client_id = 'text' WHERE number = 1": "a session that no broker writes",
    "UPDATE session SET number = -4 WHERE number = 1": "a session that no broker writes",
    "UPDATE session SET number = 1 << 61 WHERE number = 1": "a session that no broker writes",
    "UPDATE session SET protocol_level = 9": "a session that no broker writes",
    "UPDATE session SET session_expiry = -1": "a session that no broker writes",
    "UPDATE share SET key = x'00'": "a shared subscription that no broker writes",
    "UPDATE share SET number = 1": "a shared subscription that no broker writes",
    "UPDATE subscription SET topic_filter = x'2361' WHERE session = 1": "a subscription that no broker writes",
    "UPDATE subscription SET options = 3": "a subscription that no broker writes",
    "UPDATE subscription SET session = 99 WHERE session = 1": "a subscription that no broker writes",
    "UPDATE inbound SET packet_id = 0 WHERE session = 1": "a packet identifier that no broker writes",
    "UPDATE delivery SET packet_id = 65536": "a message that no broker writes",
    "UPDATE delivery SET position = 1 << 61 WHERE position = 3": "a message that no broker writes",
    "UPDATE delivery SET qos = 3": "a message that no broker writes",
    "UPDATE delivery SET topic_name = x'23', checksum = NULL WHERE message IS NULL": "a message that no broker writes",
    "UPDATE delivery SET payload = x'7f', checksum = NULL WHERE flags = 2": "a message that no broker writes",
    "UPDATE delivery SET expires_at = 'soon'": "a message that no broker writes",
    "DELETE FROM retained WHERE expires_at; UPDATE retained SET topic_name = x'2b', checksum = NULL": (
        "a retained message that no broker writes"
    ),
    "UPDATE retained SET passed_on = x'ff', checksum = NULL": "a retained message that no broker writes",
    "UPDATE will SET qos = 7": "a will that no broker writes",
    "UPDATE imported SET broker_id = 1": "a store or a backup of one",
    "DELETE FROM broker": "a store or a backup of one",
    "DELETE FROM imported": "a store or a backup of one",
    "DROP TABLE inbound": "its tables are not those",
    "DROP TABLE will; CREATE VIEW will AS SELECT * FROM retained": "its tables are not those",
    "DROP TABLE inbound; CREATE VIRTUAL TABLE inbound USING fts5(session, packet_id)": "its tables are not those",
    "PRAGMA user_version = 3": "has version 3, this broker knows",
    "PRAGMA application_id = 1": "not a broker's store",
}


@pytest.mark.tier(0)
@pytest.mark.parametrize("change", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line_and_changes_nothing(file: str, other: str, change: str) -> None:
    before = content(other)
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.executescript(change)
    assert HOSTILE[change] in _refused(file, other, transfer.import_)
    assert content(other) == before


@pytest.mark.tier(0)
def test_flipped_bytes_are_refused_or_set_aside_and_never_leave_half_an_import(
    file: str, other: str, tmp_path: Path
) -> None:
    """Planted: messages are not compared with their checksums; SQLite's error messages are passed on unchanged."""
    rng = random.Random(20)
    good = Path(file).read_bytes()
    before = content(other)
    sent = {row[8] for row in content(file)["delivery"]} | {LARGE}
    for round_ in range(2000 if _FULL else 25):
        bad = bytearray(good)
        for at in rng.sample(range(len(bad)), rng.choice((1, 20))):
            bad[at] ^= 1 << rng.randrange(8)
        Path(file).write_bytes(bad)
        target = str(tmp_path / f"target-{round_}.db")
        Path(target).write_bytes(Path(other).read_bytes())
        try:
            transfer.import_(file, target)
        except StoreError as error:
            assert "\n" not in str(error)
            assert content(target) == before
        else:
            with closing(schema.connect(target)) as database:
                recover(database)
            assert {row[8] for row in content(target)["delivery"]} <= sent
        for name in ("", ".lock"):
            os.unlink(target + name)


@pytest.mark.tier(0)
def test_garbled_messages_are_set_aside_and_counted(file: str, other: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("UPDATE delivery SET payload = x'00' WHERE payload = x'696E20666C69676874'")
        database.execute("UPDATE message SET payload = x'00'")
        database.execute("UPDATE retained SET payload = x'00' WHERE topic_name = CAST('alone' AS BLOB)")
    assert transfer.import_(file, other) == transfer.Imported(3, 4, 0, 1, 4)
    assert len(content(other)["quarantine"]) == 4


@pytest.fixture
def refusals(tmp_path: Path, lost: str, other: str) -> Iterator[dict[str, list[str]]]:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    raw = make_store(tmp_path / "raw.db")
    with BrokerProcess(other):
        yield {
            "is open in another broker": ["export", str(tmp_path / "file"), "--store", other],
            f"store {other} is open in another broker": ["import", raw, "--store", other],
            "there is no store": ["export", str(tmp_path / "file"), "--store", str(tmp_path / "none.db")],
            "there is no file": ["import", str(tmp_path / "none"), "--store", lost],
            f"there is no store {tmp_path / 'none.db'}": ["import", raw, "--store", str(tmp_path / "none.db")],
            "is the store itself": ["export", lost, "--store", lost],
            f"{lost} is the store itself": ["import", lost, "--store", lost],
            "is a store or a backup of one": ["import", raw, "--store", lost],
            "is empty": ["import", str(empty), "--store", lost],
        }


def test_what_cannot_be_moved_is_refused_in_one_line(
    refusals: dict[str, list[str]], lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(lost)
    for said, arguments in refusals.items():
        assert run(["store", *arguments]) == 2, arguments
        errors = capsys.readouterr().err
        assert said in errors and errors.count("\n") == 1, (arguments, errors)
    assert content(lost) == before


def test_the_commands_say_what_was_moved(
    lost: str, other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "north.export")
    assert run(["store", "export", file, "--store", lost]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"exported {lost} to {file}: 3 sessions, 8 messages waiting; the old store is {lost}.exp")
    assert os.path.exists(printed.split()[-1])
    assert run(["store", "import", file, "--store", other]) == 0
    assert capsys.readouterr().out == (
        f"imported {file} into {other}: 3 sessions, 7 messages waiting, 1 retained, 1 wills\n"
    )
