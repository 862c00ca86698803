"""A message that the disk garbled, or whose row is missing, is never delivered; all others are.

SQLite has no checksums for pages outside its log.

Planted: a check that does not look at the tables, or at the numbers of messages; a start that refuses a store for one
retained message with an impossible QoS, or that lets a message before the first position wait for ever; flags that are
believed; text that cannot be decoded is an error of the disk; is_whole() always says yes; a page with a garbled message
counts as the last of its queue.
"""

import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from broker_peer import BrokerThread, Peer
from damaged_stores import TOPIC, Found, History, payload_of
from umqtt_broker import BrokerConfig, StoreError
from umqtt_broker.store.check import check, check_openable


def fill(path: Path, size: int, count: int, sessions: int) -> None:
    """Leave `sessions` sessions with `count` messages of `size` bytes each, and one retained."""
    with BrokerThread(BrokerConfig(port=0, store=str(path))) as broker:
        for number in range(sessions):
            with Peer(broker.port) as keeper:
                keeper.connect(b"keeper-%d" % number, clean_session=False)
                keeper.subscribe(TOPIC, 1)
        with Peer(broker.port) as publisher:
            publisher.connect(b"publisher")
            for number in range(count):
                publisher.publish(TOPIC, payload_of(number, size), 1)
            publisher.publish(b"state", b"on and on", 1, retain=True)


def garble(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute(statement).rowcount


ONE_MESSAGE = {
    "own": (1, "UPDATE delivery SET payload = x'66' || substr(payload, 2) WHERE position = 3"),
    "own topic": (1, "UPDATE delivery SET topic_name = 'x' WHERE position = 3"),
    "shared": (2, "UPDATE message SET payload = x'66' || substr(payload, 2) WHERE number = 3"),
    "shared, missing": (2, "DELETE FROM message WHERE number = 3"),
}


@pytest.mark.parametrize("kind", ONE_MESSAGE)
def test_a_garbled_message_is_set_aside_and_the_rest_delivered(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "broker.db"
    sessions, statement = ONE_MESSAGE[kind]
    fill(path, 200, 6, sessions)
    garble(path, statement)
    with BrokerThread(BrokerConfig(port=0, store=str(path))) as broker:
        for number in range(sessions):
            with Peer(broker.port) as keeper:
                assert keeper.connect(b"keeper-%d" % number, clean_session=False)
                found = [keeper.receive_message().payload for _ in range(5)]
                assert found == [payload_of(at, 200) for at in range(6) if at != 2]
        assert broker.call(lambda: (broker.stats.queued, broker.stats.dropped_damaged)) == (0, sessions)
        lines = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        assert [f"message 3 of b'keeper-{at}'" in line for at, line in enumerate(lines)] == [True] * sessions, lines
        assert broker.call(lambda: [session.queued_bytes for session in broker.view.sessions]) == [0] * sessions
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM quarantine").fetchone() == (sessions,)
        left = "SELECT (SELECT count(*) FROM delivery), (SELECT count(*) FROM message)"
        assert database.execute(left).fetchone() == (0, 0)


def test_a_garbled_retained_message_and_a_garbled_will_are_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = History(tmp_path / "a", 1, retained=3).copy(tmp_path / "b")
    garble(path, "UPDATE retained SET payload = x'66' WHERE topic_name = CAST('state/1' AS BLOB)")
    columns = "client_id, topic_name, payload, qos, retain, checksum"
    values = "CAST('pump' AS BLOB), CAST('t' AS BLOB), CAST('gone' AS BLOB), 1, 0, 4711"
    garble(path, f"INSERT INTO will ({columns}) VALUES ({values})")
    found = Found(path).recovered
    assert [message.topic_name for message in found.retained] == [b"state/0", b"state/2"]
    assert found.wills == {}
    (line,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert "2 messages are garbled" in line and "retained message b'state/1', will b'pump'" in line
    assert len(Found(path).recovered.retained) == 2


def test_what_an_older_version_stored_is_delivered_unchecked(tmp_path: Path) -> None:
    path = History(tmp_path / "a", 2).copy(tmp_path / "b")
    garble(path, "UPDATE delivery SET checksum = NULL")
    assert Found(path).payloads == [payload_of(1), payload_of(2)]


def test_a_page_of_the_queue_full_of_garbled_messages_is_not_its_end(tmp_path: Path) -> None:
    path = History(tmp_path / "a", 1, each=2500).copy(tmp_path / "b")
    garble(path, "UPDATE delivery SET payload = x'66' WHERE position BETWEEN 500 AND 1700 OR position = 2100")
    assert Found(path).payloads == [
        payload_of(number) for number in range(1, 2501) if not (500 <= number <= 1700 or number == 2100)
    ]


# Damage that a checksum does not show, and whether the start is refused. Each costs at most the message that it is in.
UNCHECKED = {
    "DROP TABLE inbound": True,
    "DROP TRIGGER delivery_message": True,
    "PRAGMA user_version = 0": True,
    "UPDATE session SET sent_limit = 'x'": True,
    "UPDATE subscription SET options = 'x'": True,
    "UPDATE delivery SET packet_id = 'x' WHERE position = 6": True,
    **{
        f"UPDATE delivery SET {change} WHERE position = 3": False
        for change in (
            *("expires_at = 'x'", "expires_at = -1", "packet_id = 99999999", "packet_id = 'x'", "qos = 7", "qos = 1.5"),
            *("flags = 4", "flags = 2", "sent = 'x'", "released = -1", "position = -3", "position = 0"),
            *("payload = CAST(x'ff' AS TEXT)", "topic_name = 't'"),
        )
    },
    "UPDATE retained SET qos = 'x'": False,
    "UPDATE retained SET qos = 3": False,
    "UPDATE retained SET expires_at = 'x'": False,
    "UPDATE retained SET topic_name = CAST(x'ff' AS TEXT)": False,
    "UPDATE will SET delay = -1": False,
    "UPDATE will SET retain = 'x'": False,
    "UPDATE will SET expiry = 'x'": False,
}
MANY = 6


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a store with a session, its messages, a retained message and a will."""
    folder = tmp_path_factory.mktemp("small")
    path = History(folder, 1, each=MANY, retained=1).copy(folder / "copy")
    Found(path)
    columns = "client_id, topic_name, payload, qos, retain"
    garble(path, f"INSERT INTO will ({columns}) VALUES (x'61', x'74', x'67', 1, 0)")
    return path


@pytest.mark.parametrize("statement", UNCHECKED)
def test_a_check_and_a_start_find_the_same_damage(
    small: Path, tmp_path: Path, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(shutil.copy(small, tmp_path))
    assert check(str(path)) == []
    check_openable(str(path))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)
    is_refused = UNCHECKED[statement]
    problems = check(str(path))
    assert len(problems) == 1, problems
    if is_refused:
        for refused in (lambda: Found(path), lambda: check_openable(str(path))):
            with pytest.raises(StoreError, match="--accept-loss to go on with what can be read"):
                refused()
    else:
        check_openable(str(path))
    found = Found(path, accept_loss=is_refused)
    lines = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(lines) == 1, lines
    whole = [payload_of(number) for number in range(1, MANY + 1)]
    is_message = "UPDATE delivery" in statement
    if is_message:
        del whole[5 if "= 6" in statement else 2]
    is_lost = "UPDATE session" in statement
    assert found.payloads == ([] if is_lost else whole)
    # A salvage leaves out the messages that it cannot copy, and everything else is set aside.
    is_one_less = is_message or not is_refused
    what = (len(found.recovered.retained), len(found.recovered.wills), len(found.payloads))
    assert is_lost or sum(what) == 1 + 1 + MANY - is_one_less, what
    assert check(str(path)) == []
