"""Batches in SQLite: WAL, synchronous=FULL. COMMIT returns only after the log is on disk."""

import logging
import secrets
import sqlite3

from ..errors import StoreError
from . import schema, writer
from .base import DeliveryRow
from .change_batch import Batch
from .group_commit import Opened
from .lock import RUN_SIZE, StoreLock, Witness
from .quarantine import set_aside_garbled
from .recovery import check_tail, recover
from .salvage import salvage

_log = logging.getLogger("umqtt_broker.store")

# Garbled messages that a line names.
_MOST_NAMED = 5


class SqliteBackend:
    """See group_commit.Backend. path: of the database. accept_loss: open it also when something of it is lost."""

    is_shared = False

    def __init__(self, path: str, accept_loss: bool = False) -> None:
        self.name = f"store {path}"
        self._path = path
        self._accept_loss = accept_loss
        self._is_unwitnessed = False
        # A disk that damages every copy at once is not filled with them.
        self._may_salvage = True

    def acquire(self) -> str:
        """There is nobody to wait for: open() refuses a store that another broker has."""
        return ""

    def open(self) -> Opened:
        """Open, lock, migrate, read. Raises StoreError."""
        self._lock = StoreLock(self._path)
        try:
            try:
                return self._read()
            except sqlite3.Error as error:
                if not (self._accept_loss and schema.is_damage(error)):
                    raise
                self._salvage(error)
                return self._read()
        except (sqlite3.Error, OSError, StoreError) as error:
            self._lock.close()
            if isinstance(error, StoreError):
                raise
            remedy = "name another with --store"
            if schema.is_damage(error):
                remedy = "start with --accept-loss to go on with what can be read of it"
            raise StoreError(f"cannot open {self.name} ({error}) — restore a backup, or {remedy}") from error

    def close(self) -> None:
        """Close the database and give the lock back."""
        self._database.close()
        self._lock.close()

    # Opening

    def _read(self) -> Opened:
        """Open the database and read it. Raises sqlite3.Error, OSError and StoreError; then it is not open."""
        self._check_tail()
        self._database = schema.connect(self._path)
        try:
            self._report_garbled(set_aside_garbled(self._database))
            opened = Opened(*recover(self._database))
            self._begin_run()
        except BaseException:
            self._database.close()
            raise
        return opened

    def _salvage(self, error: sqlite3.Error) -> None:
        _log.error("%s was damaged (%s): %s", self.name, error, salvage(self._path))

    def _check_tail(self) -> None:
        """Look for commits that are gone, before anything is changed."""
        if lost := check_tail(self._path):
            if not self._accept_loss:
                raise StoreError(f"{lost} — restore a backup, or start with --accept-loss to go on without them")
            _log.error("%s: goes on without them, as told", lost)

    def _begin_run(self) -> None:
        """Count commits anew, in the database itself: no loss of the log can take it back to an earlier run."""
        self._progress = Witness(secrets.token_bytes(RUN_SIZE), 0, 0)
        self._database.execute("UPDATE broker SET run = ?, commits = ?, messages = ?", self._progress)
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._lock.write(self._progress)

    # Writing

    def write(self, batch: Batch) -> list[list[DeliveryRow]]:
        """Write a batch in one transaction. Raises sqlite3.Error, and StoreError if the damage cannot be mended."""
        run, commits, messages = self._progress
        batch.progress = Witness(run, commits + 1, messages + len(batch.deliveries))
        try:
            pages = self._transact(batch)
        except sqlite3.Error as error:
            if not (schema.is_damage(error) and self._may_salvage):
                raise
            # Who is connected must not be cut off for ever by a page that somebody else's messages were on.
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
            return writer.write(self._database, batch)
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
