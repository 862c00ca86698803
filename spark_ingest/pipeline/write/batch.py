"""Write one micro-batch: tasks write data files, and the driver commits them. No row passes through the driver.

This order makes a crash at any moment harmless (see also :mod:`progress`):

1. the tasks (:mod:`tasks`) write the files of all tables, and the sets of readings seen after N,
2. the driver commits bronze, silver, quarantine, duplicates, status and logs, each with transaction N. Bronze is the
   first: a rebuild makes the others of it, and must find every micro-batch that one of them has,
3. Spark commits N to its checkpoint, and only after that does N+1 begin.

A driver that dies at any moment repeats N from the same offsets and the sets after N-1: what was committed is
skipped, and what was written but not committed is in no table.

The driver itself writes only the messages whose identity silver already had with another payload. It looks them up in
bronze by their places. Gold is not part of a micro-batch: :mod:`gold` follows what these tables have committed.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pa_dataset

from umqtt_cli.escape import remark

from ...decoders.rules import NO_RULES, Rules
from ...durable import read_checked, replace_checked
from ...errors import FileDamaged, IngestError
from ...location import Location
from ...tables.delta import Delta, note_rules
from ...tables.schemas import PARTITIONED_BY, PLACE_COLUMNS, SCHEMAS
from ...tables.table import DataFile
from ..decode.messages import MESSAGE_COLUMNS, owner_of
from ..decode.record import owners_of, quarantine
from ..deduplicate.dedup import Limits
from ..deduplicate.silver import CONFLICT
from . import tasks
from .data_files import write_files
from .job import STATE_FILE, Job
from .tasks import rebuilt_line

__all__ = ["MESSAGE_COLUMNS", "STAGES", "BatchWriter", "Totals", "conflicting_rows", "run_here"]

STAGES = (
    "written",
    "bronze committed",
    "silver committed",
    "quarantine committed",
    "duplicates committed",
    "status committed",
    "logs committed",
)
"""The stages for which `on_stage` is called, in order."""

OnOpen = Callable[[Mapping[str, Delta]], None]

Reports = Mapping[str, dict[str, Any]]
"""What each task of a micro-batch has done, by its name."""

_TABLES: tuple[str, ...] = ("bronze", "silver", "quarantine", "duplicates", "status", "logs")


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


def run_here(messages: pa.Table, job: Job) -> Reports:
    """Run the tasks of a micro-batch in this process, without Spark; return their reports.

    :param messages: MESSAGE_COLUMNS, in an order that depends only on the offsets.
    """
    reports: dict[str, dict[str, Any]] = {}
    note = reports.__setitem__
    rows = pa.Table.from_batches(tasks.decode(job, 0, messages.to_batches(), note), tasks.SHUFFLE_SCHEMA)
    for bucket in range(job.buckets):
        own = rows.filter(pa_dataset.field("bucket") == bucket)
        tasks.write(job, bucket, tasks.deduplicate(job, [bucket], own.to_batches(), note), note)
    return reports


class BatchWriter:
    """The writer of micro-batches into the tables below `tables`, except gold.

    :param tables: a place that the driver and every executor see under this path or URL.
    :param state: folder of the sets of readings seen, which the driver and every executor see under this path; it
        must be kept and removed together with the checkpoint.
    :param buckets: number of tasks that deduplicate, for a new checkpoint; an existing checkpoint keeps its number.
    :param rules: whether ids in records are trusted, and which decoder reads which topic; every executor must see the
        files that the rules name.
    :param limits: how much of each set of readings seen may stay in memory.
    :param on_open: called with the tables before anything is written into them.
    :param on_stage: called with a name of STAGES when that stage is done; for tests that stop the process there.
    :param run: runs the micro-batch's tasks and returns their reports.
    :param report: called with one line for a person.
    :param silver_schema: the columns of silver, if a transform has added some.
    :ivar buckets: the number that the checkpoint has settled.
    :raises UsageError: the tables cannot be written.
    """

    def __init__(
        self,
        tables: Location,
        state: Path,
        *,
        buckets: int = 2,
        rules: Rules = NO_RULES,
        limits: Limits | None = None,
        on_open: OnOpen = lambda _tables: None,
        on_stage: Callable[[str], None] = lambda _stage: None,
        run: Callable[[Any, Job], Reports] = run_here,
        report: Callable[[str], None] = remark,
        silver_schema: pa.Schema | None = None,
    ) -> None:
        # What tasks that ran in this process have remembered may be of files that have been replaced since.
        tasks.forget_worker()
        self.totals = Totals()
        self._root = tables.absolute()
        self.tables: Mapping[str, Delta] = {
            name: Delta(self._root / name, SCHEMAS[name], PARTITIONED_BY.get(name)) for name in _TABLES
        }
        on_open(self.tables)
        if silver_schema is not None:
            self.tables["silver"].add_columns(silver_schema)
        note_rules(self.tables["bronze"], trust_ids=rules.trust_ids, decoders=bool(rules.decoders))
        self._state = state.absolute()
        self.buckets, self._state_id = _settled_buckets(self._state, buckets, report)
        self._table_ids = {name: table.identity for name, table in self.tables.items()}
        self._rules = rules
        self._limits = limits or Limits()
        self._on_stage = on_stage
        self._run = run
        self._report = report
        self._has_transform = silver_schema is not None
        self._reader = ThreadPoolExecutor(1, "versions")
        self._reading: list[Future[None]] = []

    def write(self, messages: Any, batch_id: int, query_id: str) -> None:
        """Write micro-batch `batch_id` of the query whose checkpoint has `query_id`; safe to repeat.

        :param messages: what `run` takes: the frame of Spark, or messages.
        """
        wait(self._reading)
        job = Job(
            tables=str(self._root),
            state=str(self._state),
            query_id=query_id,
            batch_id=batch_id,
            buckets=self.buckets,
            limits=self._limits,
            silver_committed=self.tables["silver"].has(f"{query_id}/silver", batch_id),
            table_ids=self._table_ids,
            state_id=self._state_id,
            rules=self._rules,
        )
        reports = self._run(messages, job)
        self._require_consistent(reports, job)
        self._on_stage("written")
        files = {name: [file for one in reports.values() for file in one["files"].get(name, ())] for name in _TABLES}
        rows = dict.fromkeys(_TABLES, 0)
        for name in _TABLES:
            if name == "quarantine":
                files[name] += self._conflicting(
                    [one for each in reports.values() for one in each.get("conflicts", ())]
                )
            if self.tables[name].commit_files(files[name], f"{query_id}/{name}", batch_id):
                rows[name] = sum(file["rows"] for file in files[name])
            self._on_stage(f"{name} committed")
        self._count(batch_id, reports, rows)
        # Read what was committed while Spark ends this micro-batch and plans the next: it takes as long as a commit.
        # If it fails, the next look at the table reads again.
        self._reading = [self._reader.submit(self.tables[name].catch_up) for name in _TABLES if rows[name]]

    def _conflicting(self, places: Sequence[Mapping[str, Any]]) -> list[DataFile]:
        """Write the messages in conflict as rows of quarantine; return the files.

        :param places: where the messages lie; bronze has them by now.
        """
        if not places:
            return []
        place = pa.schema([SCHEMAS["bronze"].field(name) for name in PLACE_COLUMNS])
        wanted = pa.Table.from_pylist([dict(one) for one in places], schema=place)
        ends = {name: wanted[name].to_pylist() for name in PLACE_COLUMNS}
        where = pa_dataset.field("spool").isin(sorted(set(ends["spool"])))
        for name in ("segment", "position"):
            where &= (pa_dataset.field(name) >= min(ends[name])) & (pa_dataset.field(name) <= max(ends[name]))
        found = self.tables["bronze"].scan(MESSAGE_COLUMNS, where)
        found = found.join(wanted, keys=list(PLACE_COLUMNS), join_type="left semi")
        table = self.tables["quarantine"]
        rows = table.without_known(conflicting_rows(found, self._rules))
        return write_files(table.path, rows, None)

    def _require_consistent(self, reports: Reports, job: Job) -> None:
        """Check that everything that went into the shuffle came out of it, and was written.

        :raises IngestError: it was not; nothing has been committed.
        """
        counts = _total(reports)
        kinds = ("readings", "unnumbered", "messages in order")
        buckets = [f"bucket {bucket}" in reports for bucket in range(job.buckets)]
        lost = [kind for kind in kinds if counts(f"sent {kind}") != counts(f"received {kind}")]
        if not self._has_transform and counts("silver") != counts("written"):
            lost.append("rows of silver")
        if lost or not all(buckets):
            what = ", ".join(lost) or "buckets"
            raise IngestError(
                f"micro-batch {job.batch_id}: not all {what} that one task sent came to the next, in the reports of "
                f"{', '.join(sorted(reports))}; nothing was committed: start again, and tell the maintainers"
            )

    def _count(self, batch_id: int, reports: Reports, rows: Mapping[str, int]) -> None:
        total = _total(reports)
        for line in (line for one in reports.values() for line in one.get("remarks", ())):
            self._report(line)
        if total("rebuilt"):
            self._report(rebuilt_line(batch_id, "", total("rebuilt"), self.tables["silver"].path))
        totals = self.totals
        totals.batches += 1
        totals.messages += total("messages")
        totals.replayed += total("messages") - rows["bronze"]
        totals.ignored += total("ignored")
        totals.duplicates += rows["duplicates"]
        totals.boots, totals.open_gaps = total("boots"), total("open_gaps")
        totals.rows_bronze += rows["bronze"]
        totals.rows_silver += rows["silver"]
        totals.rows_quarantined += rows["quarantine"]
        totals.rows_status += rows["status"]
        totals.rows_logs += rows["logs"]


def conflicting_rows(messages: pa.Table, rules: Rules) -> pa.Table:
    """Return messages whose identity silver has with another payload, as rows of quarantine."""
    owners = owners_of(messages, lambda topic, payload: owner_of(topic, payload, rules))
    return quarantine(messages, [CONFLICT] * messages.num_rows, owners)


def _total(reports: Reports) -> Callable[[str], int]:
    return lambda name: sum(one["counts"].get(name, 0) for one in reports.values())


def _settled_buckets(state: Path, buckets: int, report: Callable[[str], None]) -> tuple[int, str]:
    """Return the checkpoint's number of buckets and the identity of its state; write them for a new checkpoint.

    The number never changes, because the sets of readings seen are divided by it.
    """
    path = state / STATE_FILE
    try:
        state.mkdir(parents=True, exist_ok=True)
        found = json.loads(bytes(read_checked(path)))
        settled, identity = int(found["buckets"]), str(found["id"])
    except (FileNotFoundError, FileDamaged) as error:
        # If the file is missing or damaged, count the folders: each bucket has one.
        settled, identity = len(list(state.glob("bucket-[0-9]*"))) or buckets, uuid.uuid4().hex
        replace_checked(path, json.dumps({"buckets": settled, "id": identity}).encode())
        if isinstance(error, FileDamaged):
            report(f"{error}: recreated it for {settled} buckets")
    if settled != buckets:
        report(f"this checkpoint has {settled} buckets and keeps them; another number needs a new checkpoint")
    return settled, identity
