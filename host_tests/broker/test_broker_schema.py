"""The store's file: older versions are upgraded, foreign and newer ones refused, shared messages never leak."""

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

# The script of version 1 as it was released.
VERSION_1 = """
    CREATE TABLE session (number INTEGER PRIMARY KEY, client_id BLOB NOT NULL UNIQUE,
        sent_limit INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE subscription (session INTEGER NOT NULL, topic_filter BLOB NOT NULL, qos INTEGER NOT NULL,
        PRIMARY KEY (session, topic_filter)) WITHOUT ROWID;
    CREATE TABLE delivery (session INTEGER NOT NULL, position INTEGER NOT NULL, packet_id INTEGER NOT NULL,
        qos INTEGER NOT NULL, retain INTEGER NOT NULL, sent INTEGER NOT NULL, released INTEGER NOT NULL,
        topic_name BLOB NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (session, position)) WITHOUT ROWID;
    CREATE INDEX delivery_released ON delivery (session, released) WHERE released > 0;
    CREATE TABLE inbound (session INTEGER NOT NULL, packet_id INTEGER NOT NULL,
        PRIMARY KEY (session, packet_id)) WITHOUT ROWID;
    CREATE TABLE retained (topic_name BLOB PRIMARY KEY, payload BLOB NOT NULL, qos INTEGER NOT NULL) WITHOUT ROWID;
    PRAGMA user_version = 1;
    PRAGMA application_id = 0x756D7142;
"""

WILL_5 = Will(b"t", b"gone", 1, False, MessageProperties(30, b"\x03\0\1t"), 60)
RETAINED_5 = RetainedMessage(b"r", b"kept", 1, b"\x03\0\1t", 1_795_000_060)

# Concurrent sessions in the random runs.
SESSIONS = 4


def make_version_1(path: Path) -> None:
    database = sqlite3.connect(path)
    database.executescript("PRAGMA journal_mode = WAL;" + VERSION_1)
    database.executescript(
        "INSERT INTO session VALUES (1, x'61', 7), (2, x'62', 0);"
        "INSERT INTO subscription VALUES (1, x'742F23', 2);"
        "INSERT INTO delivery VALUES (1, 6, 11, 2, 0, 1, 1, x'742F31', x'');"
        "INSERT INTO delivery VALUES (1, 7, 12, 1, 1, 1, 0, x'742F32', x'6F6E65');"
        "INSERT INTO delivery VALUES (1, 9, 14, 2, 0, 0, 0, x'742F33', x'74776F');"
        "INSERT INTO inbound VALUES (2, 99);"
        "INSERT INTO retained VALUES (x'742F32', x'6F6E65', 1);"
    )
    database.close()


def test_the_released_script_of_version_1_was_not_changed(tmp_path: Path) -> None:
    make_version_1(tmp_path / "old.db")
    fresh = sqlite3.connect(tmp_path / "fresh.db")
    fresh.executescript(schema._MIGRATIONS[0])
    columns = "SELECT m.name, c.name, c.type, c.pk FROM sqlite_schema m, pragma_table_info(m.name) c ORDER BY 1, c.cid"
    assert fresh.execute(columns).fetchall() == sqlite3.connect(tmp_path / "old.db").execute(columns).fetchall()


def test_a_store_of_version_1_is_brought_up_with_everything_in_it(tmp_path: Path) -> None:
    make_version_1(tmp_path / "broker.db")
    database = schema.connect(str(tmp_path / "broker.db"))
    recovered, next_session, next_rank = recover(database)
    one, two = recovered.sessions
    assert (one.client_id, one.sent_limit, one.last_position, one.last_packet_id) == (b"a", 7, 9, 14)
    assert (one.queued, one.queued_bytes, one.released) == (3, 6, [(6, 11)])
    assert (one.subscriptions, one.username, one.away_since) == ([(b"t/#", 2, 0)], None, 0)
    assert (two.client_id, two.inbound, two.queued, two.queued_bytes) == (b"b", {99}, 0, 0)
    assert recovered.retained == [RetainedMessage(b"t/2", b"one", 1)]
    assert recovered.wills == {}
    assert (next_session, next_rank) == (3, 2)
    batch = Batch()
    batch.pages.append(Page(1, 6, 10, lambda rows: None))
    assert sqlite.write_batch(database, batch) == [
        [
            DeliveryRow(1, 7, 12, 1, 1, 1, 0, b"t/2", b"one", 0),
            DeliveryRow(1, 9, 14, 2, 0, 0, 0, b"t/3", b"two", 0),
        ]
    ]
    database.close()
    # A second opening finds nothing to do.
    again = schema.connect(str(tmp_path / "broker.db"))
    assert again.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    assert recover(again)[0] == recovered


def test_a_new_store_has_the_tables_of_an_old_one_that_was_brought_up_and_an_id_of_its_own(tmp_path: Path) -> None:
    """Planted: the trigger is left out; all new stores get the same id."""
    stores = [schema.connect(str(tmp_path / name)) for name in ("one.db", "two.db")]
    with sqlite3.connect(tmp_path / "old.db") as old:
        for number in range(schema.VERSION):
            schema.migrate(old, number, number + 1)
    stores.append(old)
    made = [store.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY 1, 2").fetchall() for store in stores]
    assert made[0] == made[1] == made[2]
    rows = [store.execute("SELECT length(id), run, commits, messages FROM broker").fetchall() for store in stores]
    assert rows == [[(32, b"", 0, 0)]] * 3
    assert len({store.execute("SELECT id FROM broker").fetchone() for store in stores}) == 3
    for store in stores:
        store.close()


def test_a_store_of_version_2_is_brought_up_with_everything_in_it(tmp_path: Path) -> None:
    path = str(tmp_path / "broker.db")
    make_version_1(tmp_path / "broker.db")
    database = sqlite3.connect(path)
    database.executescript(
        schema._MIGRATIONS[1] + "PRAGMA user_version = 2;"
        "INSERT INTO message VALUES (5, 1, x'742F34', x'7468726565');"
        "INSERT INTO delivery VALUES (2, 4, 3, 1, 0, 0, 0, x'', x'', 1795000000, 5);"
        "INSERT INTO will VALUES (x'62', x'74', x'676F6E65', 1, 0);"
    )
    database.close()
    database = schema.connect(path)
    recovered, next_number, _ = recover(database)
    assert [found.queued for found in recovered.sessions] == [3, 1]
    assert [found.retained_pending for found in recovered.sessions] == [[], []]
    assert recovered.wills == {b"b": Will(b"t", b"gone", 1, False)}
    assert (recovered.shares, next_number) == ([], 3)
    batch = Batch()
    batch.shares = {3: b"\0$share/g/t"}
    batch.pages.append(Page(2, 0, 10, lambda rows: None))
    assert sqlite.write_batch(database, batch) == [[DeliveryRow(2, 4, 3, 1, 0, 0, 0, b"t/4", b"three", 1795000000)]]
    assert [found.client_id for found in recover(database)[0].shares] == [b"\0$share/g/t"]


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


def test_a_newer_store_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    schema.connect(str(path)).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"version 99.*newer umqtt"):
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
