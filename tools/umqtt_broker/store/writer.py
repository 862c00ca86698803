"""Writes one batch in one transaction. Runs in the store's thread; touches only the batch and the database.

SQLite gives up Python's lock for every step of a statement and must get it back from a busy event loop, so
the cost is counted in statements: messages go many rows to a statement, acknowledgements as ranges.
"""

import sqlite3
from collections.abc import Iterator

from .base import DeliveryRow
from .batch import Batch

_ROW = "(" + ",".join("?" * len(DeliveryRow._fields)) + ")"
# Sizes of multi-row inserts, largest first; few different texts, so that SQLite's statement cache keeps them
# all.
_INSERTS = [(rows, "INSERT INTO delivery VALUES " + ",".join([_ROW] * rows)) for rows in (512, 64, 8, 1)]


def write(database: sqlite3.Connection, batch: Batch) -> list[list[DeliveryRow]]:
    """Write `batch`, commit, and return the rows of each page. Raises sqlite3.Error: roll back then."""
    execute, executemany = database.execute, database.executemany
    execute("BEGIN IMMEDIATE")
    created = [(number, client_id) for number, client_id in batch.sessions.items() if client_id is not None]
    discarded = [(number,) for number, client_id in batch.sessions.items() if client_id is None]
    # First the discarded: a client may have a new session under the same identifier in this very batch.
    executemany("DELETE FROM session WHERE number = ?", discarded)
    executemany("INSERT INTO session (number, client_id) VALUES (?, ?)", created)
    executemany(
        "UPDATE session SET sent_limit = ? WHERE number = ?",
        [(position, session) for session, position in batch.sent_limits.items()],
    )
    for (session, topic_filter), qos in batch.subscriptions.items():
        if qos is None:
            execute("DELETE FROM subscription WHERE session = ? AND topic_filter = ?", (session, topic_filter))
        else:
            execute("INSERT OR REPLACE INTO subscription VALUES (?, ?, ?)", (session, topic_filter, qos))
    _insert(database, batch.deliveries)
    executemany("UPDATE delivery SET packet_id = ? WHERE session = ? AND position = ?", batch.packet_ids)
    executemany("UPDATE delivery SET released = ? WHERE session = ? AND position = ?", batch.released)
    for session, positions in batch.acknowledged.items():
        for first, last in ranges(positions):
            execute("DELETE FROM delivery WHERE session = ? AND position BETWEEN ? AND ?", (session, first, last))
    for (session, packet_id), present in batch.inbound.items():
        if present:
            execute("INSERT OR IGNORE INTO inbound VALUES (?, ?)", (session, packet_id))
        else:
            execute("DELETE FROM inbound WHERE session = ? AND packet_id = ?", (session, packet_id))
    for topic_name, message in batch.retained.items():
        if message is None:
            execute("DELETE FROM retained WHERE topic_name = ?", (topic_name,))
        else:
            execute("INSERT OR REPLACE INTO retained VALUES (?, ?, ?)", message)
    # Last: what this batch itself recorded for a discarded session goes too.
    for table in ("subscription", "delivery", "inbound"):
        executemany(f"DELETE FROM {table} WHERE session = ?", discarded)
    pages = [
        [
            DeliveryRow(*row)
            for row in execute(
                "SELECT * FROM delivery WHERE session = ? AND position > ? ORDER BY position LIMIT ?",
                (page.session, page.after, page.limit),
            )
        ]
        for page in batch.pages
    ]
    execute("COMMIT")
    return pages


def _insert(database: sqlite3.Connection, rows: list[DeliveryRow]) -> None:
    at = 0
    for size, statement in _INSERTS:
        while len(rows) - at >= size:
            database.execute(statement, [value for row in rows[at : at + size] for value in row])
            at += size


def ranges(positions: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each run of consecutive numbers in `positions`."""
    ordered = sorted(positions)
    first = last = ordered[0]
    for position in ordered:
        if position > last + 1:
            yield first, last
            first = position
        last = position
    yield first, last
