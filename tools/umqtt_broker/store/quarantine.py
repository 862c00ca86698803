"""Messages that are not what was stored: found by their checksums, set aside, never delivered.

SQLite has no checksums for what has left its log: a disk that garbles a payload goes unnoticed. Each message has one of
its topic name and payload; a message of an older version has none (NULL) and is not checked.
"""

import sqlite3
from zlib import crc32


def checksum(topic_name: bytes, payload: bytes, passed_on: bytes = b"") -> int:
    """Return the checksum of a message. passed_on: its properties, where they do not stand in the payload."""
    return crc32(passed_on, crc32(payload, crc32(topic_name)))


def is_whole(topic_name: object, payload: object, expected: object, passed_on: object = b"") -> bool:
    """Tell whether a message is what was stored."""
    if not (isinstance(topic_name, bytes) and isinstance(payload, bytes) and isinstance(passed_on, bytes)):
        return False
    return expected is None or checksum(topic_name, payload, passed_on) == expected


def set_aside_garbled(database: sqlite3.Connection) -> list[str]:
    """Set aside what is garbled among retained messages and wills. Returns what it was. Raises sqlite3.Error."""
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
    """Keep a garbled message (topic name, payload, checksum) for inspection."""
    insert = "INSERT INTO quarantine (what, topic_name, payload, checksum) VALUES (?, ?, ?, ?)"
    database.execute(insert, (what, *message))
