"""One micro-batch: decode, deduplicate, commit. Knows nothing of Spark: its laws are tested on Arrow tables.

The order is what makes a crash at any moment harmless (see also :mod:`progress`):

1. read progress-(N-1) and find the new readings,
2. write progress-N: replaying from here starts again at 1, with the same result,
3. commit silver with transaction N: replaying from here finds it and appends nothing,
4. commit quarantine likewise,
5. return; Spark then commits N to its checkpoint, and only after that does N+1 begin.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from .clock import event_times
from .dedup import Filtered, Seen
from .delta import Table
from .progress import Progress
from .record import PLACE_COLUMNS, QUARANTINE_SCHEMA, SILVER_SCHEMA, decode

MESSAGE_COLUMNS = ("topic", "payload", "received_ts", "collector", "spool", "segment", "position")
"""What a micro-batch needs of ``format("mqtt")``."""

STAGES = ("decoded", "progress written", "silver committed", "quarantine committed")
"""Where `on_stage` is called, in order."""


@dataclass
class Totals:
    """Counted since the process started; a replayed micro-batch counts what it appended."""

    batches: int = 0
    messages: int = 0
    rows_silver: int = 0
    rows_quarantined: int = 0
    duplicates: int = 0
    open_gaps: int = 0
    boots: int = 0


class BatchWriter:
    """Turns micro-batches into rows of ``silver`` and ``quarantine`` below `tables`.

    :param state: folder for the progress files; it must live and die with the checkpoint.
    :param on_stage: called with a name of STAGES when that stage is done; for tests that stop the process
        there.
    :param report: takes one line for a person.
    :raises UsageError: the tables cannot be written.
    """

    def __init__(
        self,
        tables: Path,
        state: Path,
        *,
        on_stage: Callable[[str], None] = lambda _stage: None,
        report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self.totals = Totals()
        self._silver = Table(tables / "silver", SILVER_SCHEMA)
        self._quarantine = Table(tables / "quarantine", QUARANTINE_SCHEMA)
        self._progress = Progress(state)
        self._seen: tuple[int, Seen] | None = None
        self._on_stage = on_stage
        self._report = report

    def write(self, messages: pa.Table, batch_id: int, query_id: str) -> None:
        """Write micro-batch `batch_id` of the query whose checkpoint has `query_id`; safe to repeat.

        :param messages: MESSAGE_COLUMNS, in an order that depends on the offsets alone.
        """
        decoded = decode(messages)
        seen = self._seen_before(batch_id)
        new = seen.take(decoded.readings)
        silver = _silver_rows(decoded.readings, new)
        self._on_stage("decoded")
        self._progress.save(batch_id, seen)
        self._on_stage("progress written")
        added = self._silver.append_once(silver, f"{query_id}/silver", batch_id)
        self._on_stage("silver committed")
        bad = self._quarantine.without_known(decoded.quarantined, PLACE_COLUMNS, "segment")
        quarantined = self._quarantine.append_once(bad, f"{query_id}/quarantine", batch_id)
        self._on_stage("quarantine committed")
        # Only now: had anything failed, the set in memory would hold readings that no table has.
        self._seen = (batch_id, seen)
        self._count(messages.num_rows, decoded.readings.num_rows - silver.num_rows, seen)
        self.totals.rows_silver += silver.num_rows if added else 0
        self.totals.rows_quarantined += bad.num_rows if quarantined else 0

    def _seen_before(self, batch_id: int) -> Seen:
        """The set after micro-batch N-1."""
        cached, self._seen = self._seen, None
        if cached is not None and cached[0] == batch_id - 1:
            self._progress.remove_before(batch_id - 1)
            return cached[1]
        seen = self._progress.load(batch_id - 1)
        if seen is not None:
            return seen
        # A new checkpoint on tables that have rows, or the file is gone: the table itself says what was
        # seen. If it already holds this very micro-batch, the transaction sees to it that nothing is
        # appended.
        known = self._silver.read(["device_id", "boot", "seq"])
        if known.num_rows:
            self._report(
                f"no record of what was seen before micro-batch {batch_id}: "
                f"rebuilt it from {known.num_rows} rows of {self._silver.path}"
            )
        seen = Seen()
        seen.take(known)
        return seen

    def _count(self, messages: int, duplicates: int, seen: Seen) -> None:
        totals = self.totals
        totals.batches += 1
        totals.messages += messages
        totals.duplicates += duplicates
        totals.open_gaps = seen.open_gaps
        totals.boots = len(seen)


def _silver_rows(readings: pa.Table, new: Filtered) -> pa.Table:
    kept = readings.take(pa.array(new.rows)).combine_chunks()
    columns = {name: kept[name] for name in kept.column_names}
    ts, up_ms, received_ts = (_array(kept[name]) for name in ("ts", "up_ms", "received_ts"))
    columns |= event_times(new.boots, ts, up_ms, received_ts)._asdict()
    return pa.table([columns[name] for name in SILVER_SCHEMA.names], schema=SILVER_SCHEMA)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
