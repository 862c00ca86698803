"""Encodes batches and stored data as keys, fields and commands of Redis, and decodes them.

All keys begin with `umqtt:`.

    store      hash: the version of this format, the broker's identifier, the next free number, and the epoch and the
               number of the last batch, which fence it (redis_scripts)
    lease      who has the store
    sessions, shares, owners, away, sent
               hashes by the number of a session or group: client identifiers, keys of groups, owners, times, limits
    subscriptions:N, pending:N, inbound:N
               of session N: its subscriptions (hash), those that wait for retained messages (set), the packet
               identifiers of incoming QoS 2 messages (set)
    queue:N    sorted set by position: the messages of session or group N
    retained, wills
               hashes
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ..errors import StoreError
from ..protocol.messages import MessageProperties, RetainedMessage, Will
from .base import Delivery, DeliveryRow, Owner
from .change_batch import Batch, ranges

VERSION = 1

GARBLED = "a record of the store in Redis is garbled — restore a backup of Redis, or name another store"

_PREFIX = b"umqtt:"
STORE, LEASE = _PREFIX + b"store", _PREFIX + b"lease"

# A message: position, packet_id, qos, flags, sent, released, expires_at, length of the topic name; then the topic name
# and the payload.
_ROW = struct.Struct(">QHBBBQQH")
_ROW_START = struct.Struct(">QHB")

# Most words of fields or members in one command: Lua can pass on about 8000 at most.
_MOST_WORDS = 2000

Word = bytes | int | str
Command = tuple[Word, ...]
Field = bytes | int | None


def key(name: str, number: int | None = None) -> bytes:
    """Return a key in Redis. number: of a session or group, if the key has one."""
    return _PREFIX + name.encode() if number is None else b"%s%s:%d" % (_PREFIX, name.encode(), number)


def encode(*fields: Field) -> bytes:
    """Encode fields: bytes as `LENGTH:BYTES`, numbers as `NUMBER,`, None as `~`."""
    return b"".join(
        b"~" if field is None else b"%d," % field if isinstance(field, int) else b"%d:%s" % (len(field), field)
        for field in fields
    )


def decode(data: bytes, *kinds: type) -> list[Any]:
    """Decode fields of these kinds, bytes or int; each may be None. Raises StoreError."""
    fields: list[Field] = []
    at = 0
    try:
        for kind in kinds:
            if data[at : at + 1] == b"~":
                fields.append(None)
                at += 1
                continue
            end = data.index(b":" if kind is bytes else b",", at)
            number = int(data[at:end])
            at = end + 1
            if kind is bytes:
                fields.append(data[at : at + number])
                at += number
            else:
                fields.append(number)
    except ValueError:
        at = -1
    if at != len(data):
        raise StoreError(GARBLED)
    return fields


def encode_row(row: Delivery) -> bytes:
    """Return a message as a member of its queue. It is unique there, because it begins with its position."""
    _, position, packet_id, qos, flags, sent, released, topic_name, payload, expires_at = row
    head = _ROW.pack(position, packet_id, qos, flags, sent, released, expires_at, len(topic_name))
    return head + topic_name + payload


def decode_row(session: int, row: bytes) -> DeliveryRow:
    """Return a message of a session's queue."""
    position, packet_id, qos, flags, sent, released, expires_at, length = _ROW.unpack_from(row)
    middle = _ROW.size + length
    topic_name, payload = row[_ROW.size : middle], row[middle:]
    return DeliveryRow(
        session, position, packet_id, qos, flags, sent, released, topic_name, payload, expires_at
    )  # fmt: skip


def decode_place(row: bytes) -> tuple[int, int]:
    """Return position and packet identifier of an encoded message."""
    return struct.unpack_from(">QH", row)


def decode_rank(row: bytes) -> int:
    """Return the rank of an encoded message's PUBREC."""
    return _ROW.unpack_from(row)[5]


def decode_owner(data: bytes) -> Owner:
    """Return the owner of a session. Raises StoreError."""
    return Owner(*decode(data, bytes, int, int))


def decode_retained(data: bytes) -> RetainedMessage:
    """Return a retained message. Raises StoreError."""
    return RetainedMessage(*decode(data, bytes, bytes, int, bytes, int))


def decode_will(data: bytes) -> Will:
    """Return a will. Raises StoreError."""
    topic_name, payload, qos, retain, expiry, passed_on, delay = decode(data, bytes, bytes, int, int, int, bytes, int)
    return Will(topic_name, payload, qos, bool(retain), MessageProperties(expiry, passed_on), delay)


def commands_of(batch: Batch) -> Iterator[Command]:
    """Yield the commands that write a batch, in an order in which each finds the records that it changes."""
    made = {number: session for number, session in batch.sessions.items() if session is not None}
    shares = {number: name for number, name in batch.shares.items() if name is not None}
    if made or shares:
        yield "HSET", STORE, "next", max([*made, *shares]) + 1
    owners = {number: owner for number, (_, owner) in made.items()} | batch.owners
    yield from _set("sessions", {number: client_id for number, (client_id, _) in made.items()})
    yield from _set("shares", shares)
    yield from _set("owners", {number: encode(*owner) for number, owner in owners.items()})
    yield from _set("away", batch.away)
    yield from _set("sent", batch.sent_limits)
    for (session, topic_filter), subscription in batch.subscriptions.items():
        if subscription is None:
            yield "HDEL", key("subscriptions", session), topic_filter
        else:
            yield "HSET", key("subscriptions", session), topic_filter, encode(*subscription)
        yield "SREM", key("pending", session), topic_filter
    for (session, topic_filter), is_pending in batch.retained_pending.items():
        yield "SADD" if is_pending else "SREM", key("pending", session), topic_filter
    yield from _add(batch.deliveries)
    # After the inserts: a batch may move messages that it inserts itself. Before the removals: it may remove messages
    # that it moves.
    for session, position, packet_id, qos, share, at in batch.moves:
        start = _ROW_START.pack(position, packet_id, qos)
        yield "move", key("queue", share), at, key("queue", session), position, start
    for packet_id, session, position in batch.packet_ids:
        yield "repacket", key("queue", session), position, packet_id.to_bytes(2, "big")
    for rank, session, position in batch.released:
        yield "release", key("queue", session), position, rank.to_bytes(8, "big")
    for session, positions in batch.acknowledged.items():
        for first, last in ranges(positions):
            yield "ZREMRANGEBYSCORE", key("queue", session), first, last
    for (session, packet_id), is_present in batch.inbound.items():
        yield "SADD" if is_present else "SREM", key("inbound", session), packet_id
    for topic_name, message in batch.retained.items():
        if message is None:
            yield "HDEL", key("retained"), topic_name
        else:
            yield "HSET", key("retained"), topic_name, encode(*message)
    for client_id, will in batch.wills.items():
        if will is None:
            yield "HDEL", key("wills"), client_id
        else:
            yield "HSET", key("wills"), client_id, encode(*will[:4], *will.properties, will.delay)
    # Last, so that everything that this batch itself recorded for a discarded session is removed too.
    for number in (number for number, session in batch.sessions.items() if session is None):
        for name in ("sessions", "owners", "away", "sent"):
            yield "HDEL", key(name), number
        yield "UNLINK", *(key(name, number) for name in ("subscriptions", "pending", "inbound", "queue"))
    for number in (number for number, name in batch.shares.items() if name is None):
        yield "HDEL", key("shares"), number
        yield "HDEL", key("sent"), number
        yield "UNLINK", key("queue", number)
    if batch.leftover:
        yield "UNLINK", key("queue", batch.leftover)


def _set(name: str, values: dict[int, Any]) -> Iterator[Command]:
    pairs = iter(values.items())
    while some := list(islice(pairs, _MOST_WORDS // 2)):
        yield "HSET", key(name), *(word for pair in some for word in pair)


def _add(rows: Iterable[Delivery]) -> Iterator[Command]:
    queues: dict[int, list[Word]] = {}
    for row in rows:
        words = queues.setdefault(row[0], [])
        words += (row[1], encode_row(row))
        if len(words) >= _MOST_WORDS:
            yield "ZADD", key("queue", row[0]), *queues.pop(row[0])
    for session, words in queues.items():
        yield "ZADD", key("queue", session), *words
