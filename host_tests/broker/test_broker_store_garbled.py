"""A message that the disk garbled, or whose row is missing, is never delivered; all others are.

SQLite has no checksums for pages outside its log.

Planted: is_whole() always says yes; a page with a garbled message counts as the last of its queue.
"""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from broker_peer import BrokerThread, Peer
from damaged_stores import TOPIC, Found, History, payload_of
from umqtt_broker import BrokerConfig


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
