"""The write path for a cluster: executors write files, and the driver commits them; no rows pass through the driver.

Tables, columns and guarantees are those of :class:`spark_ingest.pipeline.batch.BatchWriter`. A micro-batch is one
Spark job (:mod:`cluster_tasks`), which gives the driver a few lines per partition: the files that were written. The
driver commits them table by table with the transaction N. A driver that dies at any moment replays N from the same
offsets and the same sets: what was committed is skipped, and what was written but not committed is in no table.

The driver itself writes only the messages whose identity silver already had with another payload. It looks them up in
bronze by their places.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as pa_dataset

from ..decoders.rules import NO_RULES, Rules
from ..durable import read_checked, replace_checked
from ..errors import FileDamaged, IngestError, UsageError
from ..escape import remark
from ..location import Location
from ..tables.delta import Delta, note_rules
from ..tables.schemas import PARTITIONED_BY, PLACE_COLUMNS, SCHEMAS
from . import cluster_tasks
from .batch import Totals, conflicting_rows, rebuilt_line
from .cluster_files import DataFile, commit_files, write_files
from .cluster_tasks import REPORT_COLUMNS, SHUFFLE_COLUMNS, STATE_FILE, Job
from .dedup import Limits
from .messages import MESSAGE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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

_INDETERMINATE = "A shuffle map stage with indeterminate output was failed and retried"
_ATTEMPTS = 4

_TABLES: tuple[str, ...] = ("bronze", "silver", "quarantine", "duplicates", "status", "logs")

Reports = list[dict[str, Any]]
"""What the tasks of a micro-batch report to the driver: one report per partition and one per bucket."""


class ClusterWriter:
    """The writer of micro-batches into the tables below `tables`, except gold, on the executors of a cluster.

    :param tables: a place that the driver and every executor see under this path or URL.
    :param state: folder of the sets of readings seen, which the driver and every executor see under this path; it
        must be kept and removed together with the checkpoint.
    :param buckets: number of tasks that deduplicate, for a new checkpoint; an existing checkpoint keeps its number.
    :param limits: how much of each set of readings seen may stay in memory.
    :param rules: whether ids in records are trusted, and which decoder reads which topic; every executor must see the
        files that the rules name.
    :param on_open: called with the tables before anything is written into them.
    :param on_stage: called with a name of STAGES when that stage is done; for tests that stop the process there.
    :param run: runs the micro-batch's tasks; tests replace Spark with it.
    :param report: called with one line for a person.
    :raises UsageError: the tables cannot be written, or a rule is for Sparkplug.
    """

    def __init__(
        self,
        tables: Location,
        state: Path,
        *,
        buckets: int,
        limits: Limits | None = None,
        rules: Rules = NO_RULES,
        on_open: Callable[[Mapping[str, Delta]], None] = lambda _tables: None,
        on_stage: Callable[[str], None] = lambda _stage: None,
        run: "Callable[[DataFrame, Job], Reports] | None" = None,
        report: Callable[[str], None] = remark,
    ) -> None:
        if rules.has_sparkplug:
            raise UsageError("Sparkplug is read in order, which executors do not see: give --write-path driver")
        self._run = run or run_on_spark
        self._report = report
        self.totals = Totals()
        self._root = tables.absolute()
        self.tables = {name: Delta(self._root / name, SCHEMAS[name], PARTITIONED_BY.get(name)) for name in _TABLES}
        on_open(self.tables)
        self._state = state.absolute()
        self._buckets, self._state_id = _settled_buckets(self._state, buckets, report)
        self._table_ids = {name: table.identity for name, table in self.tables.items()}
        self._limits = limits or Limits()
        self._rules = rules
        note_rules(self.tables["bronze"], trust_ids=rules.trust_ids, decoders=bool(rules.decoders))
        self._on_stage = on_stage

    def write(self, messages: "DataFrame", batch_id: int, query_id: str) -> None:
        """Write micro-batch `batch_id` of the query whose checkpoint has `query_id`; safe to repeat.

        :param messages: rows of ``format("mqtt")``.
        """
        silver_committed = self.tables["silver"].has(f"{query_id}/silver", batch_id)
        job = Job(
            tables=str(self._root),
            state=str(self._state),
            query_id=query_id,
            batch_id=batch_id,
            buckets=self._buckets,
            limits=self._limits,
            silver_committed=silver_committed,
            table_ids=self._table_ids,
            state_id=self._state_id,
            rules=self._rules,
        )
        reports = self._run(messages, job)
        _require_consistent(reports, job)
        self._on_stage("written")
        files = {name: [file for one in reports for file in one["files"].get(name, ())] for name in _TABLES}
        rows = dict.fromkeys(_TABLES, 0)
        for name in _TABLES:
            if name == "quarantine":
                conflicts = [place for one in reports for place in one.get("conflicts", ())]
                files[name] += self._conflicting(conflicts)
            partition_by = PARTITIONED_BY.get(name)
            transaction = (f"{query_id}/{name}", batch_id)
            if commit_files(self.tables[name], SCHEMAS[name], partition_by, files[name], transaction):
                rows[name] = sum(file["rows"] for file in files[name])
            self._on_stage(f"{name} committed")
        self._count(batch_id, reports, rows)

    def has_written(self, query_id: str, batch_id: int) -> bool:
        """Return whether any table has rows of the micro-batch."""
        return any(table.has(f"{query_id}/{name}", batch_id) for name, table in self.tables.items())

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
        rows = conflicting_rows(found, self._rules)
        table = self.tables["quarantine"]
        return write_files(table.path, table.without_known(rows), None)

    def _count(self, batch_id: int, reports: Reports, rows: Mapping[str, int]) -> None:
        def total(name: str) -> int:
            return sum(one["counts"].get(name, 0) for one in reports)

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


def run_on_spark(messages: "DataFrame", job: Job) -> Reports:
    """Run the micro-batch's tasks with Spark; return their reports."""
    from py4j.protocol import Py4JJavaError
    from pyspark import TaskContext

    def receive(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        yield from cluster_tasks.receive(job, TaskContext.get().partitionId(), batches)  # pyrefly: ignore[missing-attribute]

    def deduplicate(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        yield from cluster_tasks.deduplicate(job, TaskContext.get().partitionId(), batches)  # pyrefly: ignore[missing-attribute]

    received = messages.select(*MESSAGE_COLUMNS).mapInArrow(receive, SHUFFLE_COLUMNS)
    # Partition by the bucket's number, not by its hash: each bucket has one task, even if it has no rows.
    done = received.repartitionById(job.buckets, "bucket").mapInArrow(deduplicate, REPORT_COLUMNS)
    for _ in range(_ATTEMPTS - 1):
        try:
            return _reports(done)
        except Py4JJavaError as error:
            # An executor died and its shuffle output was lost. Spark recomputes the output and compares checksums.
            # They differ, because the reports name new files, so Spark fails the job. The whole job can be repeated.
            if _INDETERMINATE not in str(error):
                raise
    return _reports(done)


def _reports(done: "DataFrame") -> Reports:
    return [json.loads(row.report) for row in done.collect()]


def _require_consistent(reports: Reports, job: Job) -> None:
    """Check that everything that went into the shuffle came out of it.

    :raises IngestError: it did not; nothing has been committed.
    """
    partitions = [one["partition"] for one in reports if "partition" in one]
    buckets = sorted(one["bucket"] for one in reports if "bucket" in one)
    sent = sum(one["counts"].get("readings", 0) for one in reports)
    arrived = sum(one["counts"].get("received", 0) for one in reports)
    if len(set(partitions)) != len(partitions) or buckets != list(range(job.buckets)) or sent != arrived:
        raise IngestError(
            f"micro-batch {job.batch_id}: {sent} readings were sent to the buckets and {arrived} arrived, in reports "
            f"of {len(partitions)} partitions and {len(buckets)} of {job.buckets} buckets; nothing was committed: "
            "start again, and tell the maintainers"
        )


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
