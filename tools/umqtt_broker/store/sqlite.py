"""The backend for SQLite, with WAL and synchronous=FULL: COMMIT returns only after the log is on disk.

SQLite releases Python's global lock for every step of a statement and must get it back from a busy event loop, so the
number of statements determines the cost: many messages are inserted by one statement, and acknowledged messages are
removed as ranges of positions.
"""

import logging
import secrets
import sqlite3
from zlib import crc32

from ..errors import StoreError
from . import schema
from .base import Delivery, DeliveryRow
from .change_batch import Batch, Page, ranges
from .group_commit import Opened
from .lock import RUN_SIZE, StoreLock, Witness
from .quarantine import Garbled, checksum, is_sound, remove_garbled, set_aside
from .recovery import find_loss, recover
from .salvage import refusal, salvage

_log = logging.getLogger("umqtt_broker.store")

# Most garbled messages named in one line.
_MOST_NAMED = 5

_COLUMNS = (
    "session, position, packet_id, qos, flags, sent, released, topic_name, payload, expires_at, message, checksum"
)
_ROW = "(?,?,?,?,?,?,?,?,?,?,?,?)"
# Inserts of several rows, the largest first; few different statements, so that SQLite's statement cache keeps them all.
_INSERTS = [(rows, f"INSERT INTO delivery ({_COLUMNS}) VALUES " + ",".join([_ROW] * rows)) for rows in (512, 64, 8, 1)]
_PAGE = f"SELECT {_COLUMNS} FROM delivery WHERE session = ? AND position > ? ORDER BY position LIMIT ?"
_OWNER = "SELECT client_id FROM session WHERE number = ? UNION SELECT key FROM share WHERE number = ?"
# Messages of an ended session that one transaction removes, in a few milliseconds: clients wait for the transaction.
SLICE = 2000
_SLICE = (
    "DELETE FROM delivery WHERE session = ? AND position <="
    " coalesce((SELECT position FROM delivery WHERE session = ? ORDER BY position LIMIT 1 OFFSET ? - 1), 1 << 62)"
)
_MESSAGE = "SELECT topic_name, payload, checksum FROM message WHERE number = ?"
_SESSION = "INSERT INTO session (number, client_id, username, protocol_level, session_expiry) VALUES (?, ?, ?, ?, ?)"
_SUBSCRIPTION = "INSERT OR REPLACE INTO subscription (session, topic_filter, options, identifier) VALUES (?, ?, ?, ?)"
_RETAINED = (
    "INSERT OR REPLACE INTO retained (topic_name, payload, qos, passed_on, expires_at, checksum)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_WILL = (
    "INSERT OR REPLACE INTO will (client_id, topic_name, payload, qos, retain, expiry, passed_on, delay, checksum)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Bytes from which on a payload that several sessions wait for is stored only once: a separate row costs about as many.
_SHARED_SIZE = 128


class SqliteBackend:
    """The backend for SQLite: see group_commit.Backend.

    path: of the database. accept_loss: open it even if commits are lost, and salvage it if it is damaged.
    """

    is_shared = False

    def __init__(self, path: str, accept_loss: bool = False) -> None:
        self.name = f"store {path}"
        self._path = path
        self._accept_loss = accept_loss
        self._is_unwitnessed = False
        # False after a salvage, until a batch is written: a disk that damages every copy at once must not be filled.
        self._may_salvage = True

    def acquire(self) -> str:
        """Return "" at once: open() refuses a store that another broker has."""
        return ""

    def open(self) -> Opened:
        """Open, lock, read. Raises StoreError."""
        self._lock = StoreLock(self._path)
        try:
            try:
                return self._read()
            except sqlite3.Error as error:
                if not (self._accept_loss and schema.is_damage(error)):
                    raise
                self._salvage(error, may_lose_all=True)
                return self._read()
        except (sqlite3.Error, OSError, StoreError) as error:
            self._lock.close()
            if isinstance(error, StoreError):
                raise
            raise refusal(self._path, error) from error

    def close(self) -> None:
        """Close the database and give the lock back."""
        self._database.close()
        self._lock.close()

    # Opening

    def _read(self) -> Opened:
        """Open the database and read it. Raises sqlite3.Error, OSError and StoreError; then it is not open."""
        self._check_loss()
        self._database = schema.connect(self._path)
        try:
            garbled: list[Garbled] = []
            opened = Opened(*recover(self._database, garbled))
            if garbled:
                remove_garbled(self._database, garbled)
                self._report_garbled([one.what for one in garbled])
                # Without them, queues are shorter.
                opened = Opened(*recover(self._database))
            self._begin_run()
        except BaseException:
            self._database.close()
            raise
        return opened

    def _salvage(self, error: sqlite3.Error, *, may_lose_all: bool = False) -> None:
        found = salvage(self._path, may_lose_all=may_lose_all)
        _log.error("%s was damaged (%s): %s", self.name, error, found)

    def _check_loss(self) -> None:
        """Check for lost commits, before anything is changed. Raises StoreError if that is not accepted."""
        if loss := find_loss(self._path):
            if not self._accept_loss:
                raise StoreError(str(loss))
            _log.error("%s: goes on without them, as told", loss.text)

    def _begin_run(self) -> None:
        """Begin a new count of commits, in the database itself and not in its log.

        So no loss of the log can take the count back to an earlier run.
        """
        self._progress = Witness(secrets.token_bytes(RUN_SIZE), 0, 0)
        self._database.execute("UPDATE broker SET run = ?, commits = ?, messages = ?", self._progress)
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._lock.write(self._progress)

    # Writing

    def write(self, batch: Batch) -> list[list[DeliveryRow]]:
        """Write a batch in one transaction. If that finds damage, salvage the store and write it once more.

        Raises sqlite3.Error, and StoreError and OSError if the salvage fails.
        """
        run, commits, messages = self._progress
        batch.progress = Witness(run, commits + 1, messages + len(batch.deliveries))
        try:
            pages = self._transact(batch)
        except sqlite3.Error as error:
            if not (schema.is_damage(error) and self._may_salvage):
                raise
            # A damaged page with the messages of one client must not stop the broker for all clients.
            self._may_salvage = False
            self._database.close()
            try:
                self._salvage(error)
            finally:
                self._database = schema.connect(self._path)
            pages = self._transact(batch)
        self._may_salvage = True
        if batch.changes:
            self._note_commit(batch.progress)
        self._report_garbled(batch.garbled)
        return pages

    def _transact(self, batch: Batch) -> list[list[DeliveryRow]]:
        try:
            return write_batch(self._database, batch)
        except BaseException:
            if self._database.in_transaction:
                self._database.rollback()
            raise

    def _report_garbled(self, garbled: list[str]) -> None:
        if garbled:
            named = ", ".join(garbled[:_MOST_NAMED]) + (", …" if len(garbled) > _MOST_NAMED else "")
            text = "%s: %d messages are garbled, set aside in its table quarantine and not delivered: %s"
            _log.error(text, self.name, len(garbled), named)

    def _note_commit(self, progress: Witness) -> None:
        self._progress = progress
        try:
            self._lock.write(progress)
        except OSError as error:
            if not self._is_unwitnessed:
                _log.warning("%s: cannot write its lock file (%s): lost commits go unnoticed", self.name, error)
            self._is_unwitnessed = True


def write_batch(database: sqlite3.Connection, batch: Batch) -> list[list[DeliveryRow]]:
    """Write `batch`, commit, and return the rows of each page. Raises sqlite3.Error: then the caller must roll back."""
    execute, executemany = database.execute, database.executemany
    execute("BEGIN IMMEDIATE")
    before = database.total_changes
    created = [(number, made[0], *made[1]) for number, made in batch.sessions.items() if made is not None]
    discarded = [(number,) for number, made in batch.sessions.items() if made is None]
    # Discarded sessions first: a client may have a new session under the same identifier in the same batch.
    executemany("DELETE FROM session WHERE number = ?", discarded)
    executemany(_SESSION, created)
    ended = [(number,) for number, key in batch.shares.items() if key is None]
    executemany("DELETE FROM share WHERE number = ?", ended)
    executemany("INSERT INTO share (number, key) VALUES (?, ?)", _made(batch.shares))
    executemany(
        "UPDATE session SET username = ?, protocol_level = ?, session_expiry = ? WHERE number = ?",
        [(*owner, session) for session, owner in batch.owners.items()],
    )
    executemany(
        "UPDATE session SET away_since = ? WHERE number = ?",
        [(since, session) for session, since in batch.away.items()],
    )
    executemany(
        "UPDATE session SET sent_limit = ? WHERE number = ?",
        [(position, session) for session, position in batch.sent_limits.items()],
    )
    if batch.sent_limits:
        executemany(
            "UPDATE share SET sent_limit = ? WHERE number = ?",
            [(position, session) for session, position in batch.sent_limits.items()],
        )
    for (session, topic_filter), made in batch.subscriptions.items():
        if made is None:
            execute("DELETE FROM subscription WHERE session = ? AND topic_filter = ?", (session, topic_filter))
        else:
            execute(_SUBSCRIPTION, (session, topic_filter, *made))
    executemany(
        "UPDATE subscription SET greeting = ? WHERE session = ? AND topic_filter = ?",
        [(is_pending, session, topic_filter) for (session, topic_filter), is_pending in batch.retained_pending.items()],
    )
    _insert(database, batch.deliveries)
    # After the inserts: a batch may move messages that it inserts itself. Before the removals: it may remove messages
    # that it moves.
    executemany(
        "UPDATE delivery SET session = ?, position = ?, packet_id = ?, qos = ?, sent = 1"
        " WHERE session = ? AND position = ?",
        batch.moves,
    )
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
            execute(_RETAINED, (*message, checksum(message.topic_name, message.payload, message.passed_on)))
    for client_id, will in batch.wills.items():
        if will is None:
            execute("DELETE FROM will WHERE client_id = ?", (client_id,))
        else:
            passed_on = will.properties.passed_on
            values = (client_id, *will[:4], *will.properties, will.delay)
            execute(_WILL, (*values, checksum(will.topic_name, will.payload, passed_on)))
    # Last, so that everything that this batch itself recorded for a discarded session is removed too. Its messages are
    # removed in slices, by later batches.
    for table in ("subscription", "inbound"):
        executemany(f"DELETE FROM {table} WHERE session = ?", discarded)
    if batch.leftover:
        batch.leftover_is_gone = execute(_SLICE, (batch.leftover, batch.leftover, SLICE)).rowcount < SLICE
    batch.garbled = []
    pages = [_read_page(database, page, batch.garbled) for page in batch.pages]
    batch.changes = database.total_changes != before
    if batch.changes:
        execute("UPDATE broker SET run = ?, commits = ?, messages = ?", batch.progress)
    execute("COMMIT")
    return pages


def _made(shares: dict[int, bytes | None]) -> list[tuple[int, bytes]]:
    return [(number, key) for number, key in shares.items() if key is not None]


def _insert(database: sqlite3.Connection, rows: list[Delivery]) -> None:
    shared = _share(database, rows)
    at = 0
    for size, statement in _INSERTS:
        while len(rows) - at >= size:
            values: list[int | bytes | None] = []
            for row in rows[at : at + size]:
                message = shared.get((id(row[8]), row[7])) if shared else None
                if message is None:
                    values += (*row, None, crc32(row[8], crc32(row[7])))
                else:
                    values += (*row[:7], b"", b"", row[9], message, None)
            database.execute(statement, values)
            at += size


def _share(database: sqlite3.Connection, rows: list[Delivery]) -> dict[tuple[int, bytes], int]:
    """Write each large message that several deliveries share into the table message, once.

    Returns their numbers there, by the id() of the payload and the topic name. The broker passes the same payload
    object to every session, so the bytes need not be compared.
    """
    if len({id(row[8]) for row in rows}) == len(rows):
        return {}
    copies: dict[tuple[int, bytes], int] = {}
    payloads: dict[tuple[int, bytes], bytes] = {}
    for row in rows:
        payload = row[8]
        if len(payload) >= _SHARED_SIZE:
            key = (id(payload), row[7])
            copies[key] = copies.get(key, 0) + 1
            payloads[key] = payload
    shared: dict[tuple[int, bytes], int] = {}
    for key, count in copies.items():
        if count > 1:
            number = database.execute(
                "INSERT INTO message (copies, topic_name, payload, checksum) VALUES (?, ?, ?, ?)",
                (count, key[1], payloads[key], checksum(key[1], payloads[key])),
            ).lastrowid
            assert number is not None  # an INSERT into a table with row numbers
            shared[key] = number
    return shared


def _read_page(database: sqlite3.Connection, page: Page, garbled: list[str]) -> list[DeliveryRow]:
    """Return the messages of a page, as many as there are up to the limit.

    Garbled messages are moved to quarantine, and their names are appended to `garbled`.
    """
    while True:
        rows: list[DeliveryRow] = []
        is_complete = True
        shared: dict[int, tuple[bytes | None, bytes | None, int | None]] = {}
        for row in database.execute(_PAGE, (page.session, page.after, page.limit)).fetchall():
            number = row[10]
            message = (row[7], row[8], row[11])
            if number is not None:
                if number not in shared:
                    # None where the row is missing.
                    shared[number] = database.execute(_MESSAGE, (number,)).fetchone() or (None, None, None)
                message = shared[number]
            if is_sound(row, *message):
                topic_name, payload, _ = message
                rows.append(DeliveryRow._make((*row[:7], topic_name or b"", payload or b"", row[9])))
                continue
            is_complete = False
            owner = database.execute(_OWNER, (page.session, page.session)).fetchone() or ("?",)
            garbled.append(f"message {row[1]} of {owner[0]!r}")
            set_aside(database, garbled[-1], *message)
            database.execute("DELETE FROM delivery WHERE session = ? AND position = ?", row[:2])
        if is_complete:
            return rows
