"""The store's file: foreign ones and other versions are refused, shared messages never leak."""

import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from umqtt_broker import StoreError
from umqtt_broker.protocol.messages import MessageProperties, RetainedMessage, Will
from umqtt_broker.store import schema, sqlite
from umqtt_broker.store.base import DeliveryRow, Owner
from umqtt_broker.store.change_batch import Batch, Page
from umqtt_broker.store.recovery import recover

pytestmark = pytest.mark.tier(0)

WILL_5 = Will(b"t", b"gone", 1, False, MessageProperties(30, b"\x03\0\1t"), 60)
RETAINED_5 = RetainedMessage(b"r", b"kept", 1, b"\x03\0\1t", 1_795_000_060)

# Concurrent sessions in the random runs.
SESSIONS = 4


def test_new_stores_have_ids_of_their_own(tmp_path: Path) -> None:
    """Planted: all new stores get the same id."""
    stores = [schema.connect(str(tmp_path / name)) for name in ("one.db", "two.db")]
    rows = [store.execute("SELECT length(id), run, commits, messages FROM broker").fetchall() for store in stores]
    assert rows == [[(32, b"", 0, 0)]] * 2
    assert len({store.execute("SELECT id FROM broker").fetchone() for store in stores}) == 2
    for store in stores:
        store.close()


def test_a_message_moves_from_a_shared_queue_to_a_session_whole_or_not_at_all(tmp_path: Path) -> None:
    path = str(tmp_path / "broker.db")
    database = schema.connect(path)
    first = Batch()
    first.sessions = {1: (b"a", Owner())}
    first.shares = {2: b"\0$share/g/t"}
    first.deliveries = [(2, position, 0, 2, 0, 0, 0, b"t", b"x" * position, 0) for position in (1, 2, 3)]
    sqlite.write_batch(database, first)
    move = Batch()
    # One that exists, and one that the same transaction inserts and completes.
    move.deliveries = [(2, 4, 0, 2, 0, 0, 0, b"t", b"four", 0)]
    move.moves = [(1, 1, 77, 2, 2, 2), (1, 2, 78, 2, 2, 4)]
    move.acknowledged = {1: [2]}
    pages = [Page(number, 0, 10, lambda rows: None) for number in (1, 2)]
    cut_off(database, move)
    database.close()
    database = schema.connect(path)
    found = recover(database)[0]
    assert (found.sessions[0].queued, found.shares[0].queued, found.shares[0].queued_bytes) == (0, 3, 6)
    move.pages = pages
    mine, groups = sqlite.write_batch(database, move)
    assert mine == [DeliveryRow(1, 1, 77, 2, 0, 1, 0, b"t", b"xx", 0)]
    assert [row.position for row in groups] == [1, 3]
    end = Batch()
    end.shares = {2: None}
    sqlite.write_batch(database, end)
    # Not while messages refer to it.
    assert recover(database)[1] == 3
    remove_leftovers(database)
    assert database.execute("SELECT session, count(*) FROM delivery").fetchall() == [(1, 1)]
    # A number is never given to two, whatever has ended.
    assert recover(database)[1] == 2


@pytest.mark.parametrize("version", [schema.VERSION + 1, 99, -1])
def test_a_store_of_another_version_is_refused_and_not_touched(tmp_path: Path, version: int) -> None:
    path = tmp_path / "broker.db"
    schema.connect(str(path)).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {version}")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"version {version}.*the umqtt that made it"):
        schema.connect(str(path))
    assert path.read_bytes() == before


def test_what_a_session_and_a_connected_client_left_is_recovered(tmp_path: Path) -> None:
    database = schema.connect(str(tmp_path / "broker.db"))
    batch = Batch()
    batch.sessions = {1: (b"a", Owner(b"anna", 5, 60)), 2: (b"b", Owner())}
    batch.away = {1: 1_795_000_000}
    batch.owners = {2: Owner(b"ben")}
    batch.wills = {b"b": Will(b"t", b"gone", 1, True), b"c": None, b"d": WILL_5}
    batch.retained = {b"r": RETAINED_5}
    batch.subscriptions = {(1, b"t"): (1 | 8, 300)}
    batch.deliveries = [(1, 1, 1, 1, 0, 0, 0, b"t", b"x", 1_795_000_060)]
    sqlite.write_batch(database, batch)
    recovered = recover(database)[0]
    kept = [
        (found.username, found.away_since, found.protocol_level, found.session_expiry) for found in recovered.sessions
    ]
    assert kept == [(b"anna", 1_795_000_000, 5, 60), (b"ben", 0, 4, None)]
    assert recovered.wills == {b"b": Will(b"t", b"gone", 1, True), b"d": WILL_5}
    assert (recovered.retained, recovered.sessions[0].subscriptions) == ([RETAINED_5], [(b"t", 9, 300)])
    again = Batch()
    again.wills = {b"b": None, b"d": None}
    again.pages.append(Page(1, 0, 10, lambda rows: None))
    assert sqlite.write_batch(database, again)[0][0].expires_at == 1_795_000_060
    assert recover(database)[0].wills == {}


def test_a_payload_that_many_sessions_wait_for_is_stored_once(tmp_path: Path) -> None:
    database = schema.connect(str(tmp_path / "broker.db"))
    payload = b"x" * 100_000
    batch = Batch()
    batch.sessions = {number: (b"%d" % number, Owner()) for number in range(1, 101)}
    batch.deliveries = [(number, 1, 1, 1, 0, 0, 0, b"t", payload, 0) for number in range(1, 101)]
    batch.pages = [Page(100, 0, 10, lambda rows: None)]
    assert sqlite.write_batch(database, batch) == [[DeliveryRow(100, 1, 1, 1, 0, 0, 0, b"t", payload, 0)]]
    assert database.execute("SELECT count(*), sum(length(payload)) FROM message").fetchone() == (1, 100_000)
    assert database.execute("SELECT sum(length(payload)) FROM delivery").fetchone() == (0,)
    assert {found.queued_bytes for found in recover(database)[0].sessions} == {100_000}


@pytest.mark.parametrize("seed", range(8))
def test_when_every_delivery_is_gone_no_message_is_left_also_after_kills(tmp_path: Path, seed: int) -> None:
    """Random batches: shared and single payloads, acknowledgements, ended sessions, transactions cut off."""
    rng = random.Random(seed)
    path = str(tmp_path / "broker.db")
    database = schema.connect(path)
    waiting: dict[int, dict[int, DeliveryRow]] = {number: {} for number in range(1, SESSIONS + 1)}
    first = Batch()
    first.sessions = {number: (b"%d" % number, Owner()) for number in waiting}
    sqlite.write_batch(database, first)
    position, next_session = 0, SESSIONS + 1
    for step in range(120):
        ending = step >= 100
        batch = Batch()
        expected = {number: dict(queue) for number, queue in waiting.items()}
        for _ in range(0 if ending else rng.randint(0, 4)):
            payload = bytes([rng.randrange(256)]) * rng.choice([0, 1, 127, 128, 5000])
            for number in rng.sample(sorted(waiting), rng.randint(1, len(waiting))):
                position += 1
                row = DeliveryRow(number, position, 1, 1, 0, 0, 0, b"t/%d" % rng.randint(1, 2), payload, 0)
                batch.deliveries.append(row)
                expected[number][position] = row
        for number, queue in waiting.items():
            gone = sorted(queue) if ending and rng.random() < 0.3 else rng.sample(sorted(queue), len(queue) // 3)
            if gone:
                batch.acknowledged[number] = gone
                for acknowledged in gone:
                    del expected[number][acknowledged]
        if rng.random() < 0.1:
            number = rng.choice(sorted(waiting))
            batch.sessions = {number: None, next_session: (b"%d" % next_session, Owner())}
            del expected[number]
            expected[next_session] = {}
            next_session += 1
        if rng.random() < 0.15:
            cut_off(database, batch)
            database.close()
            database = schema.connect(path)
            continue
        sqlite.write_batch(database, batch)
        waiting = expected
        check = Batch()
        check.pages = [Page(number, 0, 10_000, lambda rows: None) for number in waiting]
        assert sqlite.write_batch(database, check) == [list(queue.values()) for queue in waiting.values()], (seed, step)
    last = Batch()
    last.acknowledged = {number: sorted(queue) for number, queue in waiting.items() if queue}
    sqlite.write_batch(database, last)
    remove_leftovers(database)
    left = "SELECT (SELECT count(*) FROM delivery), (SELECT count(*) FROM message)"
    assert database.execute(left).fetchone() == (0, 0), seed


def remove_leftovers(database: sqlite3.Connection) -> None:
    """Remove the messages of the sessions and groups that have ended."""
    for number in recover(database)[0].leftovers:
        batch = Batch()
        batch.leftover = number
        sqlite.write_batch(database, batch)
        assert batch.leftover_is_gone


class _Cut(Exception):
    """The process dies here."""


def cut_off(database: sqlite3.Connection, batch: Batch) -> None:
    """Write `batch`, but die before the COMMIT."""

    class Dying:
        executemany = database.executemany
        total_changes = 0

        @staticmethod
        def execute(statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "COMMIT":
                raise _Cut
            return database.execute(statement, *values)

    with pytest.raises(_Cut):
        sqlite.write_batch(Dying, batch)


@pytest.mark.tier(1)
def test_after_kill_9_in_mid_load_and_a_drained_queue_no_message_is_left(tmp_path: Path) -> None:
    """A process that writes shared messages is killed; what is found is acknowledged; nothing stays."""
    path = tmp_path / "broker.db"
    script = """
import sys
from umqtt_broker.store import schema, sqlite
from umqtt_broker.store.base import Owner
from umqtt_broker.store.change_batch import Batch
database = schema.connect(sys.argv[1])
batch = Batch()
batch.sessions = {1: (b"a", Owner()), 2: (b"b", Owner())}
position = 0
while True:
    for _ in range(50):
        position += 1
        payload = b"%d" % position * 100
        batch.deliveries += [(number, position, 1, 1, 0, 0, 0, b"t", payload, 0) for number in (1, 2)]
    if position > 200:
        batch.acknowledged = {1: list(range(position - 150, position - 100))}
    sqlite.write_batch(database, batch)
    batch = Batch()
    print(position, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    written = [int(process.stdout.readline()) for _ in range(8)][-1]
    process.kill()
    process.wait()
    process.stdout.close()
    database = schema.connect(str(path))
    found = dict(database.execute("SELECT session, max(position) FROM delivery GROUP BY session"))
    assert min(found.values()) >= written
    batch = Batch()
    batch.acknowledged = {number: list(range(1, last + 1)) for number, last in found.items()}
    sqlite.write_batch(database, batch)
    assert database.execute("SELECT count(*) FROM message").fetchone() == (0,)
