"""Checks a store without changing it, even while a broker has it open."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing

from ..errors import StoreError
from . import schema
from .quarantine import is_whole
from .recovery import find_loss
from .salvage import refusal

# Most findings of SQLite's integrity check that are reported.
_MOST = 20
_MESSAGES = (
    "SELECT 'shared message', number, topic_name, payload, checksum FROM message",
    (
        "SELECT 'of session ' || session || ' message', position, topic_name, payload, checksum FROM delivery"
        " WHERE message IS NULL AND released = 0"
    ),
    "SELECT 'retained message', topic_name, topic_name, payload, checksum, {passed_on} FROM retained",
    "SELECT 'will of', client_id, topic_name, payload, checksum, {passed_on} FROM will",
)
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
            version = schema.check(database, path)
            if not version and not problems:
                raise StoreError(f"{path} is empty — name a store or a backup of one")
            # In one transaction, so that a running broker changes nothing between two queries.
            database.execute("BEGIN")
            problems += [f"store {path} is damaged: {text}" for text in _damage(database)]
            if not problems and version >= schema.COUNTS_COMMITS:
                problems += [f"store {path}: {text}" for text in _messages(database, version)]
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
            schema.check(database, path)
    except sqlite3.Error as error:
        raise refusal(path, error) from error


def _damage(database: sqlite3.Connection) -> list[str]:
    found = [text for (text,) in database.execute(f"PRAGMA integrity_check({_MOST})").fetchall()]
    return [] if found == ["ok"] else [line for text in found for line in text.splitlines()]


def _messages(database: sqlite3.Connection, version: int) -> Iterator[str]:
    passed_on = "passed_on" if version >= schema.KEEPS_PROPERTIES else "x''"
    for query in _MESSAGES:
        for what, name, *message in database.execute(query.format(passed_on=passed_on)):
            if not is_whole(*message):
                yield f"{what} {name!r} is garbled"
    if missing := database.execute(_MISSING).fetchone()[0]:
        yield f"{missing} messages have lost their payload"
    if not database.execute("SELECT 1 FROM broker").fetchone():
        yield "the row of table broker is missing"
