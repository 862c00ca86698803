"""A damaged page costs what is on it: the broker reports it, starts if told to, and continues if it is running.

Each page of a database, garbled at random: never a traceback, never a message that was not published.
UMQTT_FULL_SWEEPS=1 garbles each page in several ways.

Planted: a salvage that stops at the first damaged page, or that looks for nothing between two; one that cannot read a
file that is shorter than its first page says; a list of tables that is not mended; a refusal that always promises that
something can be read; numbers of lost sessions that are given away again; a store
that does not check what it reads; a transaction that fails again and again at a damaged page.
"""

import operator
import os
import random
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from broker_peer import BrokerProcess, BrokerThread, Peer
from damaged_stores import TOPIC, WAL, Found, History, payload_of
from umqtt_broker import BrokerConfig, StoreError
from umqtt_broker.store.check import check
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, SUBACK

from umqtt_cli.__main__ import run

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
SEED = int(os.environ.get("UMQTT_SEED", "1"))
PAGE = 4096
SESSIONS = 3
COUNT = 200
SIZE = 300
STATES = 30
# The messages of all sessions: the first one's filter matches a topic that the others' filters do not.
TOTAL = 200 + 150 + 150


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a store with three sessions of 200 messages, some of them shared, and 30 retained messages."""
    path = tmp_path_factory.mktemp("whole") / "broker.db"
    with BrokerThread(BrokerConfig(port=0, store=str(path), sys_interval=0)) as broker:
        for number in range(SESSIONS):
            with Peer(broker.port) as keeper:
                keeper.connect(b"keeper-%d" % number, clean_session=False)
                keeper.subscribe(TOPIC if number else TOPIC + b"/#", 1)
        with Peer(broker.port) as publisher:
            publisher.connect(b"publisher")
            for number in range(COUNT):
                publisher.publish(TOPIC if number % 4 else TOPIC + b"/x", payload_of(number, SIZE), 1)
            for number in range(STATES):
                publisher.publish(b"state/%d" % number, payload_of(number, SIZE), 1, retain=True)
    return path


def copy(whole: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return Path(shutil.copy(whole, folder))


def garble(path: Path, page: int, how: int, chance: random.Random) -> str:
    """Damage a page; how: 0 a byte, 1 some bytes at its head, 2 all of it. Returns a description."""
    content = bytearray(path.read_bytes())
    start = (page - 1) * PAGE
    if how == 0:
        at, length = chance.randrange(PAGE), 1
    elif how == 1:
        at, length = chance.randrange(100), chance.randrange(1, 100)
    else:
        at, length = 0, PAGE
    content[start + at : start + at + length] = bytes(
        byte ^ chance.randrange(1, 256) for byte in content[start + at : start + at + length]
    )
    path.write_bytes(content)
    return f"page {page}, byte {at}, {length} bytes, seed {SEED}"


def problems_of(path: Path) -> list[str]:
    """Return what `umqtt store check` finds."""
    try:
        return check(str(path))
    except StoreError as error:
        return [str(error)]


def check_served(port: int, where: str) -> int:
    """Check what the keepers and a newcomer get, and publish. Returns the number of the keepers' messages."""
    true = {payload_of(number, SIZE) for number in range(COUNT)} | {b"after"}
    with Peer(port) as publisher:
        publisher.connect(b"publisher")
        publisher.publish(TOPIC, b"after", 1)
    found = 0
    for number in range(SESSIONS):
        found += len(received(port, b"keeper-%d" % number, b"none", true, where))
    received(port, b"newcomer", b"state/#", true, where)
    return found


def received(port: int, client_id: bytes, topic_filter: bytes, true: set[bytes], where: str) -> list[bytes]:
    """Connect a client, subscribe, and return what it gets, all of which must have been published."""
    found = []
    with Peer(port) as client:
        client.connect(client_id, clean_session=False)
        client.send(encoder.subscribe(7, (topic_filter, 1), (b"end/" + client_id, 1)))
        while (packet := client.receive()).payload != b"end":
            if packet.kind == SUBACK:
                with Peer(port) as publisher:
                    publisher.connect(b"publisher")
                    publisher.publish(b"end/" + client_id, b"end", 1)
                continue
            assert packet.payload in true, (where, packet)
            found.append(packet.payload)
            client.send(encoder.acknowledgement(PUBACK, packet.packet_id))
    return found


def test_a_page_garbled_at_random_is_a_line_and_never_a_message(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(SEED)
    pages = whole.stat().st_size // PAGE
    cases = [(page, how) for page in range(1, pages + 1) for how in (0, 1, 2)]
    refused = 0
    for page, how in cases if FULL else chance.sample(cases, 25):
        path = copy(whole, tmp_path / "copy")
        where = garble(path, page, how, chance)
        problems = problems_of(path)
        caplog.clear()
        promised = False
        for accept_loss in (False, True):
            try:
                with BrokerThread(BrokerConfig(port=0, store=str(path), accept_loss=accept_loss)) as broker:
                    check_served(broker.port, where)
                # What a broker reports, a check has found before.
                assert problems or not [record for record in caplog.records if record.levelname == "ERROR"], where
                break
            except StoreError as error:
                assert "\n" not in str(error), (where, str(error))
                assert problems, (where, str(error))
                refused += 1
                # Only the first page says what kind of file it is, and where its tables are.
                assert not accept_loss or page == 1, (where, str(error))
                # What a refusal promises is true.
                assert not promised, (where, str(error))
                promised = "--accept-loss" in str(error)
        tracebacks = [record for record in caplog.records if record.exc_info]
        assert not tracebacks, (where, tracebacks)
    print(f"{refused} of {len(cases)} refused, seed {SEED}")


def zero_leaf(path: Path, table: str, part: float = 1 / 2) -> None:
    """Zero a page of a table. part: where in the table."""
    with closing(sqlite3.connect(path)) as database:
        leaves = database.execute(
            "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY path", (table,)
        ).fetchall()
    with open(path, "r+b") as file:
        file.seek((leaves[int(len(leaves) * part)][0] - 1) * PAGE)
        file.write(bytes(PAGE))


def test_a_damaged_page_of_messages_costs_the_messages_on_it(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy(whole, tmp_path / "copy")
    zero_leaf(path, "delivery")
    with pytest.raises(StoreError, match=r"malformed. — restore a backup, or start with --accept-loss"):
        BrokerThread(BrokerConfig(port=0, store=str(path))).__enter__()
    damaged = path.read_bytes()
    with BrokerThread(BrokerConfig(port=0, store=str(path), accept_loss=True)) as broker:
        found = check_served(broker.port, "a leaf")
    # Each got one more message.
    assert TOTAL - PAGE // 20 < found - SESSIONS < TOTAL
    (line,) = [record.message for record in caplog.records if "was damaged" in record.message]
    assert f"3 sessions and {found - SESSIONS} messages are left; lost are rows of delivery behind" in line
    (kept,) = path.parent.glob("broker.db.damaged-*")
    assert kept.read_bytes() == damaged


def test_a_store_that_was_cut_short_keeps_every_message_before_the_cut(whole: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    pages = whole.stat().st_size // PAGE
    cuts = range(1, pages) if FULL else (1, pages // 8, pages // 4, *chance.sample(range(1, pages), 3))
    for cut in cuts:
        path = copy(whole, tmp_path / "copy")
        os.truncate(path, (pages - cut) * PAGE - chance.choice([0, 0, 500]))
        damaged = path.read_bytes()
        with pytest.raises(StoreError, match="--accept-loss to go on with what can be read"):
            Found(path)
        found = Found(path, accept_loss=True, sessions=())
        (kept,) = path.parent.glob("broker.db.damaged-*")
        assert kept.read_bytes() == damaged
        os.truncate(kept, pages * PAGE)
        check_left(found, kept, f"{cut} of {pages} pages, seed {SEED}")


def test_what_is_between_two_damaged_pages_is_kept(whole: Path, tmp_path: Path) -> None:
    path = copy(whole, tmp_path / "copy")
    zero_leaf(path, "delivery", 1 / 4)
    zero_leaf(path, "delivery", 3 / 4)
    found = Found(path, accept_loss=True, sessions=())
    (kept,) = path.parent.glob("broker.db.damaged-*")
    check_left(found, kept, "two leaves")


def check_left(found: Found, damaged: Path, where: str) -> None:
    """Check that the messages are left that SQLite finds in the damaged file if it looks for them one by one."""
    with closing(sqlite3.connect(damaged)) as database:
        numbers = [number for number in range(1, SESSIONS + 1) if can_read(database, "session", "number", number)]
        key, positions = "session = ? AND position", range(1, COUNT + 1)
        expected = [sum(can_read(database, "delivery", key, number, at) for at in positions) for number in numbers]
    assert [session.number for session in found.recovered.sessions] == numbers, where
    # On a page that was cut in the middle, SQLite may miss rows that it finds when it reads the whole page.
    queued = [session.queued for session in found.recovered.sessions]
    assert all(map(operator.ge, queued, expected)), (where, queued, expected)


def can_read(database: sqlite3.Connection, table: str, key: str, *values: int) -> bool:
    """Tell whether a row with possible values is there and can be read."""
    try:
        row = database.execute(f"SELECT * FROM {table} WHERE {key} = ?", values).fetchone()
    except sqlite3.DatabaseError:
        return False
    # A row on the page of the cut may lack its end: NULL in columns that never have it.
    return row is not None and None not in row[: 9 if table == "delivery" else 3]


def test_a_garbled_list_of_tables_costs_no_message(whole: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    content = whole.read_bytes()
    # The definitions of the tables, with their names; the numbers of their pages are elsewhere.
    texts = [found.span() for found in re.finditer(rb"(table|index|trigger)\w*.?CREATE [ -~\n]+", content[:PAGE])]
    assert len(texts) > 10
    for begin, end in texts:
        path = copy(whole, tmp_path / "copy")
        at = chance.randrange(begin, end)
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :])
        found = Found(path, accept_loss=True, sessions=())
        queued = [session.queued for session in found.recovered.sessions]
        assert sum(queued) == TOTAL, f"byte {at}, seed {SEED}"


def test_a_broker_that_meets_a_damaged_page_goes_on(whole: Path, tmp_path: Path) -> None:
    """The page is damaged behind the back of a broker that has read it before; nobody is disconnected."""
    path = copy(whole, tmp_path / "copy")
    with BrokerProcess(path) as broker:
        zero_leaf(path, "delivery")
        with closing(sqlite3.connect(path)) as other, other:
            # Another writer makes SQLite forget the pages in its memory.
            other.execute("INSERT INTO quarantine (what) VALUES ('something')")
        found = check_served(broker.port, "a leaf")
        assert TOTAL - PAGE // 20 < found - SESSIONS < TOTAL
        code, errors = broker.stop()
    assert code == 0
    assert errors.count("was damaged") == 1 and "transaction failed" not in errors, errors
    assert run(["store", "check", "--store", str(path)]) == 0


def test_the_number_of_a_lost_session_is_not_given_away(whole: Path, tmp_path: Path) -> None:
    path = copy(whole, tmp_path / "copy")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM session WHERE number = (SELECT max(number) FROM session)")
    with BrokerThread(BrokerConfig(port=0, store=str(path))) as broker:
        assert received(broker.port, b"stranger", b"none", set(), "what the lost session had") == []


def test_check_finds_every_kind_of_damage_and_nothing_else(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def checked(path: Path) -> tuple[int, str]:
        before = content(path)
        code = run(["store", "check", "--store", str(path)])
        assert content(path) == before
        return code, capsys.readouterr().out

    def content(path: Path) -> dict[str, bytes]:
        # SQLite creates an index of the log for every reader.
        return {file.name: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}

    path = copy(whole, tmp_path / "copy")
    assert checked(path) == (0, f"{path} is whole\n")
    zero_leaf(path, "delivery")
    code, lines = checked(path)
    assert code == 1 and "is damaged: " in lines
    for statement, expected in {
        "UPDATE delivery SET payload = x'66' WHERE session = 1 AND position = 5": "of session 1 message 5 is garbled",
        "UPDATE retained SET payload = x'66' WHERE hex(topic_name) = hex('state/1')": "message b'state/1' is garbled",
        "UPDATE message SET topic_name = x'66' WHERE number = 3": "shared message 3 is garbled",
        "DELETE FROM message WHERE number = 3": "3 messages have lost their payload",
        "DELETE FROM broker": "the row of table broker is missing",
    }.items():
        path = copy(whole, tmp_path / "copy")
        with closing(sqlite3.connect(path)) as database, database:
            assert database.execute(statement).rowcount == 1
        # This connection leaves no log behind either.
        code, lines = checked(path)
        assert code == 1 and lines.endswith(f"{expected}\n") and lines.count("\n") == 1, lines
    path = History(tmp_path / "history", 3).copy(tmp_path / "copy")
    assert checked(path) == (0, f"{path} is whole\n")
    path.with_name(WAL).write_bytes(b"")
    assert "has lost its last 4 commits, which stored 3 messages" in checked(path)[1]
    assert run(["store", "check", "--store", str(tmp_path / "none")]) == 2
