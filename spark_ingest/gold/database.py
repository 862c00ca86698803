"""The embedded engine: DuckDB in this process, with a bound on its memory; what is larger goes to files and back."""

import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as pa_dataset

from ..durable import read_checked, replace_checked
from ..errors import FileDamaged
from ..location import Location, StorePath, may_pass
from ..tables.changes import LogGone
from ..tables.engine import engine
from ..tables.schemas import SCHEMAS, TIMESTAMP

MEMORY = "256MB"
"""The most that the engine holds in memory. Python, Arrow and the writer of Delta tables take as much again."""
COUNTED = {
    "silver": [
        *("device_id", "boot", "seq", "ts", "up_ms", "clock_ok", "received_ts", "metrics", "payload_crc", "collector"),
        *("segment", "position", "retain", "extra"),
    ],
    "duplicates": ["device_id", "received_ts", "payload_crc", "collector"],
    "quarantine": [
        *("reason", "topic", "payload", "received_ts", "segment", "position", "collector"),
        *("device_id", "boot", "seq", "kept"),
    ],
    "status": [
        *("device_id", "boot", "online", "fw", "reason", "extra", "retain"),
        *("received_ts", "segment", "position", "collector"),
    ],
    "logs": ["device_id", "boot", "dropped_seq", "received_ts", "collector"],
}
"""The columns of each table that gold counts."""
_SCRIPTS = ("state.sql", "inputs.sql", "macros.sql", "tables.sql", "rows.sql", "taken.sql", "alerts.sql")
_ROWS = {"silver": "readings", "duplicates": "repeats", "quarantine": "refusals", "status": "statuses", "logs": "lines"}
_SECTION = re.compile(r"^-- (?:WHEN ([\w, ]+)|ALWAYS).*\n", re.MULTILINE)
# DuckDB reads * ? [ { in the path of a file as a pattern.
_PATTERN = frozenset("*?[]{}")
_BATCH_ROWS = 16_384
_ROWS_FOR_THREADS = 20_000


class Database:
    """The state of gold and the views over it, in memory.

    :param spill: where a folder for data beyond MEMORY is made; None: the system's folder for temporary files.
    """

    def __init__(self, spill: Path | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="umqtt-gold-", dir=spill, ignore_cleanup_errors=True)
        self.connection = engine(
            memory_limit=MEMORY, threads=1, temp_directory=self._folder.name, preserve_insertion_order=False
        )
        self._filled: set[str] = set()
        self._threads = 1
        for name, columns in COUNTED.items():
            self.view(name, Path(self._folder.name), [], columns, SCHEMAS[name])
        for name in _SCRIPTS:
            self.run(name)
        self.state = [
            row[0] for row in self.rows("SELECT table_name FROM duckdb_tables() WHERE NOT temporary ORDER BY ALL")
        ]

    def close(self) -> None:
        """Forget everything."""
        self.connection.close()
        self._folder.cleanup()

    def run(self, script: str, **variables: int) -> None:
        """Run a file of ``sql/``, with values for its variables.

        Statements below a line "-- WHEN tables" are run if one of these tables has a row.
        """
        self.set(**variables)
        for needs, statements in _sections(text_of(script)):
            if not needs or any(self.rows(f"SELECT 1 FROM {name} LIMIT 1") for name in needs):
                for statement in statements:
                    self.connection.execute(statement)

    def use_threads(self, rows: int) -> None:
        """Use more than one thread if a piece has many rows: for few, threads cost more than they save."""
        threads = min(4, os.cpu_count() or 1) if rows >= _ROWS_FOR_THREADS else 1
        if threads != self._threads:
            self.connection.execute(f"SET threads = {threads}")
            self._threads = threads

    def take(self, root: Location, files: Mapping[str, Sequence[str]], where: str = "TRUE") -> None:
        """Fill the tables of ``rows.sql`` from some files of the tables below gold.

        :param where: a condition on the rows.
        :raises LogGone: a file has been removed.
        """
        filled = {name for name, some in files.items() if some}
        for name in sorted(filled | self._filled):
            self.view(name, root / name, files.get(name, []), COUNTED[name], SCHEMAS[name], where)
            self.connection.execute(f"DELETE FROM {_ROWS[name]}")
            if name in filled:
                self.connection.execute(f"INSERT INTO {_ROWS[name]} FROM {_ROWS[name]}_of_piece")
        self._filled = filled

    def set(self, **variables: int | None) -> None:
        """Set variables for ``getvariable``."""
        for name, value in variables.items():
            self.connection.execute(f"SET VARIABLE {name} = {'NULL' if value is None else value}::BIGINT")

    def rows(self, query: str, *values: object) -> list[tuple]:
        """Run a query and return its rows."""
        return self.connection.execute(query, list(values)).fetchall()

    def reader(self, query: str, schema: pa.Schema) -> pa.RecordBatchReader:
        """Run a query and return its rows piece by piece, in a schema; microseconds become timestamps and dates."""
        found = self.connection.sql(query).to_arrow_reader(_BATCH_ROWS)
        return pa.RecordBatchReader.from_batches(schema, (_cast(batch, schema) for batch in found))

    def insert(self, table: str, rows: list[dict[str, object]]) -> None:
        """Replace the content of a table."""
        self.connection.execute(f"DELETE FROM {table}")
        schema = self.connection.sql(f"FROM {table}").to_arrow_table().schema
        self.connection.register("given", pa.Table.from_pylist(rows, schema))
        self.connection.execute(f"INSERT INTO {table} BY NAME FROM given")
        self.connection.unregister("given")

    def view(
        self,
        name: str,
        table: Location,
        files: Sequence[str],
        columns: Sequence[str],
        schema: pa.Schema,
        where: str = "TRUE",
    ) -> None:
        """Make a view of columns of some files of a Delta table.

        :param where: a condition on the rows.
        :raises LogGone: a file has been removed.
        """
        wanted = pa.schema([schema.field(column) for column in columns])
        paths = [table / file for file in files]
        if not all(path.exists() for path in paths):
            raise LogGone(f"a file of {table} has been removed")
        words = ", ".join(f'"{column}"' for column in columns)
        if paths and isinstance(table, Path) and not _PATTERN & set(str(table)):
            list_ = ", ".join(_quoted(str(path.absolute())) for path in paths)
            source = f"read_parquet([{list_}], union_by_name = true, hive_partitioning = false)"
        else:
            source = f"{name}_rows"
            self.connection.register("given", _read(table, paths, wanted))
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {source} AS FROM given")
            self.connection.unregister("given")
        self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT {words} FROM {source} WHERE {where}")

    def save(self, path: Location) -> None:
        """Write the state into a file, durably and with a checksum."""
        copy = Path(self._folder.name) / "saved"
        copy.unlink(missing_ok=True)
        self.connection.execute(f"ATTACH {_quoted(str(copy))} AS saved")
        try:
            for name in self.state:
                self.connection.execute(f"CREATE TABLE saved.{name} AS FROM {name}")
        finally:
            self.connection.execute("DETACH saved")
        replace_checked(path, zlib.compress(copy.read_bytes(), 1))
        copy.unlink()

    def load(self, path: Location) -> bool:
        """Load a saved state; return whether there is one.

        :raises FileDamaged: the file fails its checksum, or was written by another release.
        """
        try:
            data = read_checked(path)
        except FileNotFoundError:
            return False
        copy = Path(self._folder.name) / "saved"
        copy.write_bytes(zlib.decompress(data))
        try:
            self.connection.execute(f"ATTACH {_quoted(str(copy))} AS saved (READ_ONLY)")
            for name in self.state:
                self.connection.execute(f"DELETE FROM {name}")
                self.connection.execute(f"INSERT INTO {name} BY NAME FROM saved.{name}")
        except duckdb.Error as error:
            if may_pass(error):
                raise
            raise FileDamaged(f"{path} is of another release") from error
        finally:
            with suppress(duckdb.Error):
                self.connection.execute("DETACH saved")
            copy.unlink()
        return True


def text_of(script: str) -> str:
    """Return a file of ``sql/``."""
    return (resources.files("spark_ingest.gold") / "sql" / script).read_text(encoding="utf-8")


@cache
def _sections(text: str) -> list[tuple[list[str], list[duckdb.Statement]]]:
    """Return the parts of a script: the tables of which one must have a row, and the statements."""
    first, *rest = _SECTION.split(text)
    parts = [("", first), *zip(rest[::2], rest[1::2], strict=True)]
    return [(needs.split(", ") if needs else [], duckdb.extract_statements(words)) for needs, words in parts]


def _read(table: Location, paths: Sequence[Location], schema: pa.Schema) -> pa.Table | pa.RecordBatchReader:
    if not paths:
        return schema.empty_table()
    names = [path.key if isinstance(path, StorePath) else str(path) for path in paths]
    store = table.filesystem() if isinstance(table, StorePath) else None
    dataset = pa_dataset.dataset(names, schema=schema, format="parquet", filesystem=store)
    return dataset.scanner(batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=4).to_reader()


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        column = batch[field.name]
        if pa.types.is_date(field.type):
            column = column.cast(pa.int32())
        elif field.type == TIMESTAMP:
            column = column.cast(pa.int64())
        columns.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def partitions(days: Sequence[int | None]) -> Iterator[str]:
    """Yield a predicate of Delta for each day (since 1970-01-01) of `heard_date`; None: no day is known."""
    epoch = pa.array([day for day in days if day is not None], pa.int32()).cast(pa.date32()).to_pylist()
    yield from (f"heard_date = '{day}'" for day in epoch)
    if None in days:
        yield "heard_date IS NULL"


def schema_of(name: str) -> pa.Schema:
    """Return the schema of a gold table."""
    return SCHEMAS[f"gold/{name}"]
