"""Replaces a damaged store by a new file with everything that can be read of it. The damaged file is kept.

Each table is read from its beginning up to the first damaged page, and from its end back to the last damaged page.
Between the two, messages are looked for one by one. So if one page of messages is damaged, only the messages on it are
lost, and a file that was cut short costs the messages behind the cut.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ..errors import StoreError
from . import schema
from .backup import keep_old, new_file
from .lock import counted, read_witness

_KINDS: dict[str, type] = {"INTEGER": int, "BLOB": bytes, "TEXT": str}
# Positions without a readable row after which the rest of a queue, or of a table, counts as lost: a second or two.
_MOST_MISSING = 5_000
_MOST_MISSING_OF_TABLE = 100_000
_NO_LIMIT = 1 << 62
_QUEUES = "SELECT number FROM session UNION SELECT number FROM share ORDER BY 1"
_ORPHANS = "session NOT IN (SELECT number FROM session UNION SELECT number FROM share)"


class _Column(NamedTuple):
    name: str
    kind: type
    may_be_null: bool
    key: int


def salvage(path: str, *, may_lose_all: bool = False) -> str:
    """Replace the store at `path` by what can be read of it. The caller must have its lock.

    may_lose_all: replace it by an empty store if nothing can be read, and if its lock file says that it was a store.
    Returns a message: what is left, what is lost, and the name of the damaged file. Raises StoreError, OSError and
    sqlite3.Error; then the store is unchanged.
    """
    # Replace the file and not a link to it: SQLite keeps the log beside the file.
    path = os.path.realpath(path)
    with new_file(path) as partial:
        with _source(path) as source:
            found = "nothing can be read, so it begins empty"
            try:
                _require_store(source, path)
            except sqlite3.Error as error:
                if not may_lose_all or read_witness(path) is None:
                    raise StoreError(f"nothing of store {path} can be read ({error}) — restore a backup") from error
            else:
                found = _copy(source, partial)
        kept = keep_old(path, "damaged")
    return f"{found}; the damaged file is {kept}"


def refusal(path: str, error: Exception) -> StoreError:
    """Return the error of a store that cannot be opened: what is damaged, and what its user can do."""
    found, remedy = str(error), "name another with --store"
    if schema.is_damage(error):
        witness = read_witness(path)
        if _can_be_read(path):
            remedy = "start with --accept-loss to go on with what can be read of it"
        elif witness is not None:
            found += f"; nothing can be read; {counted(path, witness)}"
            remedy = "start with --accept-loss to go on without it"
    return StoreError(f"cannot open store {path} ({found}) — restore a backup, or {remedy}")


def _can_be_read(path: str) -> bool:
    try:
        with _source(os.path.realpath(path), schema.connect_to_look) as source:
            _require_store(source, path)
            return True
    except (sqlite3.Error, OSError, StoreError):
        return False


@contextlib.contextmanager
def _source(
    path: str, connect: Callable[[str], sqlite3.Connection] = schema.open_database
) -> Iterator[sqlite3.Connection]:
    """Open the damaged database. If only its log is left, yield what is in the log."""
    if not schema.is_empty(path):
        with closing(connect(path)) as database:
            _tolerate(database)
            yield database
        return
    with TemporaryDirectory(prefix=f"{os.path.basename(path)}.log-", dir=os.path.dirname(path)) as folder:
        copy = os.path.join(folder, "database")
        # SQLite takes pages from the log first. The others are those of a new store: it deletes the log of an empty
        # database, and the log has the list of the tables only if the database has grown.
        schema.connect(copy).close()
        shutil.copyfile(path + "-wal", copy + "-wal")
        with closing(connect(copy)) as database:
            _tolerate(database)
            yield database


def _tolerate(database: sqlite3.Connection) -> None:
    """Let SQLite read a file that is shorter than its first page says, and skip tables with garbled definitions."""
    database.execute("PRAGMA writable_schema = ON")


def _require_store(source: sqlite3.Connection, path: str) -> None:
    """Raise sqlite3.Error or StoreError if nothing can be read."""
    # With tables, only the number of the version is damaged.
    if not schema.read_version(source, path) and not source.execute("SELECT 1 FROM sqlite_schema").fetchone():
        raise schema.DamagedRow("file is not a database")


def _copy(source: sqlite3.Connection, to: str) -> str:
    """Copy what can be read. Returns in words what is left and what is lost."""
    with contextlib.suppress(sqlite3.Error):
        schema.mend_tables(source)
    with closing(sqlite3.connect(to, isolation_level=None)) as target:
        schema.make_tables(target)
        target.execute("BEGIN")
        tables = [name for (name,) in target.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()]
        # Owners of queues first: their numbers are needed to read the queues.
        tables.sort(key=lambda table: table not in ("session", "share"))
        lost = [text for table in tables if (text := _copy_table(source, target, table))]
        _tidy(target, tables)
        left = {table: target.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
        target.execute("COMMIT")
    gone = f"; lost are {', '.join(lost)}" if lost else ""
    return f"{left['session']} sessions and {left['delivery']} messages are left{gone}"


def _copy_table(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> str:
    """Copy the readable rows of a table. Returns in words what is lost, "" for nothing."""
    columns = [
        _Column(name, _KINDS[kind], not (not_null or key), key)
        for _, name, kind, not_null, _, key in target.execute(f"PRAGMA table_info({table})").fetchall()
    ]
    # Columns by number, not by name: the names are in the damaged database too.
    places = [at for at, column in sorted(enumerate(columns), key=lambda one: one[1].key) if column.key]
    keys = [str(at + 1) for at in places] or ["rowid"]
    insert = f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(columns))})"
    # The row that the script of the tables has made, the broker's identity, is used if none can be read.
    made = target.execute(f"SELECT * FROM {table}").fetchall()
    target.execute(f"DELETE FROM {table}")
    query = f"SELECT * FROM {table} ORDER BY "
    forward, backward, between = (_Reader(source, columns, places) for _ in range(3))
    target.executemany(insert, forward.read(query + ", ".join(keys)))
    if forward.is_cut:
        target.executemany(insert, backward.read(query + ", ".join(f"{key} DESC" for key in keys)))
        if table in ("delivery", "message"):
            queues: list[tuple[int, ...]] = [()] if table == "message" else target.execute(_QUEUES).fetchall()
            target.executemany(insert, between.search(table, queues, forward.last, backward.last))
    if made and not target.execute(f"SELECT 1 FROM {table}").fetchone():
        target.executemany(insert, made)
        return f"the row of {table}"
    parts = []
    if forward.is_cut:
        found = f" except {between.count} in between" if between.count else ""
        parts.append(f"rows of {table}{_named('behind', forward.last)}{_named('before', backward.last)}{found}")
    if odd := forward.odd + backward.odd + between.odd:
        parts.append(f"{odd} garbled rows of {table}")
    return " and ".join(parts)


def _named(word: str, key: tuple[Any, ...]) -> str:
    """Return `word` and a key, "" if there is none."""
    return f" {word} {' '.join(map(repr, key))}" if key else ""


class _Reader:
    """The rows of queries, each up to the first that cannot be read.

    places: the key's columns. count: how many rows were read. odd: how many were left out because their values are
    impossible. last: the key of the last row, () if there was none. is_cut: the last query met a row that cannot be
    read.
    """

    def __init__(self, source: sqlite3.Connection, columns: Sequence[_Column], places: Sequence[int]) -> None:
        self._source, self._columns, self._places = source, columns, places
        self.last: tuple[Any, ...] = ()
        self.is_cut = False
        self.count = self.odd = 0

    def read(self, query: str, *values: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query."""
        self.is_cut = False
        before = self.count + self.odd
        yield from self._read(query, values)
        if self.is_cut:
            # Python steps to the next row before it returns one, so the last row before the damage is still missing.
            yield from self._read(f"{query} LIMIT 1 OFFSET {self.count + self.odd - before}", values)
            self.is_cut = True

    def _read(self, query: str, values: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        try:
            for row in self._source.execute(query, values):
                if len(row) != len(self._columns) or not all(map(_fits, row, self._columns)):
                    self.odd += 1
                    continue
                self.last = tuple(row[at] for at in self._places)
                self.count += 1
                yield row
        except sqlite3.DatabaseError:
            self.is_cut = True

    def search(
        self, table: str, queues: list[tuple[int, ...]], low: tuple[int, ...], high: tuple[int, ...]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows from between damaged pages: behind each position in turn that cannot be read.

        queues: the keys without the last column. low, high: the keys between which rows are looked for; () for no
        limit.
        """
        *names, position = (self._columns[at].name for at in self._places)
        where = "".join(f"{name} = ? AND " for name in names)
        query = f"SELECT * FROM {table} WHERE {where}{position} > ? AND {position} < ? ORDER BY {position}"
        budget = _MOST_MISSING_OF_TABLE
        for queue in queues:
            if queue < low[:-1] or (high and queue > high[:-1]):
                continue
            after = low[-1] if queue == low[:-1] and low else 0
            end = high[-1] if high and queue == high[:-1] else _NO_LIMIT
            missing = 0
            while missing < _MOST_MISSING and budget:
                before = self.count
                yield from self.read(query, *queue, after, end)
                if not self.is_cut:
                    break
                missing = missing + 1 if self.count == before else 0
                budget -= 1
                after = max(after + 1, self.last[-1]) if self.count > before else after + 1


def _fits(value: object, column: _Column) -> bool:
    return isinstance(value, column.kind) or (value is None and column.may_be_null)


def _tidy(database: sqlite3.Connection, tables: list[str]) -> None:
    """Remove rows of lost sessions, whose numbers will be given to new ones, and count the shared messages again."""
    execute = database.execute
    if "share" in tables:
        for table in ("subscription", "delivery", "inbound"):
            execute(f"DELETE FROM {table} WHERE {_ORPHANS}")
    if "message" in tables:
        execute("CREATE TEMP TABLE wanted (message INTEGER PRIMARY KEY, copies INTEGER)")
        execute("INSERT INTO wanted SELECT message, count(*) FROM delivery WHERE message IS NOT NULL GROUP BY message")
        execute("UPDATE message SET copies = coalesce((SELECT copies FROM wanted WHERE message = number), 0)")
        execute("DELETE FROM message WHERE copies = 0")
