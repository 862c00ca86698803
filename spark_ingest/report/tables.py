"""The tables as relations of DuckDB, by their names in SQL: ``devices``, ``windows``, …, ``silver``."""

import duckdb
import pyarrow as pa
from deltalake.exceptions import DeltaError

from ..errors import IngestError, UsageError
from ..location import Location, is_table, open_table, reason
from ..tables.engine import engine
from ..tables.schemas import SCHEMAS

_GOLD = ("devices", "windows", "boots", "gaps", "traffic", "alerts")
_BELOW_GOLD = ("silver", "duplicates", "quarantine")


class Tables:
    """The tables that the report reads, each at its newest version; those that do not exist are empty.

    :ivar absent: names of the gold tables that do not exist.
    :raises UsageError: there is no gold table at all.
    :raises IngestError: a table cannot be opened.
    """

    def __init__(self, tables: Location) -> None:
        self._folder = tables
        self._db = engine(threads=2)
        folders = {name: f"gold/{name}" for name in _GOLD} | {name: name for name in _BELOW_GOLD}
        missing = [name for name, folder in folders.items() if not self._open(name, folder)]
        self._folders = folders
        self.absent = [name for name in missing if name in _GOLD]
        if len(self.absent) == len(_GOLD):
            if "silver" not in missing:
                raise UsageError(
                    f"{tables} has readings but no gold tables: umqtt tables rebuild --tables {tables} makes them"
                )
            raise UsageError(f"no gold tables in {tables / 'gold'}: give the --tables of umqtt ingest")

    def rows(self, table: str, query: str) -> list[tuple]:
        """Run a statement, and return its rows.

        :param table: the table that it reads, for the message.
        :raises IngestError: the table cannot be read.
        """
        try:
            return self._db.execute(query).fetchall()
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise self._unreadable(self._folders[table], error) from error

    def _open(self, name: str, folder: str) -> bool:
        path = self._folder / folder
        try:
            exists = is_table(path)
            found = open_table(path).to_pyarrow_dataset() if exists else SCHEMAS[folder].empty_table()
        except (DeltaError, OSError) as error:
            raise self._unreadable(folder, error) from error
        self._db.register(name, found)
        return exists

    def _unreadable(self, folder: str, error: Exception) -> IngestError:
        remedy = "if it is damaged, umqtt tables rebuild makes it anew"
        return IngestError(f"cannot read {self._folder / folder}: {reason(error)}; {remedy}")
