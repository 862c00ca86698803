"""Garbled messages: found by their checksums, moved to the table quarantine, never delivered.

SQLite has checksums only in its log, so it does not notice a disk that garbles a payload later. Each message has a
checksum of its topic name and payload; a message of an older version has none (NULL) and is not checked.
"""

import sqlite3
from zlib import crc32


def checksum(topic_name: bytes, payload: bytes, passed_on: bytes = b"") -> int:
    """Return the checksum of a message. passed_on: its properties, if they are not part of the payload."""
    return crc32(passed_on, crc32(payload, crc32(topic_name)))


def is_whole(topic_name: object, payload: object, expected: object, passed_on: object = b"") -> bool:
    """Tell whether a message is the one that was stored. expected: its checksum, None if it has none."""
    if not (isinstance(topic_name, bytes) and isinstance(payload, bytes) and isinstance(passed_on, bytes)):
        return False
    return expected is None or checksum(topic_name, payload, passed_on) == expected


def set_aside_garbled(database: sqlite3.Connection) -> list[str]:
    """Move garbled retained messages and wills to the table quarantine. Returns their names. Raises sqlite3.Error."""
    execute = database.execute
    found: list[str] = []
    for table, key, what in (("retained", "topic_name", "retained message"), ("will", "client_id", "will")):
        rows = execute(f"SELECT {key}, topic_name, payload, checksum, passed_on FROM {table}").fetchall()
        for name, topic_name, payload, expected, passed_on in rows:
            if not is_whole(topic_name, payload, expected, passed_on):
                set_aside(database, f"{what} {name!r}", topic_name, payload, expected)
                execute(f"DELETE FROM {table} WHERE {key} = ?", (name,))
                found.append(f"{what} {name!r}")
    return found


def set_aside(database: sqlite3.Connection, what: str, *message: object) -> None:
    """Write a garbled message (topic name, payload, checksum) to the table quarantine, for inspection."""
    insert = "INSERT INTO quarantine (what, topic_name, payload, checksum) VALUES (?, ?, ?, ?)"
    database.execute(insert, (what, *message))
