"""The tables of a folder, each at its newest version, as relations of DuckDB."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pa_dataset
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_ingest.location import Location, StorePath, is_table, open_table, reason
from spark_ingest.sql import FOLDERS
from spark_ingest.tables.engine import engine
from spark_ingest.tables.schemas import SCHEMAS

# A log entry's name shows whether there is a newer version; now and then the log is listed, as versions leave it.
_LIST_EVERY_S = 60.0


class TablesAway(Exception):
    """A table cannot be read. The text says which, why, and what to do."""


class Tables:
    """Reads the tables below a folder or URL. Every method may be called from several threads.

    A table that does not exist is empty. Columns that a table lacks, because it was written before they came, are null.
    """

    def __init__(self, folder: Location) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._opened: dict[str, DeltaTable] = {}
        self._listed: dict[str, float] = {}
        self._datasets: dict[str, tuple[int, pa_dataset.Dataset | pa.Table]] = {}
        self._database = engine(threads=2, memory_limit="512MB")

    def version(self, name: str) -> int:
        """Return the newest version of a table; -1 if it does not exist.

        :raises TablesAway: it cannot be read.
        """
        with self._lock:
            try:
                return self._version(name)
            except (DeltaError, OSError) as error:
                self._opened.pop(name, None)
                raise self._away(name, error) from error

    def versions(self, names: Sequence[str] = tuple(FOLDERS)) -> dict[str, int]:
        """Return the newest version of each table."""
        return {name: self.version(name) for name in names}

    def rows(self, names: Sequence[str], query: str, *values: object) -> list[dict[str, Any]]:
        """Run a query over tables, and return its rows by column.

        :raises TablesAway: a table cannot be read, or is not as this release knows it.
        """
        cursor = self.cursor(*names)
        try:
            found = cursor.execute(query, list(values))
            columns = [column[0] for column in found.description or ()]
            return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise self._away(names[0], error) from error
        finally:
            cursor.close()

    def newest_commit(self, name: str) -> int | None:
        """Return when the newest version of a table was committed, in milliseconds; None if there is no table.

        :raises TablesAway: it cannot be read.
        """
        if self.version(name) < 0:
            return None
        with self._lock:
            try:
                (newest,) = self._opened[name].history(1)
            except (DeltaError, OSError, ValueError) as error:
                raise self._away(name, error) from error
        at = newest.get("timestamp")
        return at if isinstance(at, int) else None

    def count(self, name: str) -> int:
        """Return the number of rows of a table, which its log has.

        :raises TablesAway: it cannot be read.
        """
        if self.version(name) < 0:
            return 0
        with self._lock:
            return self._opened[name].count()

    def cursor(self, *names: str) -> duckdb.DuckDBPyConnection:
        """Return a cursor of the database in which these tables are registered under their names."""
        cursor = self._database.cursor()
        for name in names:
            cursor.register(name, self.dataset(name))
        return cursor

    def dataset(self, name: str) -> pa_dataset.Dataset | pa.Table:
        """Return the newest version of a table, with all columns of its schema.

        :raises TablesAway: it cannot be read.
        """
        with self._lock:
            version = self.version(name)
            known = self._datasets.get(name)
            if known is None or known[0] != version:
                known = self._datasets[name] = version, self._read(name, version)
            return known[1]

    def _read(self, name: str, version: int) -> pa_dataset.Dataset | pa.Table:
        schema = SCHEMAS[FOLDERS[name]]
        if version < 0:
            return schema.empty_table()
        try:
            found = self._opened[name].to_pyarrow_dataset()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._away(name, error) from error
        held = set(found.schema.names)
        lacking = [field for field in schema if field.name not in held]
        return found.replace_schema(pa.schema([*found.schema, *lacking])) if lacking else found

    def _version(self, name: str) -> int:
        path = self.folder / FOLDERS[name]
        table = self._opened.get(name)
        now = time.monotonic()
        if table is None:
            if not is_table(path):
                if not isinstance(self.folder, StorePath) and not self.folder.is_dir():
                    raise NotADirectoryError(f"there is no folder {self.folder}")
                return -1
            table = self._opened[name] = open_table(path)
            self._listed[name] = now
            return table.version()
        following = path / "_delta_log" / f"{table.version() + 1:020d}.json"
        if isinstance(following, StorePath) or following.exists() or now - self._listed[name] >= _LIST_EVERY_S:
            self._listed[name] = now
            if not is_table(path):
                self._opened.pop(name)
                return -1
            try:
                table.update_incremental()
            except DeltaError:
                # The folder was replaced by another table of the same name.
                table = self._opened[name] = open_table(path)
        return table.version()

    def _away(self, name: str, error: BaseException) -> TablesAway:
        place = self.folder / FOLDERS[name]
        why = reason(error)
        if "reader version" in str(error).lower() or "readerVersion" in str(error):
            return TablesAway(f"{place} was written by a newer release ({why}): update the console")
        return TablesAway(f"{place} cannot be read: {why}")
