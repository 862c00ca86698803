"""The tables of the SQLite store."""

import os
import sqlite3
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from ..errors import StoreError

# "umqB": marks the file as a store of this broker, unlike any other SQLite database.
_APPLICATION_ID = 0x756D7142

_SCRIPT = """
    CREATE TABLE session (
        number INTEGER PRIMARY KEY,
        client_id BLOB NOT NULL UNIQUE,
        sent_limit INTEGER NOT NULL DEFAULT 0,
        username BLOB,
        away_since INTEGER NOT NULL DEFAULT 0,
        protocol_level INTEGER NOT NULL DEFAULT 4,
        session_expiry INTEGER
    );
    CREATE TABLE subscription (
        session INTEGER NOT NULL,
        topic_filter BLOB NOT NULL,
        options INTEGER NOT NULL,
        -- 1 while retained messages of a new subscription are still on their way to the queue.
        greeting INTEGER NOT NULL DEFAULT 0,
        identifier INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (session, topic_filter)
    ) WITHOUT ROWID;
    -- See base.DeliveryRow. The primary key is the order of the queue, so one session's messages lie side by side and
    -- are appended.
    CREATE TABLE delivery (
        session INTEGER NOT NULL,
        position INTEGER NOT NULL,
        packet_id INTEGER NOT NULL,
        qos INTEGER NOT NULL,
        flags INTEGER NOT NULL,
        sent INTEGER NOT NULL,
        released INTEGER NOT NULL,
        topic_name BLOB NOT NULL,
        payload BLOB NOT NULL,
        expires_at INTEGER NOT NULL DEFAULT 0,
        -- What more than one session waits for is in the table message; topic name and payload are empty here.
        message INTEGER,
        -- See quarantine.py. NULL for a delivery whose message is shared: that has it.
        checksum INTEGER,
        PRIMARY KEY (session, position)
    ) WITHOUT ROWID;
    CREATE INDEX delivery_released ON delivery (session, released) WHERE released > 0;
    CREATE TABLE inbound (
        session INTEGER NOT NULL,
        packet_id INTEGER NOT NULL,
        PRIMARY KEY (session, packet_id)
    ) WITHOUT ROWID;
    -- Properties of MQTT 5 are in passed_on; see protocol.messages. The checksums count them in.
    CREATE TABLE retained (
        topic_name BLOB PRIMARY KEY,
        payload BLOB NOT NULL,
        qos INTEGER NOT NULL,
        checksum INTEGER,
        passed_on BLOB NOT NULL DEFAULT x'',
        expires_at INTEGER
    ) WITHOUT ROWID;
    CREATE TABLE message (
        number INTEGER PRIMARY KEY,
        copies INTEGER NOT NULL,
        topic_name BLOB NOT NULL,
        payload BLOB NOT NULL,
        checksum INTEGER
    );
    -- Whatever deletes a delivery, for whatever reason, cannot leave the message behind.
    CREATE TRIGGER delivery_message AFTER DELETE ON delivery WHEN OLD.message IS NOT NULL BEGIN
        UPDATE message SET copies = copies - 1 WHERE number = OLD.message;
        DELETE FROM message WHERE number = OLD.message AND copies = 0;
    END;
    CREATE TABLE will (
        client_id BLOB PRIMARY KEY,
        topic_name BLOB NOT NULL,
        payload BLOB NOT NULL,
        qos INTEGER NOT NULL,
        retain INTEGER NOT NULL,
        checksum INTEGER,
        passed_on BLOB NOT NULL DEFAULT x'',
        expiry INTEGER,
        delay INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    -- The queue of a shared subscription. Its messages are in delivery, where its number is used as a session's is:
    -- no session has it.
    CREATE TABLE share (
        number INTEGER PRIMARY KEY,
        key BLOB NOT NULL UNIQUE,
        sent_limit INTEGER NOT NULL DEFAULT 0
    );
    -- The lock file is compared with the last three: lock.Witness.
    CREATE TABLE broker (
        id BLOB NOT NULL,
        run BLOB NOT NULL DEFAULT x'',
        commits INTEGER NOT NULL DEFAULT 0,
        messages INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE quarantine (
        number INTEGER PRIMARY KEY,
        what TEXT NOT NULL,
        topic_name BLOB,
        payload BLOB,
        checksum INTEGER
    );
    -- Not used any more: the brokers whose stores an earlier release has added to this one.
    CREATE TABLE imported (broker_id BLOB PRIMARY KEY) WITHOUT ROWID;
    -- Not used any more: it identified this broker to bridges.
    INSERT INTO broker (id) VALUES (CAST(lower(hex(randomblob(16))) AS BLOB));
"""

_DECODE = partial(str, encoding="utf-8", errors="replace")

# Low bytes of SQLite's error codes which say that the file is damaged or is not a database.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_COLUMNS = (
    "SELECT m.type, m.name, m.rootpage > 0, c.name, c.type, c.pk FROM sqlite_schema m"
    " LEFT JOIN pragma_table_info(m.name) c WHERE m.sql IS NOT NULL ORDER BY 1, 2, c.cid"
)

# The version of the tables that this program reads and writes; 0 is an empty database.
VERSION = 1


class DamagedRow(sqlite3.DatabaseError):
    """A row is missing, or has values that the broker never writes."""


def is_damage(error: BaseException) -> bool:
    """Tell whether an error means that the database is damaged, and not that the disk is full or locked."""
    number = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, DamagedRow) or (number is not None and number & 0xFF in _DAMAGE)


def connect(path: str) -> sqlite3.Connection:
    """Open the database at `path`; make it if it is missing (mode 0600).

    Raises sqlite3.Error, or StoreError for a file that is not a store of this broker or has another version.
    """
    check_file(path)
    try:
        # Only the owner may read the messages; SQLite would make the file with the umask's mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"cannot write store {path} ({error.strerror}) — name another with --store") from error
    # Used in one thread at a time: the event loop's until it is open, then the store's own.
    database = open_database(path, check_same_thread=False)
    try:
        _prepare(database, path)
    except BaseException:
        database.close()
        raise
    sync_folder(path)
    return database


def connect_to_look(path: str) -> sqlite3.Connection:
    """Open the database at `path` so that neither it nor its log changes. Raises sqlite3.Error."""
    check_file(path)
    # Without a log no broker is writing; opened as immutable, since SQLite would otherwise leave an empty log behind.
    mode = "mode=ro" if os.path.exists(os.path.realpath(path) + "-wal") else "mode=ro&immutable=1"
    return open_database(f"{Path(os.path.abspath(path)).as_uri()}?{mode}", uri=True)


def open_database(path: str, **options: bool) -> sqlite3.Connection:
    """Open a database that may be damaged. Raises sqlite3.Error."""
    database = sqlite3.connect(path, isolation_level=None, **options)
    # One bit makes a text of a payload. If it is no UTF-8, the row must be found garbled, and not fail to be read.
    database.text_factory = _DECODE
    return database


def is_empty(path: str) -> bool:
    """Tell whether there is no file at `path`, or an empty one."""
    return not os.path.exists(path) or os.path.getsize(path) == 0


def check_file(path: str) -> None:
    """Raise DamagedRow for a file that SQLite would take for a new database, though something is there.

    SQLite would delete the log of an empty file, even when it only reads, and overwrite a file of one byte.
    """
    log = os.path.realpath(path) + "-wal"
    if is_empty(path):
        if not is_empty(log):
            raise DamagedRow(f"it is {'empty' if os.path.exists(path) else 'missing'}, but its log {log} is not")
    elif os.path.getsize(path) == 1:
        raise DamagedRow("file is not a database")


def check(database: sqlite3.Connection, path: str) -> int:
    """Return the version of a database, 0 for an empty one.

    Raises sqlite3.Error also if its tables are not those of its version; otherwise as read_version().
    """
    version = read_version(database, path)
    if database.execute(_COLUMNS).fetchall() != (_tables().columns if version else []):
        raise DamagedRow(f"its tables are not those of version {version}")
    return version


def read_version(database: sqlite3.Connection, path: str) -> int:
    """Return the version of a database, 0 for an empty one.

    Raises sqlite3.Error for a file that is not a database, StoreError for a database that is not a store of this broker
    or has another version.
    """
    execute = database.execute
    version = execute("PRAGMA user_version").fetchone()[0]
    application_id = execute("PRAGMA application_id").fetchone()[0]
    try:
        is_new = execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    except UnicodeDecodeError as error:
        # SQLite's message contains the garbled name, which is not UTF-8.
        raise DamagedRow("the list of its tables is garbled") from error
    if application_id != _APPLICATION_ID and not (is_new and version == 0):
        raise StoreError(f"{path} is a database, but not a broker's store — name another file with --store")
    if version not in (0, VERSION):
        found = f"store {path} has version {version}, this broker knows {VERSION}"
        raise StoreError(f"{found} — use the umqtt that made it")
    return version


def first_damage(database: sqlite3.Connection) -> str:
    """Return the first finding of SQLite's integrity check, "" for none. Raises sqlite3.Error."""
    verdict = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
    return "" if verdict == "ok" else verdict


def _prepare(database: sqlite3.Connection, path: str) -> None:
    execute = database.execute
    version = check(database, path)
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = FULL")
    # Truncate the log after a burst: it would otherwise keep its largest size for ever.
    execute(f"PRAGMA journal_size_limit = {64 * 1024 * 1024}")
    if not version:
        make_tables(database)


def mend_tables(database: sqlite3.Connection) -> None:
    """Put the definitions of the tables in place of garbled ones, in a transaction that the caller must roll back.

    So the rows of a table whose definition is garbled can be read. Raises sqlite3.Error.
    """
    execute = database.execute
    definitions = _tables().definitions
    names = {name.encode() for _, _, name, _, _ in definitions}
    execute("BEGIN")
    found = dict(execute("SELECT rowid, CAST(name AS BLOB) FROM sqlite_schema").fetchall())
    for number, kind, name, table, sql in definitions:
        # Any other valid name means that this list of tables has another order.
        if found.get(number) == name.encode() or found.get(number) not in names:
            values = (kind, name, table, sql, number)
            execute("UPDATE sqlite_schema SET type = ?, name = ?, tbl_name = ?, sql = ? WHERE rowid = ?", values)
    # Makes SQLite read them again.
    execute("PRAGMA writable_schema = RESET")
    execute("PRAGMA writable_schema = ON")


class _Tables(NamedTuple):
    """The tables of a new store. definitions: the rows of sqlite_schema."""

    columns: list[tuple[str | int | None, ...]]
    definitions: list[tuple[int, str, str, str, str | None]]


@cache
def _tables() -> _Tables:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        make_tables(fresh)
        rows = fresh.execute("SELECT rowid, type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid").fetchall()
        return _Tables(fresh.execute(_COLUMNS).fetchall(), rows)


def make_tables(database: sqlite3.Connection) -> None:
    """Make the tables in an empty database, in one transaction. Raises sqlite3.Error."""
    database.executescript(
        f"BEGIN IMMEDIATE; {_SCRIPT} PRAGMA user_version = {VERSION};"
        f" PRAGMA application_id = {_APPLICATION_ID}; COMMIT;"
    )


def sync_folder(path: str) -> None:
    """Make the directory entry of a new database durable."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
