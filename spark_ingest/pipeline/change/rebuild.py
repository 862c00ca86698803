"""Rebuild silver, the tables beside it and gold from bronze, in place.

This is for when the rules of the record have changed, or a table was damaged. The application transactions are kept,
and those of micro-batches that only bronze had are added, because all tables then contain what bronze has. So a
pipeline that continues afterwards repeats nothing. If two collectors stored the same reading, silver may have the copy
of the other collector afterwards.

Bronze is read to its end before any row is removed. An interrupted rebuild leaves a mark
(:func:`process.unfinished`), and a pipeline refuses to run until the rebuild was repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from ...decoders.rules import Rules, load, transform_of
from ...decoders.sparkplug import Births
from ...errors import IngestError, UsageError
from ...gold import COUNTED, Gold, remembered_rules
from ...location import Location, is_table, open_table, remove_tree
from ...tables.delta import WRITER, Delta, noted_rules, transactions
from ...tables.engine import engine
from ...tables.schemas import PARTITIONED_BY, PLACE_COLUMNS, SCHEMAS
from ...tables.upkeep import require_delta
from ..decode.messages import MESSAGE_COLUMNS, part
from ..deduplicate.dedup import Seen
from ..deduplicate.silver import judge
from ..process import first_line, require_whole, stop_session, unfinished
from ..run.session import start_session
from ..write.batch import conflicting_rows
from ..write.transform import columns_of
from ..write.transform import load as load_transform

Change = Callable[[pa.Table], pa.Table]
"""A function from new rows of silver to those that are written."""

_REBUILT = ("silver", "quarantine", "duplicates", "status", "logs")
_CHUNK_ROWS = 500_000
_CHUNK_BYTES = 128 << 20
_BATCH_ROWS = 1024
_MEMORY = "512MB"
_MESSAGES = pa.schema([SCHEMAS["bronze"].field(name) for name in MESSAGE_COLUMNS])

# A piece is what a segment of a spool has of one date. It is read on that date, unless something before it in its spool
# has a later one, as when the collector's clock was set back: then with that. Pieces that overlap are read together.
_PIECES = """CREATE TABLE pieces AS
WITH found AS (
    SELECT collector, spool, segment, received_date, min((segment << 40) + position) AS "first",
           max((segment << 40) + position) AS "last"
    FROM places GROUP BY ALL),
marked AS (
    SELECT *, "first" > max("last") OVER (PARTITION BY collector, spool ORDER BY "first", "last"
              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS begins FROM found),
islands AS (
    SELECT *, count(*) FILTER (begins) OVER (PARTITION BY collector, spool ORDER BY "first", "last"
              ROWS UNBOUNDED PRECEDING) AS island FROM marked)
SELECT *, max(received_date) OVER (PARTITION BY collector, spool ORDER BY island) AS day FROM islands"""

# By place for each collector, whose clock may have been set. Collectors are ordered by time, and so are spools of one
# name: segments of a new one have the old one's numbers.
# Payloads are fetched by the rows of their files: one may have 16 MB, and the engine has thousands in memory.
_IN_ORDER = """
WITH today AS (FROM places SEMI JOIN (FROM pieces WHERE day = $1) USING (collector, spool, segment, received_date)),
anew AS (
    SELECT collector FROM pieces WHERE day = $1 GROUP BY collector, segment HAVING count(DISTINCT spool) > 1),
dated AS (
    SELECT *, CASE WHEN collector IN (FROM anew) THEN spool ELSE '' END AS own,
           max(received_ts) OVER (
               PARTITION BY collector ORDER BY segment, position ROWS UNBOUNDED PRECEDING) AS latest
    FROM today)
SELECT file, "row", size FROM dated
ORDER BY CASE WHEN own = '' THEN latest ELSE received_ts END, own, segment, position"""


def rebuild(
    tables: Location,
    *,
    config: Path | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> int:
    """Rebuild the tables; return the number of rows of silver. No pipeline may run meanwhile.

    :param config: the ingest.toml that the pipeline was started with.
    :param report: called with a line after each day of bronze, or several for a large day.
    :raises UsageError: there are no Delta tables, `config` is missing or unusable, or another command was
        interrupted.
    :raises IngestError: bronze cannot be read; nothing was changed.
    """
    require_delta(tables)
    require_whole(tables, but_for="rebuild")
    _require_readable(tables / "bronze", MESSAGE_COLUMNS)
    rules = rules_of(tables, config)
    with _transforming(transform_of(config) if config else None) as change, unfinished(tables, "rebuild"):
        rows = _rebuild(tables, rules, change, report)
        count_gold(tables)
    return rows


def rules_of(tables: Location, config: Path | None) -> Rules:
    """Return the rules by which the messages of bronze were read.

    :param config: the ingest.toml that the pipeline was started with.
    :raises UsageError: `config` is unusable, or missing although the pipeline was started with one.
    """
    trust_ids, decoders = noted_rules(tables)
    if decoders and config is None:
        raise UsageError(f"the messages in {tables} were read with an ingest.toml: give it with --config")
    return Rules(trust_ids, load(config) if config else "")


def recount(tables: Location) -> int:
    """Recount gold from silver and the tables beside it; return the number of devices.

    :raises UsageError: there are no Delta tables, or another command was interrupted.
    :raises IngestError: a table cannot be read; nothing was changed.
    """
    require_delta(tables)
    require_whole(tables, but_for="rebuild --gold-only")
    for name, columns in COUNTED.items():
        if name == "silver" or is_table(tables / name):
            _require_readable(tables / name, columns)
    with unfinished(tables, "rebuild --gold-only"):
        return count_gold(tables)


def count_gold(tables: Location) -> int:
    """Recount gold as :func:`recount` does, but without its checks. The rules of alerts are the pipeline's.

    The journal of alerts is not changed: only the pipeline sends alerts.
    """
    rules = remembered_rules(tables)
    remove_tree(tables / "gold")
    gold = Gold(tables, rules=rules)
    gold.update(note_alerts=False)
    return gold.devices


def _require_readable(table: Location, columns: Sequence[str]) -> None:
    try:
        dataset = open_table(table).to_pyarrow_dataset()
        # A column that the table lacks is null.
        for _ in dataset.to_batches(columns=[name for name in columns if name in dataset.schema.names]):
            pass
    except (OSError, DeltaError, pa.ArrowException) as error:
        raise IngestError(
            f"cannot read {table}: {first_line(error)}; nothing was changed: restore it from a copy and run this again"
        ) from error


def _rebuild(tables: Location, rules: Rules, change: Change, report: Callable[[str], None]) -> int:
    bronze = Delta(tables / "bronze", SCHEMAS["bronze"], PARTITIONED_BY["bronze"])
    rebuilt = {name: Delta(tables / name, SCHEMAS[name], PARTITIONED_BY.get(name)) for name in _REBUILT}
    held = {app: batch_id for app, batch_id in transactions(bronze.path).items() if not app.startswith("umqtt/")}
    for name, table in rebuilt.items():
        _write(name, table, SCHEMAS[name].empty_table(), "overwrite", CommitProperties())
    seen, births, rows = Seen(), Births(), 0
    for day, messages in _messages(bronze):
        parts = part(messages, rules, births)
        judged = judge(parts.readings, parts.unnumbered, seen, rebuilt["silver"])
        conflicts = conflicting_rows(_at(messages, judged.conflicts), rules)
        new = {
            "silver": change(judged.silver),
            "quarantine": pa.concat_tables([parts.quarantined, conflicts]),
            "duplicates": judged.duplicates,
            "status": parts.status,
            "logs": parts.logs,
        }
        for name, some in new.items():
            if some.num_rows:
                _write(name, rebuilt[name], some, "append", CommitProperties())
            rows += some.num_rows if name == "silver" else 0
        report(f"{day}: {messages.num_rows} messages")
    for name, table in rebuilt.items():
        known = [Transaction(app.removesuffix("bronze") + name, version) for app, version in held.items()]
        _write(name, table, SCHEMAS[name].empty_table(), "append", CommitProperties(app_transactions=known))
    return rows


def _at(messages: pa.Table, readings: pa.Table) -> pa.Table:
    """Return the messages of readings, in their order."""
    place = list(PLACE_COLUMNS)
    if not readings.num_rows:
        return messages.slice(0, 0)
    numbered = messages.select(place).append_column("row", pa.array(range(messages.num_rows), pa.int64()))
    rows = numbered.join(readings.select(place), keys=place, join_type="inner")["row"].combine_chunks()
    return messages.take(rows.take(pc.call_function("array_sort_indices", [rows])))


def _write(name: str, table: Delta, rows: pa.Table, mode: str, properties: CommitProperties) -> None:
    partition_by = PARTITIONED_BY.get(name)
    write_deltalake(
        table.delta,
        rows,
        mode="overwrite" if mode == "overwrite" else "append",
        # A transform has added columns to silver.
        schema_mode="merge",
        partition_by=[partition_by] if partition_by else None,
        writer_properties=WRITER,
        commit_properties=properties,
    )


def _messages(bronze: Delta) -> Iterator[tuple[date, pa.Table]]:
    """Yield (day, messages) for bronze in the order in which the messages were received, a day or less at a time.

    A day's places that are larger than the engine's memory go to files and back.
    """
    dataset = bronze.dataset()
    with TemporaryDirectory(prefix="umqtt-rebuild-") as spill, engine(memory_limit=_MEMORY, temp_directory=spill) as db:
        keys = ["collector", "spool", "segment", "position", "received_date"]
        db.register("places", dataset.scanner(keys).to_reader())
        db.execute(_PIECES)
        db.unregister("places")
        days = db.execute("SELECT day, list(DISTINCT received_date) FROM pieces GROUP BY day ORDER BY day")
        for day, dates in days.fetchall():
            files = list(dataset.get_fragments(pa_dataset.field("received_date").isin(dates)))
            db.register("places", pa.concat_tables(_places(files, dataset.schema, keys)))
            ordered = db.sql(_IN_ORDER, params=[day]).to_arrow_table()
            db.unregister("places")
            for rows in _chunks(ordered):
                yield day, _fetched(rows, files, dataset.schema)


def _places(files: list[pa_dataset.Fragment], schema: pa.Schema, keys: list[str]) -> Iterator[pa.Table]:
    """Yield the place of each message, by its file and its row there, with the bytes of its payload."""
    columns = [*keys, "received_ts", "payload"]
    for file, fragment in enumerate(files):
        row = 0
        for batch in fragment.to_batches(schema=schema, columns=columns, batch_size=_BATCH_ROWS):
            places = pa.Table.from_batches([batch.select(columns[:-1])])
            places = places.append_column("size", pc.call_function("binary_length", [batch["payload"]]))
            places = places.append_column("file", pa.repeat(file, batch.num_rows))
            yield places.append_column("row", pa.array(range(row, row + batch.num_rows), pa.int64()))
            row += batch.num_rows


def _chunks(ordered: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in pieces whose payloads fit into memory."""
    ends = np.cumsum(ordered["size"].to_numpy())
    start = 0
    while start < ordered.num_rows:
        full = int(np.searchsorted(ends, (ends[start - 1] if start else 0) + _CHUNK_BYTES))
        end = min(max(full, start + 1), start + _CHUNK_ROWS)
        yield ordered.slice(start, end - start)
        start = end


def _fetched(rows: pa.Table, files: list[pa_dataset.Fragment], schema: pa.Schema) -> pa.Table:
    """Return the messages of rows, in their order."""
    of_file, places = rows["file"].to_numpy(), rows["row"].to_numpy()
    found, order = [], []
    for file in np.unique(of_file):
        here = np.flatnonzero(of_file == file)
        here = here[np.argsort(places[here])]
        scanner = files[file].scanner(schema=schema, columns=[*MESSAGE_COLUMNS], batch_size=_BATCH_ROWS)
        found.append(scanner.take(pa.array(places[here])).cast(_MESSAGES))
        order.append(here)
    return pa.concat_tables(found).take(pa.array(np.argsort(np.concatenate(order))))


@contextmanager
def _transforming(path: Path | None) -> Iterator[Change]:
    """Yield a function that applies a job to rows of silver, with a Spark of its own; without a job, it changes none.

    :param path: the job's file.
    :raises UsageError: the job is none: see :mod:`transform`.
    """
    if path is None:
        yield lambda rows: rows
        return
    transform = load_transform(path)
    with TemporaryDirectory(prefix="umqtt-transform-") as scratch:
        session = start_session(Path(scratch))
        try:
            schema = columns_of(session, transform)
            yield lambda rows: transform(session.createDataFrame(rows)).toArrow().select(schema.names).cast(schema)
        finally:
            stop_session(session)
