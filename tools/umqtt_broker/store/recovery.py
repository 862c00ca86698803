"""Reads what a store held when it was opened. The queues stay on disk: sessions page them in when they need them."""

import os
import sqlite3

from ..packets import Will
from ..retained import RetainedMessage
from . import schema
from .base import Recovered, RecoveredSession
from .lock import read_witness

# Sessions that have a queue: number of messages, and the payload bytes of those that are not released.
_QUEUED = """
    SELECT session, count(*),
        sum((released = 0) * coalesce(length(message.payload), length(delivery.payload)))
    FROM delivery LEFT JOIN message ON message.number = delivery.message GROUP BY session
"""
_LAST = "SELECT position, packet_id FROM delivery WHERE session = ? ORDER BY position DESC LIMIT 1"
_SUBSCRIPTIONS = "SELECT topic_filter, qos, greeting FROM subscription WHERE session = ?"
_WILLS = "SELECT client_id, topic_name, payload, qos, retain FROM will"
_RELEASED = "SELECT position, packet_id FROM delivery WHERE session = ? AND released > 0 ORDER BY released"


def check_tail(path: str) -> str:
    """Say what the store at `path` has lost at its end, "" for nothing. Changes nothing. Raises sqlite3.Error."""
    # The witness first: a broker may be running.
    witness = read_witness(path)
    if witness is None or not os.path.exists(path):
        return ""
    database = schema.connect_to_look(path)
    try:
        if schema.check(database, path) < schema.COUNTS_COMMITS:
            return ""
        row = database.execute("SELECT run, commits, messages FROM broker").fetchone()
    finally:
        database.close()
    if row is None or row[0] != witness.run or row[1] >= witness.commits:
        return ""
    return (
        f"store {path} has lost its last {witness.commits - row[1]} commits, which stored"
        f" {witness.messages - row[2]} messages: its log {path}-wal was damaged, cut short or removed"
    )


def recover(database: sqlite3.Connection) -> tuple[Recovered, int, int]:
    """Return what `database` holds, the next free session number and the next rank of a PUBREC.

    Raises sqlite3.Error.
    """
    execute = database.execute
    queued = {session: (count, size) for session, count, size in execute(_QUEUED)}
    rows = execute("SELECT number, client_id, sent_limit, username, away_since FROM session ORDER BY number")
    sessions = [_recover_queue(database, row, queued) for row in rows.fetchall()]
    rows = execute("SELECT number, key, sent_limit, NULL, 0 FROM share ORDER BY number")
    shares = [_recover_queue(database, row, queued) for row in rows.fetchall()]
    retained = [RetainedMessage(*row) for row in execute("SELECT topic_name, payload, qos FROM retained")]
    wills = {
        client_id: Will(topic_name, payload, qos, bool(retain))
        for client_id, topic_name, payload, qos, retain in execute(_WILLS)
    }
    last_rank = execute("SELECT coalesce(max(released), 0) FROM delivery WHERE released > 0").fetchone()[0]
    next_number = max((found.number for found in (*sessions, *shares)), default=0) + 1
    broker = execute("SELECT id FROM broker").fetchone()
    if broker is None:
        raise sqlite3.DatabaseError("the row of table broker is missing")
    return Recovered(sessions, retained, wills, shares, broker[0]), next_number, last_rank + 1


def _recover_queue(
    database: sqlite3.Connection,
    row: tuple[int, bytes, int, bytes | None, int],
    queued: dict[int, tuple[int, int]],
) -> RecoveredSession:
    """Return a session or a shared queue. queued: by number, messages and bytes."""
    execute = database.execute
    number, key, sent_limit, username, away_since = row
    count, size = queued.get(number, (0, 0))
    position, packet_id = execute(_LAST, (number,)).fetchone() or (sent_limit, 0)
    subscriptions = execute(_SUBSCRIPTIONS, (number,)).fetchall()
    return RecoveredSession(
        number,
        key,
        sent_limit,
        # A position at or below sent_limit would be taken for one that was sent already.
        max(position, sent_limit),
        packet_id,
        count,
        [(topic_filter, qos) for topic_filter, qos, _ in subscriptions],
        {row[0] for row in execute("SELECT packet_id FROM inbound WHERE session = ?", (number,))},
        execute(_RELEASED, (number,)).fetchall(),
        username,
        away_since,
        size,
        [topic_filter for topic_filter, _, is_owed in subscriptions if is_owed],
    )
