"""Moves the acknowledged state of a broker that will not return into the store of another broker.

export() copies a store into one file and renames the store, so that no broker starts with it again. import_() adds that
file to another store, in one transaction: all of it or nothing, and never twice.

A session that only the file has is moved as it is, with its packet identifiers: its client continues as if with the
same broker. If the client has connected to the other broker meanwhile, it has a session there, and the protocol state
of the old session is not used any more: its waiting messages are added to the end of the queue as new messages.
Retained messages of the other broker are newer than those of the file, and replace them.

The file may come over a network, or from a failing disk: every value is checked before it is written. A garbled message
is moved to quarantine, as in a running broker.
"""

import os
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any, NamedTuple

from ..errors import MalformedPacket, StoreError
from ..protocol import properties
from ..protocol.packets5 import HAS_PROPERTIES
from ..protocol.topics import is_mount_point, is_topic_filter, is_topic_name, is_utf8, split_shared
from . import schema
from .backup import StoreInfo, info, keep_old, new_copy
from .check import check_openable
from .lock import StoreLock
from .quarantine import is_whole, set_aside

_MAX_TEXT = 65535
_MAX_PAYLOAD = 268_435_455
# The highest value that is accepted for positions, numbers of sessions, seconds since 1970, and ranks of PUBRECs.
_MAX = 1 << 40
_MAX_UINT32 = 0xFFFFFFFF
_MAX_IDENTIFIER = 268_435_455
_LEVELS = (3, 4, 5)

_SESSIONS = "SELECT number, client_id, sent_limit, username, away_since, protocol_level, session_expiry FROM session"
_SHARES = "SELECT number, key, sent_limit FROM share"
_SUBSCRIPTIONS = "SELECT session, topic_filter, options, identifier, greeting FROM subscription"
_DELIVERIES = (
    "SELECT session, position, packet_id, qos, flags, sent, released, topic_name, payload, expires_at, message,"
    " checksum FROM delivery ORDER BY session, position"
)
_MESSAGE = "SELECT topic_name, payload, checksum FROM message WHERE number = ?"
_RETAINED = "SELECT topic_name, payload, qos, passed_on, expires_at, checksum FROM retained"
_WILLS = "SELECT client_id, topic_name, payload, qos, retain, expiry, passed_on, delay, checksum FROM will"


class Imported(NamedTuple):
    """How many sessions, messages, retained messages and wills were moved.

    garbled: how many damaged messages are in the table quarantine instead.
    """

    sessions: int
    messages: int
    retained: int
    wills: int
    garbled: int


class _Queue(NamedTuple):
    """The target of a queue. number: in the target store. shift: added to positions. is_new: not there before."""

    number: int
    shift: int
    is_new: bool


def export(store_path: str, to: str) -> tuple[StoreInfo, str]:
    """Copy the store to the file `to`, for import_(), and rename the store.

    Returns what the file contains, and the new name of the store. Raises StoreError, also while a broker has the store
    open. If it is interrupted, the store can be exported again.
    """
    if not os.path.isfile(store_path):
        raise StoreError(f"there is no store {store_path} — name it with --store")
    store_path = os.path.realpath(store_path)
    held = StoreLock(store_path)
    try:
        check_openable(store_path)
        # Make the store, as a broker would: an empty one gets an identity that it keeps.
        schema.connect(store_path).close()
        with new_copy(store_path, to) as partial:
            with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                copy.execute("INSERT OR IGNORE INTO imported SELECT id FROM broker")
            found = info(partial)
        kept = keep_old(store_path, "exported")
        assert kept is not None  # it is there
        # A broker that starts here later begins a new store: it must not take this one for lost.
        held.forget()
        os.unlink(store_path)
        schema.sync_folder(store_path)
        return found, kept
    except sqlite3.Error as error:
        raise StoreError(f"cannot export store {store_path} ({error}) — try umqtt store check") from error
    finally:
        held.close()


def import_(source: str, store_path: str) -> Imported:
    """Add the contents of `source`, a file made by export(), to the store at `store_path`.

    Raises StoreError, also while a broker has the store open; then the store is unchanged.
    """
    if not os.path.isfile(source):
        raise StoreError(f"there is no file {source} — name one that umqtt store export has made")
    if not os.path.isfile(store_path):
        raise StoreError(f"there is no store {store_path} — name it with --store")
    held = StoreLock(store_path)
    try:
        if os.path.samefile(source, store_path):
            raise StoreError(f"{source} is the store itself — name a file that umqtt store export has made")
        check_openable(store_path)
        # Errors here concern the store, not the file.
        try:
            target = schema.connect(store_path)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open store {store_path} ({error}) — try umqtt store check") from error
        with closing(target):
            return _import(source, target)
    finally:
        held.close()


def _import(source: str, target: sqlite3.Connection) -> Imported:
    try:
        with closing(schema.connect_to_look(source)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            _check_file(database, source)
            target.execute("BEGIN IMMEDIATE")
            try:
                imported = _Import(database, target, source).run()
                target.execute("COMMIT")
            except BaseException:
                if target.in_transaction:
                    target.execute("ROLLBACK")
                raise
            return imported
    except sqlite3.Error as error:
        raise StoreError(f"cannot import {source} ({error}) — make room, or export the store again") from error


def _check_file(database: sqlite3.Connection, path: str) -> None:
    """Raise StoreError or sqlite3.Error for a file that export() has not made, or that is damaged."""
    if not schema.check(database, path):
        raise StoreError(f"{path} is empty — export the store again")
    if damage := schema.first_damage(database):
        raise StoreError(f"{path} is damaged ({damage}) — export the store again")
    if not database.execute("SELECT 1 FROM broker WHERE id IN (SELECT broker_id FROM imported)").fetchone():
        raise StoreError(f"{path} is a store or a backup of one — umqtt store export makes what can be imported")


class _Import:
    """One import, in the transaction that is open in `target`."""

    def __init__(self, source: sqlite3.Connection, target: sqlite3.Connection, path: str) -> None:
        self._source = source
        self._target = target
        self._path = path
        self._queues: dict[int, _Queue] = {}
        self._met: set[bytes] = set()  # keys of the sessions that the target has
        self._garbled = 0
        self._messages = 0

    def run(self) -> Imported:
        """Move everything. Raises StoreError and sqlite3.Error."""
        self._note_origins()
        sessions = self._move_sessions()
        self._move_shares()
        self._move_subscriptions()
        self._move_inbound()
        self._move_deliveries()
        return Imported(sessions, self._messages, self._move_retained(), self._move_wills(), self._garbled)

    def _rows(self, query: str) -> sqlite3.Cursor:
        return self._source.execute(query)

    def _require(self, is_possible: bool, what: str) -> None:
        if not is_possible:
            raise StoreError(f"{self._path} has {what} that no broker writes — export the store again")

    def _note_origins(self) -> None:
        """Record the file's broker, and the brokers whose stores were imported into it. Raises StoreError.

        Raises it also if the file's broker is recorded already: the file was imported before.
        """
        own = self._rows("SELECT id FROM broker").fetchone()[0]
        for (broker_id,) in self._rows("SELECT broker_id FROM imported"):
            self._require(isinstance(broker_id, bytes), "an identity")
            done = self._target.execute("INSERT OR IGNORE INTO imported VALUES (?)", (broker_id,)).rowcount
            if broker_id == own and not done:
                raise StoreError(f"{self._path} was imported into this store before: there is nothing to do")

    def _move_sessions(self) -> int:
        next_number = self._last_number() + 1
        insert = (
            "INSERT INTO session (number, client_id, sent_limit, username, away_since, protocol_level, session_expiry)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)"
        )
        count = 0
        for number, key, sent_limit, username, away_since, level, expiry in self._rows(_SESSIONS):
            self._require(
                _fits(number, _MAX, 1)
                and _is_key(key)
                and _fits(sent_limit, _MAX)
                and (username is None or isinstance(username, bytes))
                and _fits(away_since, _MAX)
                and level in _LEVELS
                and (expiry is None or _fits(expiry, _MAX_UINT32)),
                "a session",
            )
            count += 1
            if found := self._queue_in_target("session", "client_id", key):
                self._queues[number] = found
                self._met.add(key)
                continue
            self._queues[number] = _Queue(next_number, 0, True)
            self._target.execute(insert, (next_number, key, sent_limit, username, away_since, level, expiry))
            next_number += 1
        return count

    def _move_shares(self) -> None:
        next_number = self._last_number() + 1
        for number, key, sent_limit in self._rows(_SHARES):
            self._require(
                _fits(number, _MAX, 1) and number not in self._queues and _is_share(key) and _fits(sent_limit, _MAX),
                "a shared subscription",
            )
            if found := self._queue_in_target("share", "key", key):
                self._queues[number] = found
                continue
            self._queues[number] = _Queue(next_number, 0, True)
            insert = "INSERT INTO share (number, key, sent_limit) VALUES (?, ?, ?)"
            self._target.execute(insert, (next_number, key, sent_limit))
            next_number += 1

    def _last_number(self) -> int:
        """Return the highest number of a session or a group in the target, including ended ones with rows left."""
        columns = ("session.number", "share.number", "delivery.session", "subscription.session", "inbound.session")
        queries = (f"SELECT max({column}) FROM {column.partition('.')[0]}" for column in columns)
        return max(self._target.execute(query).fetchone()[0] or 0 for query in queries)

    def _queue_in_target(self, table: str, column: str, key: bytes) -> _Queue | None:
        query = f"SELECT number, sent_limit FROM {table} WHERE {column} = ?"
        row = self._target.execute(query, (key,)).fetchone()
        if row is None:
            return None
        last = self._target.execute("SELECT max(position) FROM delivery WHERE session = ?", row[:1]).fetchone()[0]
        return _Queue(row[0], max(last or 0, row[1]), False)

    def _move_subscriptions(self) -> None:
        insert = (
            "INSERT OR IGNORE INTO subscription (session, topic_filter, options, identifier, greeting)"
            " VALUES (?, ?, ?, ?, ?)"
        )
        for session, topic_filter, options, identifier, is_pending in self._rows(_SUBSCRIPTIONS):
            self._require(
                session in self._queues
                and _is_filter(topic_filter)
                and _fits(options, 0x2F)
                and options & 3 < 3
                and _fits(identifier, _MAX_IDENTIFIER)
                and _fits(is_pending, 1),
                "a subscription",
            )
            row = (self._queues[session].number, topic_filter, options, identifier, is_pending)
            self._target.execute(insert, row)

    def _move_inbound(self) -> None:
        for session, packet_id in self._rows("SELECT session, packet_id FROM inbound"):
            self._require(session in self._queues and _fits(packet_id, 65535, 1), "a packet identifier")
            queue = self._queues[session]
            # A client with a session in the target has been told that its session is new: it uses these identifiers for
            # other messages.
            if queue.is_new:
                self._target.execute("INSERT INTO inbound VALUES (?, ?)", (queue.number, packet_id))

    def _move_deliveries(self) -> None:
        shift = self._target.execute("SELECT max(number) FROM message").fetchone()[0] or 0
        copies: Counter[int] = Counter()
        for row in self._rows(_DELIVERIES):
            session, position, packet_id, qos, flags, sent, released, topic_name, payload, expires_at, shared, crc = row
            # Messages without a queue are left over from ended sessions, and are being removed.
            queue = self._queues.get(session)
            if queue is None:
                continue
            self._require(
                _fits(position, _MAX, 1)
                and _fits(packet_id, 65535)
                and _fits(qos, 2)
                and _fits(flags, 3)
                and _fits(sent, 1)
                and _fits(released, _MAX)
                and _fits(expires_at, _MAX)
                and (shared is None or _fits(shared, _MAX, 1)),
                "a message",
            )
            if released and not queue.is_new:
                continue  # the client has it
            message: tuple[Any, ...] = (topic_name, payload, crc)
            if shared is not None:
                message = self._source.execute(_MESSAGE, (shared,)).fetchone() or (None, None, None)
            # Of a released message only the packet identifier is needed.
            if not released:
                if not is_whole(*message):
                    self._set_aside(f"message {position} of queue {session}", *message)
                    continue
                self._require(_is_message(message[0], message[1], flags), "a message")
            if shared is not None:
                copies[shared] += 1
                shared += shift
            self._target.execute(
                "INSERT INTO delivery (session, position, packet_id, qos, flags, sent, released, topic_name, payload,"
                " expires_at, message, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(queue.number, position + queue.shift, packet_id, qos, flags, sent if queue.is_new else 0),
                    *(released, topic_name, payload, expires_at, shared, crc),
                ),
            )
            self._messages += 1
        for number, count in copies.items():
            message = self._source.execute(_MESSAGE, (number,)).fetchone() or (b"", b"", 0)
            insert = "INSERT INTO message (number, copies, topic_name, payload, checksum) VALUES (?, ?, ?, ?, ?)"
            self._target.execute(insert, (number + shift, count, *message))

    def _move_retained(self) -> int:
        insert = (
            "INSERT OR IGNORE INTO retained (topic_name, payload, qos, passed_on, expires_at, checksum)"
            " VALUES (?, ?, ?, ?, ?, ?)"
        )
        count = 0
        for row in self._rows(_RETAINED):
            topic_name, payload, qos, passed_on, expires_at, crc = row
            if not is_whole(topic_name, payload, crc, passed_on):
                self._set_aside(f"retained message {topic_name!r}", topic_name, payload, crc)
                continue
            is_possible = _is_message(topic_name, payload, 0) and _fits(qos, 2) and _is_passed_on(passed_on)
            self._require(is_possible and (expires_at is None or _fits(expires_at, _MAX)), "a retained message")
            count += self._target.execute(insert, row).rowcount
        return count

    def _move_wills(self) -> int:
        insert = (
            "INSERT OR IGNORE INTO will (client_id, topic_name, payload, qos, retain, expiry, passed_on, delay,"
            " checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        count = 0
        for row in self._rows(_WILLS):
            key, topic_name, payload, qos, retain, expiry, passed_on, delay, crc = row
            if not is_whole(topic_name, payload, crc, passed_on):
                self._set_aside(f"will of {key!r}", topic_name, payload, crc)
                continue
            is_possible = _is_key(key) and _is_message(topic_name, payload, 0) and _is_passed_on(passed_on)
            is_possible = is_possible and _fits(qos, 2) and _fits(retain, 1) and _fits(delay, _MAX_UINT32)
            self._require(is_possible and (expiry is None or _fits(expiry, _MAX_UINT32)), "a will")
            # Not for a client that has connected to the other broker since: its will would say that it has gone.
            if key not in self._met:
                count += self._target.execute(insert, row).rowcount
        return count

    def _set_aside(self, what: str, *message: object) -> None:
        self._garbled += 1
        set_aside(self._target, what, *message)


def _fits(value: object, most: int, least: int = 0) -> bool:
    return isinstance(value, int) and least <= value <= most


def _is_key(key: object) -> bool:
    """Tell whether `key` can be that of a session: client identifier, or mount point, U+0000 and client identifier."""
    if not isinstance(key, bytes):
        return False
    mount, zero, client_id = key.rpartition(b"\0")
    return is_utf8(client_id) and len(client_id) <= _MAX_TEXT and (not zero or is_mount_point(mount))


def _is_share(key: object) -> bool:
    if not isinstance(key, bytes):
        return False
    mount, zero, name = key.rpartition(b"\0")
    return bool(zero) and name.startswith(b"$share/") and _is_filter(name) and (not mount or is_mount_point(mount))


def _is_filter(topic_filter: object) -> bool:
    if not isinstance(topic_filter, bytes) or len(topic_filter) > 2 * _MAX_TEXT:
        return False
    try:
        split_shared(topic_filter)
    except ValueError:
        return False
    return is_topic_filter(topic_filter)


def _is_message(topic_name: Any, payload: Any, flags: int) -> bool:
    if not is_topic_name(topic_name) or len(topic_name) > _MAX_TEXT or len(payload) > _MAX_PAYLOAD:
        return False
    return not flags & HAS_PROPERTIES or properties.are_within(payload)


def _is_passed_on(passed_on: bytes) -> bool:
    try:
        return all(True for _ in properties.walk(passed_on, 0, len(passed_on), properties.PUBLISH))
    except MalformedPacket:
        return False
