"""Checks a store without changing it, even while a broker has it open."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from ..errors import StoreError
from . import schema
from .quarantine import Garbled, has_form, is_possible, is_sound, is_whole
from .recovery import find_loss, recover
from .salvage import refusal

# Most findings of SQLite's integrity check that are reported.
_MOST = 20
_SHARED = "SELECT number, topic_name, payload, checksum FROM message"
# As in sqlite.py. Of a shared message, only what its flags say something about.
_DELIVERIES = """
    SELECT session, position, packet_id, qos, flags, sent, released, delivery.topic_name, delivery.payload, expires_at,
        message, delivery.checksum, CASE WHEN flags & 2 THEN message.payload END
    FROM delivery LEFT JOIN message ON message.number = delivery.message
"""
_MISSING = "SELECT count(*) FROM delivery WHERE message IS NOT NULL AND message NOT IN (SELECT number FROM message)"


def check(path: str) -> list[str]:
    """Return the problems of the store at `path`, one line each. Raises StoreError if there is no store."""
    problems: list[str] = []
    try:
        if loss := find_loss(path):
            problems.append(loss.text)
        schema.check_file(path)
        if problems and schema.is_empty(path):
            return problems
        if not os.path.isfile(path):
            raise StoreError(f"there is no store {path} — name it with --store")
        with closing(schema.connect_to_look(path)) as database:
            if not schema.check(database, path) and not problems:
                raise StoreError(f"{path} is empty — name a store or a backup of one")
            # In one transaction, so that a running broker changes nothing between two queries.
            database.execute("BEGIN")
            problems += [f"store {path} is damaged: {text}" for text in _damage(database)]
            if not problems:
                problems += [f"store {path}: {text}" for text in _messages(database)]
    except sqlite3.Error as error:
        problems.append(f"store {path} is damaged: {error}")
    return problems


def check_openable(path: str) -> None:
    """Raise StoreError if a broker could not open the store. It may be open in another broker, or not exist yet."""
    try:
        if loss := find_loss(path):
            raise StoreError(str(loss))
        schema.check_file(path)
        if not os.path.exists(path):
            return
        with closing(schema.connect_to_look(path)) as database:
            if schema.check(database, path):
                recover(database)
    except sqlite3.Error as error:
        raise refusal(path, error) from error


def _damage(database: sqlite3.Connection) -> list[str]:
    found = [text for (text,) in database.execute(f"PRAGMA integrity_check({_MOST})").fetchall()]
    return [] if found == ["ok"] else [line for text in found for line in text.splitlines()]


def _messages(database: sqlite3.Connection) -> Iterator[str]:
    garbled: list[Garbled] = []
    recover(database, garbled)
    for one in garbled:
        # Named below.
        if one.table != "delivery":
            yield f"{one.what} is garbled"
    for number, *message in database.execute(_SHARED):
        if not is_whole(*message):
            yield f"shared message {number} is garbled"
    for row in database.execute(_DELIVERIES):
        if not _is_sound(row):
            yield f"of session {row[0]} message {row[1]} is garbled"
    if missing := database.execute(_MISSING).fetchone()[0]:
        yield f"{missing} messages have lost their payload"


def _is_sound(row: tuple[Any, ...]) -> bool:
    """Tell whether a row of _DELIVERIES can be delivered, if the message that it shares with others is sound."""
    released, topic_name, payload, shared, expected, content = *row[6:9], *row[10:]
    if shared is None:
        return is_sound(row, topic_name, payload, expected)
    return is_possible(row) and (released > 0 or not isinstance(content, bytes) or has_form(row, content))
