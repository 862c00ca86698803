"""Reads a store when it is opened. The queues stay on disk: sessions load them by pages when they need them."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from types import NoneType
from typing import Any, NamedTuple

from ..protocol.messages import MessageProperties, RetainedMessage, Will
from . import schema
from .base import Recovered, RecoveredSession
from .lock import Witness, counted, lock_path, read_witness
from .quarantine import Garbled, is_sound_retained, is_sound_will
from .schema import DamagedRow

# By session: the number of its messages, and the payload bytes of those that are not released.
_QUEUED = """
    SELECT session, count(*), min(position),
        sum((released = 0) * coalesce(length(message.payload), length(delivery.payload)))
    FROM delivery LEFT JOIN message ON message.number = delivery.message GROUP BY session
"""
_LAST = "SELECT position, packet_id FROM delivery WHERE session = ? ORDER BY position DESC LIMIT 1"
_SESSIONS = "SELECT number, client_id, sent_limit, username, away_since, protocol_level, session_expiry FROM session"
_SUBSCRIPTIONS = "SELECT topic_filter, options, identifier, greeting FROM subscription WHERE session = ?"
_RETAINED = "SELECT topic_name, payload, qos, passed_on, expires_at, checksum, CAST(topic_name AS BLOB) FROM retained"
_WILLS = (
    "SELECT client_id, topic_name, payload, qos, retain, expiry, passed_on, delay, checksum, CAST(client_id AS BLOB)"
    " FROM will"
)
# Queues are read from position 1 on.
_UNREACHABLE = "SELECT position, topic_name, payload, checksum FROM delivery WHERE session = ? AND position < 1"
_RELEASED = "SELECT position, packet_id FROM delivery WHERE session = ? AND released > 0 ORDER BY released"


class Loss(NamedTuple):
    """The commits that a store has lost. text: what is lost. remedy: what its user can do."""

    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text} — {self.remedy}"


def find_loss(path: str) -> Loss | None:
    """Return the commits that the store at `path` has lost, None if there are none. Raises sqlite3.Error, StoreError.

    Changes nothing.
    """
    # Read the lock file before the database: a running broker may commit in between.
    witness = read_witness(path)
    if witness is None:
        return None
    # Not opened in that case: SQLite would delete the log of an empty database.
    if schema.is_empty(path):
        return _all_lost(path, witness)
    with closing(schema.connect_to_look(path)) as database:
        if not schema.check(database, path):
            return _all_lost(path, witness)
        row = database.execute("SELECT run, commits, messages FROM broker").fetchone()
    if row is None or row[0] != witness.run or row[1] >= witness.commits:
        return None
    text = (
        f"store {path} has lost its last {witness.commits - row[1]} commits, which stored"
        f" {witness.messages - row[2]} messages: its log {path}-wal was damaged, cut short or removed"
    )
    return Loss(text, "restore a backup, or start with --accept-loss to go on without them")


def _all_lost(path: str, witness: Witness) -> Loss:
    lock, log = lock_path(path), os.path.realpath(path) + "-wal"
    state = "empty" if os.path.exists(path) else "missing"
    text = f"store {path} is {state}, so what was in it is lost: {counted(path, witness)}"
    others, told = lock, "start with --accept-loss to go on without it"
    if os.path.exists(log):
        others, told = f"{log} and {lock}", f"start with --accept-loss to go on with what {log} still has of it"
    return Loss(text, f"restore a backup, {told}, or, if it was removed on purpose, remove {others} too")


def recover(database: sqlite3.Connection, garbled: list[Garbled] | None = None) -> tuple[Recovered, int, int]:
    """Return what `database` holds, the next free session number and the next rank of a PUBREC.

    garbled: garbled messages are appended to it. They are left out of the result, except from the lengths of queues.
    Raises sqlite3.Error. Changes nothing.
    """
    garbled = [] if garbled is None else garbled
    queued = dict(_queues(database, garbled))
    maybe_int = (int, NoneType)
    rows = _typed(database, f"{_SESSIONS} ORDER BY number", int, bytes, int, (bytes, NoneType), int, int, maybe_int)
    sessions = [_recover_queue(database, row, queued) for row in rows]
    rows = _typed(
        database, "SELECT number, key, sent_limit, NULL, 0, 4, NULL FROM share ORDER BY number",
        int, bytes, int, NoneType, int, int, NoneType,
    )  # fmt: skip
    shares = [_recover_queue(database, row, queued) for row in rows]
    retained = []
    for *row, key in database.execute(_RETAINED):
        if is_sound_retained(row):
            retained.append(RetainedMessage(*row[:5]))
        else:
            what, message = f"retained message {key!r}", (row[0], row[1], row[5])
            garbled.append(Garbled(what, "retained", "CAST(topic_name AS BLOB) = ?", (key,), message))
    wills = {}
    for *row, key in database.execute(_WILLS):
        client_id, topic_name, payload, qos, retain, expiry, passed_on, delay, expected = row
        if is_sound_will(row):
            properties = MessageProperties(expiry, passed_on)
            wills[client_id] = Will(topic_name, payload, qos, bool(retain), properties, delay)
        else:
            what, message = f"will {key!r}", (topic_name, payload, expected)
            garbled.append(Garbled(what, "will", "CAST(client_id AS BLOB) = ?", (key,), message))
    ((last_rank,),) = _typed(database, "SELECT coalesce(max(released), 0) FROM delivery WHERE released > 0", int)
    brokers = _typed(database, "SELECT id FROM broker", bytes)
    if not brokers:
        raise DamagedRow("the row of table broker is missing")
    leftovers = sorted(queued.keys() - {found.number for found in (*sessions, *shares)})
    recovered = Recovered(sessions, retained, wills, shares, leftovers)
    return recovered, _last_number(database) + 1, last_rank + 1


def _queues(database: sqlite3.Connection, garbled: list[Garbled]) -> Iterator[tuple[int, tuple[int, int]]]:
    for session, count, first, size in _typed(database, _QUEUED, int, int, int, int):
        if first < 1:
            for position, *message in database.execute(_UNREACHABLE, (session,)):
                key, what = (session, position), f"message {position} of session {session}"
                garbled.append(Garbled(what, "delivery", "session = ? AND position = ?", key, tuple(message)))
        yield session, (count, size)


def _last_number(database: sqlite3.Connection) -> int:
    """Return the highest number of a session or a group, including ended ones that have left other rows."""
    columns = (
        "session.number", "share.number", "delivery.session", "subscription.session", "inbound.session"
    )  # fmt: skip
    found = [
        _typed(database, f"SELECT coalesce(max({column}), 0) FROM {column.partition('.')[0]}", int)[0][0]
        for column in columns
    ]
    return max(found)


def _typed(
    database: sqlite3.Connection, query: str, *kinds: type | tuple[type, ...], given: tuple[int, ...] = ()
) -> list[Any]:
    """Return the rows of a query. Raises DamagedRow for a row with values that are not of the expected types.

    kinds: the types of its columns. given: the values of its placeholders.
    """
    rows = database.execute(query, given).fetchall()
    for row in rows:
        if not all(map(isinstance, row, kinds)):
            raise DamagedRow(f"a row has values of the wrong kind: {query}")
    return rows


def _recover_queue(
    database: sqlite3.Connection,
    row: tuple[int, bytes, int, bytes | None, int, int, int | None],
    queued: dict[int, tuple[int, int]],
) -> RecoveredSession:
    """Return a session or a shared queue. row: its row. queued: by number, the messages and their payload bytes."""
    number, key, sent_limit, username, away_since, protocol_level, session_expiry = row
    count, size = queued.get(number, (0, 0))
    of_it = (number,)
    last = _typed(database, _LAST, int, int, given=of_it)
    position, packet_id = last[0] if last else (sent_limit, 0)
    subscriptions = _typed(database, _SUBSCRIPTIONS, bytes, int, int, int, given=of_it)
    inbound = _typed(database, "SELECT packet_id FROM inbound WHERE session = ?", int, given=of_it)
    return RecoveredSession(
        number,
        key,
        sent_limit,
        # A new position must be above sent_limit: otherwise it would count as sent already.
        max(position, sent_limit),
        packet_id,
        count,
        [(topic_filter, options, identifier) for topic_filter, options, identifier, _ in subscriptions],
        {packet_id for (packet_id,) in inbound},
        _typed(database, _RELEASED, int, int, given=of_it),
        username,
        away_since,
        size,
        [topic_filter for topic_filter, _, _, is_pending in subscriptions if is_pending],
        protocol_level,
        session_expiry,
    )
