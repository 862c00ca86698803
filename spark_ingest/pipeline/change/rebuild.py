"""Rebuild silver, the tables beside it and gold from bronze, in place.

This is for when the rules of the record have changed, or a table was damaged. The application transactions are kept,
and those of micro-batches that only bronze had are added, because all tables then contain what bronze has. So a
pipeline that continues afterwards repeats nothing. If two collectors stored the same reading, silver may have the copy
of the other collector afterwards.

Bronze is read to its end before any row is removed. An interrupted rebuild leaves a mark
(:func:`process.unfinished`), and a pipeline refuses to run until the rebuild was repeated.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from itertools import chain, groupby
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
_PIECE = ["collector", "spool", "segment", "received_date"]
_CHUNK_ROWS = 500_000


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
    for day, messages in _days(bronze):
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


def _order_of_receipt(messages: pa.Table) -> np.ndarray:
    """Return the order in which messages were received: by place for each collector, whose clock may have been set.

    Collectors are ordered by time. So are spools of one name: segments of a new one have the old one's numbers.
    """
    spool, collector = (_codes(messages[name]) for name in ("spool", "collector"))
    segment, position = (messages[name].to_numpy() for name in ("segment", "position"))
    received = messages["received_ts"].cast(pa.int64()).to_numpy().copy()
    runs = np.unique(np.stack([collector, segment, spool]), axis=1)
    replaced = np.unique(runs[0, 1:][(np.diff(runs[0]) == 0) & (np.diff(runs[1]) == 0)])
    places = np.lexsort((position, segment, collector))
    for rows in np.split(places, np.flatnonzero(np.diff(collector[places])) + 1):
        if len(rows) and collector[rows[0]] not in replaced:
            received[rows] = np.maximum.accumulate(received[rows])
            spool[rows] = 0
    return np.lexsort((position, segment, spool, received))


def _codes(texts: pa.ChunkedArray) -> np.ndarray:
    return texts.combine_chunks().dictionary_encode().indices.to_numpy().copy()


def _days(bronze: Delta) -> Iterator[tuple[date, pa.Table]]:
    """Yield (day, messages) for bronze in the order in which the messages were received, a day or less at a time."""
    pieces = _pieces(bronze)
    for day in sorted(set(pieces["day"].to_pylist())):
        parts = []
        for received in sorted(set(pieces.filter(_equal(pieces["day"], day))["received_date"].to_pylist())):
            rows = bronze.scan(MESSAGE_COLUMNS, pa_dataset.field("received_date") == received)
            same = pieces.filter(_equal(pieces["received_date"], received))
            others = same.filter(pc.call_function("not_equal", [same["day"], pa.scalar(day)])).select(_PIECE[:-1])
            parts.append(rows.join(others, others.column_names, join_type="left anti") if others.num_rows else rows)
        messages = pa.concat_tables(parts)
        messages = messages.take(pa.array(_order_of_receipt(messages)))
        for start in range(0, messages.num_rows, _CHUNK_ROWS):
            yield day, messages.slice(start, _CHUNK_ROWS).combine_chunks()


def _pieces(bronze: Delta) -> pa.Table:
    """Return the pieces of bronze: the columns _PIECE, and `day`, the day on which the piece is read.

    A piece is what a segment of a spool has of one date.
    """
    columns = [*_PIECE, "position"]
    batches = bronze.dataset().to_batches(columns=columns)
    found = [
        rows.group_by(_PIECE).aggregate([("position", "min"), ("position", "max")])
        for rows in chain(
            [SCHEMAS["bronze"].empty_table().select(columns)], (pa.Table.from_batches([batch]) for batch in batches)
        )
    ]
    pieces = pa.concat_tables(found).group_by(_PIECE).aggregate([("position_min", "min"), ("position_max", "max")])
    pieces = pieces.rename_columns([*_PIECE, "first", "last"])
    pieces = pieces.sort_by([(name, "ascending") for name in ("collector", "spool", "segment", "first")])
    values = (pieces[name].to_pylist() for name in ("segment", "first", "last", "received_date"))
    places = list(zip(*values, strict=True))
    owners = list(zip(pieces["collector"].to_pylist(), pieces["spool"].to_pylist(), strict=True))
    days: list[date] = []
    for _owner, rows in groupby(range(len(owners)), owners.__getitem__):
        days += days_of([places[row] for row in rows])
    return pieces.select(_PIECE).append_column("day", pa.array(days, pa.date32()))


def days_of(pieces: Sequence[tuple[int, int, int, date]]) -> list[date]:
    """Return the day on which each piece of a spool is read, so that what came first is read first.

    This is the date at which it was received, unless the collector's clock was set back, or was wrong for a while. Then
    as few dates as possible are not believed; what has one of these is read with what came before it.

    :param pieces: segment, first and last position, and date, in the order of their places. Pieces that overlap are
        read on one day.
    """
    dates: list[date] = []
    numbers: list[int] = []
    end = (-1, -1)
    for segment, first, last, received in pieces:
        if not dates or (received != dates[-1] and (segment, first) > end):
            dates.append(received)
        numbers.append(len(dates) - 1)
        end = max(end, (segment, last))
    # The longest series of dates that never falls: ends[n] is the last of the best series of n + 1 dates so far.
    ends: list[int] = []
    before: list[int] = []
    for number, received in enumerate(dates):
        at = bisect_right(ends, received, key=dates.__getitem__)
        before.append(ends[at - 1] if at else -1)
        ends[at : at + 1] = [number]
    believed: set[int] = set()
    number = ends[-1] if ends else -1
    while number >= 0:
        believed.add(number)
        number = before[number]
    days = [dates[min(believed, default=0)]] if dates else []
    for number, received in enumerate(dates):
        days.append(received if number in believed else days[-1])
    return [days[number + 1] for number in numbers]


def _equal(column: pa.ChunkedArray, value: date) -> pa.ChunkedArray:
    return pc.call_function("equal", [column, pa.scalar(value)])


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
