"""Garbled messages: found by their checksums and impossible values, moved to the table quarantine, never delivered.

SQLite has checksums only in its log, so it does not notice a disk that garbles a payload later. Each message has a
checksum of its topic name and payload. The numbers of a message are not part of its checksum, since some of them
change: they must be numbers that a broker writes.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from ..errors import MalformedPacket
from ..protocol import properties
from ..protocol.packets5 import HAS_PROPERTIES

_MAX_UINT32 = 0xFFFFFFFF


class Garbled(NamedTuple):
    """A garbled message. what: its name. table, condition, key: its row. message: topic name, payload, checksum."""

    what: str
    table: str
    condition: str
    key: tuple[object, ...]
    message: tuple[object, ...]


def checksum(topic_name: bytes, payload: bytes, passed_on: bytes = b"") -> int:
    """Return the checksum of a message. passed_on: its properties, if they are not part of the payload."""
    return crc32(passed_on, crc32(payload, crc32(topic_name)))


def is_whole(topic_name: object, payload: object, expected: object, passed_on: object = b"") -> bool:
    """Tell whether a message is the one that was stored. expected: its checksum, None if it has none."""
    if not (isinstance(topic_name, bytes) and isinstance(payload, bytes) and isinstance(passed_on, bytes)):
        return False
    return expected is None or checksum(topic_name, payload, passed_on) == expected


def is_sound(row: tuple[Any, ...], topic_name: object, payload: object, expected: object) -> bool:
    """Tell whether a row of the table delivery, with its message, can be delivered."""
    if not is_possible(row):
        return False
    # Of a released message only the packet identifier is needed.
    return bool(row[6]) or (is_whole(topic_name, payload, expected) and has_form(row, payload))


def is_possible(row: tuple[Any, ...]) -> bool:
    """Tell whether the numbers of a row of the table delivery are possible. Others could not be encoded, or found."""
    _, position, packet_id, qos, flags, sent, released, _, _, expires_at, *_ = row
    if not all(isinstance(number, int) for number in (position, packet_id, qos, flags, sent, released, expires_at)):
        return False
    are_small = 0 <= packet_id <= 65535 and 0 <= qos <= 2 and 0 <= flags <= 3 and 0 <= sent <= 1
    return are_small and position >= 1 and released >= 0 and expires_at >= 0


def has_form(row: tuple[Any, ...], payload: Any) -> bool:
    """Tell whether a payload begins with properties if the flags of its row say so."""
    if not row[4] & HAS_PROPERTIES:
        return True
    try:
        at, end = properties.property_range(payload, 0, len(payload))
        return all(True for _ in properties.walk(payload, at, end, properties.PUBLISH))
    except MalformedPacket:
        return False


def is_sound_retained(row: Sequence[Any]) -> bool:
    """Tell whether a row is a retained message. row: its fields, then its checksum."""
    topic_name, payload, qos, passed_on, expires_at, expected = row
    is_possible = _fits(qos, 2) and (expires_at is None or _fits(expires_at, 1 << 62))
    return is_possible and is_whole(topic_name, payload, expected, passed_on)


def is_sound_will(row: Sequence[Any]) -> bool:
    """Tell whether a row is a will. row: the key of its session, its columns in order, and its checksum."""
    client_id, topic_name, payload, qos, retain, expiry, passed_on, delay, expected = row
    is_possible = _fits(qos, 2) and _fits(retain, 1) and _fits(delay, _MAX_UINT32)
    is_possible = is_possible and (expiry is None or _fits(expiry, _MAX_UINT32)) and isinstance(client_id, bytes)
    return is_possible and is_whole(topic_name, payload, expected, passed_on)


def remove_garbled(database: sqlite3.Connection, garbled: Iterable[Garbled]) -> None:
    """Move messages to the table quarantine. Raises sqlite3.Error."""
    for what, table, condition, key, message in garbled:
        set_aside(database, what, *message)
        database.execute(f"DELETE FROM {table} WHERE {condition}", key)


def set_aside(database: sqlite3.Connection, what: str, *message: object) -> None:
    """Write a garbled message (topic name, payload, checksum) to the table quarantine, for inspection."""
    insert = "INSERT INTO quarantine (what, topic_name, payload, checksum) VALUES (?, ?, ?, ?)"
    database.execute(insert, (what, *message))


def _fits(value: object, most: int, least: int = 0) -> bool:
    return isinstance(value, int) and least <= value <= most
