"""Write one micro-batch: decode, deduplicate, commit. Independent of Spark, so that it can be tested on Arrow tables.

This order makes a crash at any moment harmless (see also :mod:`progress`):

1. commit bronze with transaction N: the messages as received, before anything is judged,
2. take the set of readings seen after N-1 and find the new readings,
3. write the set after N: a replay from here starts again at 1, with the same result,
4. commit silver with transaction N: a replay from here finds the transaction and appends nothing,
5. commit quarantine, duplicates, status and logs in the same way,
6. return; Spark then commits N to its checkpoint, and only after that does N+1 begin.

Gold is not part of a micro-batch: :mod:`gold` follows what these tables have committed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..decoders.rules import NO_RULES, Rules
from ..errors import FileDamaged
from ..escape import remark
from ..location import Location
from ..tables.delta import Delta, note_rules
from ..tables.parquet import Parquet
from ..tables.schemas import BRONZE_SCHEMA, PARTITIONED_BY, PLACE_COLUMNS, SCHEMAS
from ..tables.table import Table
from .births import BirthFiles
from .dedup import Limits, Seen
from .messages import MESSAGE_COLUMNS, Parts, owner_of, part
from .progress import Progress
from .record import owners_of, quarantine
from .silver import (
    CONFLICT,
    duplicate_rows,
    repeated,
    seen_in_tables,
    silver_rows,
    stored_identities,
    unnumbered_rows,
    without_repeated,
)

__all__ = ["FORMATS", "MESSAGE_COLUMNS", "STAGES", "BatchWriter", "Totals", "bronze_rows", "judge"]

STAGES = (
    "bronze committed",
    "decoded",
    "progress written",
    "silver committed",
    "quarantine committed",
    "duplicates committed",
    "status committed",
    "logs committed",
)
"""The stages for which `on_stage` is called, in order."""

FORMATS: dict[str, type[Delta] | type[Parquet]] = {"delta": Delta, "parquet": Parquet}
"""The values of --format."""

OnOpen = Callable[[Mapping[str, Table]], None]

_TABLES = ("bronze", "silver", "quarantine", "duplicates", "status", "logs")


@dataclass
class Totals:
    """Counts since the process started; a replayed micro-batch counts only the rows that it appended.

    :ivar ignored: messages that are in bronze alone: there is no value in them, or a rule leaves them out.
    """

    batches: int = 0
    messages: int = 0
    replayed: int = 0
    rows_bronze: int = 0
    rows_silver: int = 0
    rows_quarantined: int = 0
    rows_status: int = 0
    rows_logs: int = 0
    ignored: int = 0
    duplicates: int = 0
    open_gaps: int = 0
    boots: int = 0


class BatchWriter:
    """The writer of micro-batches into the tables below `tables`, except gold.

    :param state: folder for the progress files; it must be kept and removed together with the checkpoint.
    :param format: format of the tables, one of FORMATS.
    :param rules: whether ids in records are trusted, and which decoder reads which topic.
    :param limits: how much of the set of readings seen may stay in memory.
    :param on_open: called with the tables before anything is written into them.
    :param on_stage: called with a name of STAGES when that stage is done; for tests that stop the process
        there.
    :param report: called with one line for a person.
    :raises UsageError: the tables cannot be written.
    """

    def __init__(
        self,
        tables: Location,
        state: Path,
        *,
        format: str = "delta",
        rules: Rules = NO_RULES,
        limits: Limits | None = None,
        on_open: OnOpen = lambda _tables: None,
        on_stage: Callable[[str], None] = lambda _stage: None,
        report: Callable[[str], None] = remark,
    ) -> None:
        self.totals = Totals()
        kind = FORMATS[format]
        self.tables: Mapping[str, Table] = {
            name: kind(tables / name, SCHEMAS[name], PARTITIONED_BY.get(name)) for name in _TABLES
        }
        on_open(self.tables)
        self._rules = rules
        if isinstance(bronze := self.tables["bronze"], Delta):
            note_rules(bronze, trust_ids=rules.trust_ids, decoders=bool(rules.decoders))
        self._progress = Progress(state, limits)
        self._births = BirthFiles(state, report) if rules.has_sparkplug else None
        self._seen: tuple[int, Seen] | None = None
        self._on_stage = on_stage
        self._report = report

    def write(self, messages: pa.Table, batch_id: int, query_id: str) -> None:
        """Write micro-batch `batch_id` of the query whose checkpoint has `query_id`; safe to repeat.

        :param messages: MESSAGE_COLUMNS, in an order that depends only on the offsets.
        """

        def commit(name: str, rows: pa.Table, *, by_place: bool = True) -> int:
            table = self.tables[name]
            new = table.without_known(rows) if by_place else rows
            added = table.append_once(new, f"{query_id}/{name}", batch_id)
            self._on_stage(f"{name} committed")
            return new.num_rows if added else 0

        totals, read = self.totals, messages.num_rows
        messages = self.tables["bronze"].without_removed(messages)
        new = commit("bronze", bronze_rows(messages))
        totals.rows_bronze += new
        # A replay finds the rows of its first attempt in silver; they do not count as seen before.
        committed = self.tables["silver"].has(f"{query_id}/silver", batch_id)
        births = self._births.before(batch_id) if self._births else None
        parts = part(messages, self._rules, births)
        seen = self._seen_before(batch_id, parts.readings if committed else parts.readings.slice(0, 0))
        rows = judge(messages, parts, seen, self.tables["silver"], self._rules)
        self._on_stage("decoded")
        self._progress.save(batch_id, seen)
        if self._births and births is not None:
            self._births.save(batch_id, births)
        self._on_stage("progress written")
        # Silver is not filtered by place: its key is the identity, which `seen` has checked.
        totals.rows_silver += commit("silver", rows["silver"], by_place=False)
        totals.rows_quarantined += commit("quarantine", rows["quarantine"])
        totals.duplicates += commit("duplicates", rows["duplicates"])
        totals.rows_status += commit("status", rows["status"])
        totals.rows_logs += commit("logs", rows["logs"])
        # Only now keep the set in memory: after a failure it would hold readings that no table has.
        self._seen = (batch_id, seen)
        if self._births and births is not None:
            self._births.keep(batch_id, births)
        totals.batches += 1
        totals.messages += read
        totals.ignored += parts.ignored
        totals.replayed += read - new
        totals.open_gaps = seen.open_gaps
        totals.boots = len(seen)

    def has_written(self, query_id: str, batch_id: int) -> bool:
        """Return whether any table has rows of the micro-batch."""
        return any(table.has(f"{query_id}/{name}", batch_id) for name, table in self.tables.items())

    def _seen_before(self, batch_id: int, own: pa.Table) -> Seen:
        """Return the set of readings seen after micro-batch `batch_id` - 1.

        :param own: readings of this micro-batch that an earlier attempt has committed to silver; they do not count.
        """
        cached, self._seen = self._seen, None
        seen, damage = None, ""
        if cached is not None and cached[0] == batch_id - 1:
            self._progress.remove_before(batch_id - 1)
            seen = cached[1]
        else:
            try:
                seen = self._progress.load(batch_id - 1)
            except FileDamaged as error:
                damage = f" ({error})"
        silver = self.tables["silver"]
        if seen is None:
            seen, rows = seen_in_tables(silver, self.tables["duplicates"], own)
            if rows or damage:
                self._report(rebuilt_line(batch_id, damage, rows, silver.path))
        seen.recall = lambda boots: stored_identities(silver, boots, own)
        return seen


def rebuilt_line(batch_id: int, damage: str, rows: int, silver: Location) -> str:
    """Return the line that reports that the set of readings seen was rebuilt from the tables."""
    return (
        f"no record of what was seen before micro-batch {batch_id}{damage}: "
        f"rebuilt it from {rows} rows of {silver} and duplicates"
    )


def judge(messages: pa.Table, parts: Parts, seen: Seen, silver: Table, rules: Rules) -> dict[str, pa.Table]:
    """Return the rows that a micro-batch adds to each table except bronze, and add its readings to `seen`.

    :param parts: the messages, divided by :func:`part`.
    :param silver: the table, for comparing the payloads of readings that were seen before.
    """
    new = seen.take(parts.readings)
    again = repeated(parts.readings, new, silver)
    unnumbered = unnumbered_rows(without_repeated(silver.without_known(parts.unnumbered), again))
    rows = pa.concat_tables([silver_rows(parts.readings, new), unnumbered])
    return {
        "silver": rows,
        "quarantine": pa.concat_tables([parts.quarantined, _conflicting(messages, again.conflicts, rules)]),
        "duplicates": duplicate_rows(again.duplicates),
        "status": parts.status,
        "logs": parts.logs,
    }


def bronze_rows(messages: pa.Table) -> pa.Table:
    """Return messages as rows of bronze."""
    dated = messages.append_column("received_date", messages["received_ts"].cast(pa.date32()))
    return dated.select(BRONZE_SCHEMA.names).cast(BRONZE_SCHEMA)


def _conflicting(messages: pa.Table, conflicts: pa.Table, rules: Rules) -> pa.Table:
    place = list(PLACE_COLUMNS)
    if not conflicts.num_rows:
        return quarantine(messages.slice(0, 0), [], [])
    numbered = messages.select(place).append_column("row", pa.array(range(messages.num_rows), pa.int64()))
    rows = numbered.join(conflicts.select(place), keys=place, join_type="inner")["row"]
    rows = rows.take(pc.call_function("array_sort_indices", [rows.combine_chunks()]))
    return conflicting_rows(messages.take(rows), rules)


def conflicting_rows(messages: pa.Table, rules: Rules) -> pa.Table:
    """Return messages whose identity silver has with another payload, as rows of quarantine."""
    owners = owners_of(messages, lambda topic, payload: owner_of(topic, payload, rules))
    return quarantine(messages, [CONFLICT] * messages.num_rows, owners)
