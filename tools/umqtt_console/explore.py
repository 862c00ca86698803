"""SQL of a viewer: one statement that only reads, in a process of its own with limits on time, memory and rows.

Whatever the statement does, it can end no more than that process. DuckDB has no access to files, network or settings
there; the tables are given to it as relations.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

MOST_ROWS = {"json": 5000, "csv": 1_000_000, "parquet": 1_000_000}
"""Rows of a result by its format; further ones are cut off, and the answer says so."""
SECONDS = 20.0
_MEMORY = "512MB"
_ADDRESS_SPACE = 6 << 30
_AT_ONCE = 2
_LONGEST_SQL = 20_000
_LONGEST_TEXT = 2000
_PIECE = 1 << 16
_STARTS_WITHIN_S = 60.0


class QueryRefused(Exception):
    """The statement is wrong, not allowed, or takes too long. The text says which."""


class Explorer:
    """Runs statements over the tables in a folder."""

    def __init__(self, tables: str) -> None:
        self._tables = tables
        self._free = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def run(self, sql: str, form: str, seconds: float = SECONDS) -> AsyncGenerator[tuple[dict[str, Any], Any]]:
        """Run a statement; yield what is known of the result, and the stream of its bytes.

        :raises QueryRefused: it is wrong, not allowed, or takes too long.
        """
        if len(sql) > _LONGEST_SQL:
            raise QueryRefused(f"the statement has {len(sql):,} characters; {_LONGEST_SQL:,} are allowed")
        request = {"tables": self._tables, "sql": sql, "form": form, "rows": MOST_ROWS[form], "seconds": seconds}
        async with self._free:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, limit=1 << 24,
            )  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                await process.stdin.drain()
                # The process imports the libraries first; only then the statement's time begins.
                await self._line(process, _STARTS_WITHIN_S, "the process of the query did not start")
                late = f"it took longer than {seconds:g} s and was stopped: ask for fewer days, or for gold"
                head = json.loads(await self._line(process, seconds + 1, late))
                if "error" in head:
                    raise QueryRefused(head["error"])
                yield head, process.stdout
            except ConnectionError as error:
                raise QueryRefused("the process of the query ended") from error
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    @staticmethod
    async def _line(process: asyncio.subprocess.Process, within_s: float, late: str) -> bytes:
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), within_s)
        except TimeoutError:
            raise QueryRefused(late) from None
        if not line:
            raise QueryRefused(f"it needs more than {_MEMORY} of memory, or more processor time than it may have")
        return line


def main() -> None:
    """Read a request on stdin, and write on stdout: a line that it began, a line about the result, and the result."""
    import resource

    import duckdb
    import pyarrow as pa

    from spark_ingest.errors import IngestError
    from spark_ingest.location import located
    from spark_ingest.sql import FOLDERS
    from spark_ingest.tables.engine import engine

    from .tables import Tables, TablesAway

    request = json.loads(sys.stdin.readline())
    out = sys.stdout.buffer
    out.write(b"\n")
    out.flush()
    resource.setrlimit(resource.RLIMIT_CPU, (int(request["seconds"] * 2) + 2,) * 2)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    began = time.monotonic()
    try:
        database = engine(memory_limit=_MEMORY, threads=2, temp_directory="", python_enable_replacements=False)
        tables = Tables(located(request["tables"]))
        for name in set(re.findall(r"\w+", request["sql"].lower())) & set(FOLDERS):
            database.register(name, tables.dataset(name))
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        statements = duckdb.extract_statements(request["sql"])
        if len(statements) != 1 or statements[0].type not in (
            duckdb.StatementType.SELECT,
            duckdb.StatementType.EXPLAIN,
        ):
            raise QueryRefused("give one statement that reads: SELECT, FROM, WITH, DESCRIBE or EXPLAIN")
        most = request["rows"]
        reader = database.execute(statements[0]).to_arrow_reader(10_000)
        batches, rows = [], 0
        assert reader is not None, "a statement that reads has a result"
        for batch in reader:
            batches.append(batch)
            rows += len(batch)
            if rows > most:
                break
        found = pa.Table.from_batches(batches, reader.schema)
        head = {"rows": min(rows, most), "cut": rows > most, "ms": round((time.monotonic() - began) * 1000)}
        found = found.slice(0, most)
    except (QueryRefused, TablesAway, IngestError, duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
        text = str(error).strip().split("\n\nLINE")[0] or type(error).__name__
        out.write(json.dumps({"error": text[:_LONGEST_TEXT]}).encode() + b"\n")
        out.flush()
        return
    out.write(json.dumps(head).encode() + b"\n")
    _write(found, request["form"], out)
    out.flush()


def _write(found: Any, form: str, out: Any) -> None:
    if form == "csv":
        import pyarrow as pa
        import pyarrow.csv

        flat = [
            column if not pa.types.is_nested(column.type) and not pa.types.is_binary(column.type)
            else pa.array([_plain(value, None) for value in column.to_pylist()], pa.string())
            for column in found.columns
        ]  # fmt: skip
        pyarrow.csv.write_csv(pa.table(flat, found.column_names), out)
    elif form == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(found, out, compression="zstd")
    else:
        columns = [{"name": field.name, "type": _kind(field.type)} for field in found.schema]
        kinds = [one["type"] for one in columns]
        pairs = zip(found.columns, kinds, strict=True)
        values = [[_plain(value, kind) for value in column.to_pylist()] for column, kind in pairs]
        rows = [list(row) for row in zip(*values, strict=True)]
        out.write(json.dumps({"columns": columns, "rows": rows}, allow_nan=False).encode())


def _kind(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "time"
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return "number" if is_number else "text"


def _plain(value: Any, kind: str | None) -> Any:
    """Return a value for JSON: times as Unix milliseconds, whole numbers beyond a double's as text."""
    import datetime

    if value is None or isinstance(value, bool):
        return value if value is None else str(value).lower()
    if kind == "time":
        if not isinstance(value, datetime.datetime):
            value = datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC)
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return round(moment.timestamp() * 1000)
    if kind == "number":
        number = value if isinstance(value, int) and abs(value) < 1 << 53 else float(value)
        return number if number - number == 0 else str(number)
    if isinstance(value, bytes):
        text = value.hex(" ")
    elif isinstance(value, str):
        text = value
    else:
        text = json.dumps(dict(value) if _is_map(value) else value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST_TEXT or kind is None else f"{text[:_LONGEST_TEXT]}…"


def _is_map(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, tuple) and len(one) == 2 for one in value)


if __name__ == "__main__":
    main()
