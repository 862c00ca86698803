"""The work of executors on a micro-batch: two kinds of task, with one shuffle of few, large rows between them.

:func:`receive` runs once per partition of the source. It writes bronze, decodes, writes everything but readings, and
sends the readings to the bucket of their device and boot, as one Arrow table per bucket.

:func:`deduplicate` runs once per bucket. It takes the set of readings that the bucket had seen after N-1, writes the
set after N, and writes the new readings as silver. The sets are stored with the checkpoint, which every node sees.

Both write data files that belong to no table yet and report them; the driver commits them (:mod:`cluster`). Each
report of :func:`receive` travels through the bucket that has its partition's number. So whatever tasks Spark repeats,
the driver gets exactly one report per partition: the one whose readings were used. The result of a task depends only
on the offsets and the sets after N-1, so repeating it changes nothing.
"""

import json
import socket
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from ..decoders.rules import NO_RULES, Rules
from ..durable import read_checked
from ..errors import FileDamaged, UsageError
from ..location import located, open_table
from ..tables.delta import Delta
from ..tables.schemas import BRONZE_SCHEMA, PARTITIONED_BY, PLACE_COLUMNS, READING_SCHEMA, SCHEMAS
from .batch import bronze_rows
from .cluster_files import DataFile, write_files
from .dedup import Limits, Seen, boot_keys
from .messages import MESSAGE_COLUMNS, part
from .process import write_failure
from .progress import Progress
from .silver import (
    duplicate_rows,
    repeated,
    seen_in_tables,
    silver_rows,
    stored_identities,
    unnumbered_rows,
)

SHUFFLE_SCHEMA = pa.schema([("bucket", pa.int32()), ("source", pa.int32()), ("data", pa.binary())])
SHUFFLE_COLUMNS = "bucket int, source int, data binary"
"""A row between the tasks. `source`: the partition it comes from; `data`: readings, or a report that begins with {."""

REPORT_SCHEMA = pa.schema([("report", pa.binary())])
REPORT_COLUMNS = "report binary"

# A bucket's task may run in any of an executor's Python workers; a set that is not in its memory is read from files.
_KEPT_SETS = 4
_WHOLE_EVERY = 10


@dataclass(frozen=True)
class Job:
    """The parameters of a micro-batch's tasks.

    :ivar tables: folder or URL of the tables, which every node sees.
    :ivar state: folder of the buckets' sets, which every node sees.
    :ivar query_id: the query's id in the checkpoint.
    :ivar batch_id: number of the micro-batch.
    :ivar buckets: number of buckets.
    :ivar limits: how much of each bucket's set may stay in memory.
    :ivar silver_committed: whether silver has this micro-batch from an earlier attempt.
    :ivar table_ids: table to the id in its metadata.
    :ivar state_id: identity of the state folder, in its STATE_FILE.
    :ivar rules: whether ids in records are trusted, and which decoder reads which topic.
    """

    tables: str
    state: str
    query_id: str
    batch_id: int
    buckets: int
    limits: Limits
    silver_committed: bool
    table_ids: Mapping[str, str]
    state_id: str
    rules: Rules = NO_RULES

    def require_shared(self, name: str) -> None:
        """Check that this node sees the driver's table `name` and state, and not local folders with the same paths.

        Files in a folder that only this node sees would be committed, but missing for everybody else.

        :raises UsageError: the node does not see them.
        """
        state = Path(self.state) / STATE_FILE
        try:
            same_state = json.loads(bytes(read_checked(state)))["id"] == self.state_id
            same_table = open_table(located(self.tables) / name).metadata().id == self.table_ids[name]
        except (OSError, FileDamaged, DeltaError):
            same_state = same_table = False
        if not (same_state and same_table):
            raise UsageError(
                f"the node {socket.gethostname()} does not see {self.tables} or {self.state} as the driver does: "
                "--tables and --checkpoint must be paths on a disk that all nodes share"
            )


STATE_FILE = "buckets.json"


class _Bucket(NamedTuple):
    """A bucket's set of readings seen after micro-batch `batch_id`, and the files of the set."""

    batch_id: int
    seen: Seen
    progress: Progress


# Kept by a Python worker between tasks. The keys contain the query's id, so another query never finds them.
_tables: dict[tuple[str, str, str], Delta] = {}
_buckets: OrderedDict[tuple[str, str, int], _Bucket] = OrderedDict()


def receive(job: Job, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the messages of one partition except readings; yield its readings and its report in SHUFFLE_SCHEMA.

    :raises UsageError: this node does not see the tables.
    :raises TablesWriteFailed: a file cannot be written.
    """
    tables = [pa.Table.from_batches([batch]).select(MESSAGE_COLUMNS).cast(_MESSAGES) for batch in batches]
    messages = pa.concat_tables([_MESSAGES.empty_table(), *tables])
    read = messages.num_rows
    if read:
        messages = _table(job, "bronze").without_removed(messages)
    parts = part(messages, job.rules)
    rows = {
        "bronze": bronze_rows(messages),
        # Unnumbered readings need no bucket: each place is in one partition only.
        "silver": unnumbered_rows(parts.unnumbered),
        "quarantine": parts.quarantined,
        "status": parts.status,
        "logs": parts.logs,
    }
    try:
        written = {name: _write_new(job, name, some) for name, some in rows.items()}
    except (OSError, DeltaError) as error:
        raise write_failure(error, located(job.tables)) from error
    counts = {"messages": read, "readings": parts.readings.num_rows, "ignored": parts.ignored}
    report = json.dumps({"partition": partition, "files": written, "counts": counts}).encode()
    sent = [(partition % job.buckets, report)]
    sent += [(bucket, _packed(readings)) for bucket, readings in _by_bucket(parts.readings, job.buckets)]
    columns = [[bucket for bucket, _ in sent], [partition] * len(sent), [data for _, data in sent]]
    yield pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SHUFFLE_SCHEMA, strict=True)],
        schema=SHUFFLE_SCHEMA,
    )


def deduplicate(job: Job, bucket: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write a bucket's new readings and duplicates; yield its report and the partitions' reports that came to it.

    The reports are rows of REPORT_SCHEMA.

    :raises UsageError: this node does not see the tables.
    :raises TablesWriteFailed: a file cannot be written.
    """
    reports: list[bytes] = []
    tables: list[tuple[int, pa.Table]] = []
    for batch in batches:
        for source, data in zip(batch["source"].to_pylist(), batch["data"].to_pylist(), strict=True):
            if data[:1] == b"{":
                reports.append(data)
            else:
                tables.append((source, pa.ipc.open_stream(data).read_all()))
    # Which of two equal readings is kept must not depend on the order in which they came over the network.
    tables.sort(key=lambda one: one[0])
    readings = pa.concat_tables([READING_SCHEMA.empty_table(), *(table for _, table in tables)])
    try:
        reports.append(json.dumps(_take(job, bucket, readings)).encode())
    except (OSError, DeltaError) as error:
        raise write_failure(error, located(job.tables)) from error
    yield pa.RecordBatch.from_arrays([pa.array(reports, pa.binary())], schema=REPORT_SCHEMA)


def bucket_of(key: str, buckets: int) -> int:
    """Return the bucket of a device's boot. This function must never change, because the sets are divided by it.

    :param key: device_id, U+0000, boot.
    """
    # The CRCs of names that differ in one digit often have the same low bits; the product spreads the difference.
    mixed = crc32(key.encode()) * 0x9E3779B1 & 0xFFFFFFFF
    return mixed * buckets >> 32


_MESSAGES = pa.schema([BRONZE_SCHEMA.field(name) for name in MESSAGE_COLUMNS])


def _take(job: Job, bucket: int, readings: pa.Table) -> dict[str, object]:
    """Find the bucket's new readings and write them; return the bucket's report."""
    silver_table = _table(job, "silver")
    own = readings if job.silver_committed else readings.slice(0, 0)
    progress, seen, rebuilt = _seen_before(job, bucket, silver_table, own)
    new = seen.take(readings)
    silver = silver_rows(readings, new)
    again = repeated(readings, new, silver_table)
    progress.save(job.batch_id, seen)
    files = {
        "silver": write_files(silver_table.path, silver, PARTITIONED_BY["silver"]),
        "duplicates": _write_new(job, "duplicates", duplicate_rows(again.duplicates)),
    }
    _keep((job.state, job.query_id, bucket), _Bucket(job.batch_id, seen, progress))
    return {
        "bucket": bucket,
        "files": files,
        "counts": {
            "received": readings.num_rows,
            "boots": len(seen),
            "open_gaps": seen.open_gaps,
            "rebuilt": rebuilt,
        },
        "conflicts": again.conflicts.select(PLACE_COLUMNS).to_pylist(),
    }


def _seen_before(job: Job, bucket: int, silver: Delta, own: pa.Table) -> tuple[Progress, Seen, int]:
    """Return the bucket's files, its set after N-1, and from how many rows the set was rebuilt (0 if it was not).

    :param own: readings of this micro-batch that silver has from an earlier attempt; they do not count.
    """
    rebuilt = 0
    # Removed from memory: if this task fails halfway, the set would be neither the one before nor the one after.
    kept = _buckets.pop((job.state, job.query_id, bucket), None)
    if kept is not None and kept.batch_id == job.batch_id - 1:
        progress, seen = kept.progress, kept.seen
    else:
        folder = Path(job.state) / f"bucket-{bucket:04d}"
        progress = Progress(folder, job.limits, whole_every=_WHOLE_EVERY)

        def in_bucket(rows: pa.Table) -> pa.Table:
            return rows.filter(pa.array(_bucket_of_rows(rows, job.buckets) == bucket))

        try:
            seen = progress.load(job.batch_id - 1)
        except FileDamaged:
            seen = None
        if seen is None:
            seen, rebuilt = seen_in_tables(silver, _table(job, "duplicates"), own, in_bucket)
    progress.remove_before(job.batch_id - 1)
    seen.recall = lambda boots: stored_identities(silver, boots, own)
    return progress, seen, rebuilt


def _keep(key: tuple[str, str, int], bucket: _Bucket) -> None:
    _buckets[key] = bucket
    while len(_buckets) > _KEPT_SETS:
        _buckets.popitem(last=False)


def _table(job: Job, name: str) -> Delta:
    key = (job.tables, job.query_id, name)
    if key not in _tables:
        job.require_shared(name)
        _tables[key] = Delta(located(job.tables) / name, SCHEMAS[name], PARTITIONED_BY.get(name))
    return _tables[key]


def _write_new(job: Job, name: str, rows: pa.Table) -> list[DataFile]:
    """Write the rows whose places the table does not have yet; return the files."""
    if not rows.num_rows:
        return []
    table = _table(job, name)
    return write_files(table.path, table.without_known(rows), PARTITIONED_BY.get(name))


def _by_bucket(readings: pa.Table, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (bucket, readings) for each bucket that has readings; the order of the readings is kept."""
    if not readings.num_rows:
        return
    rows_bucket = _bucket_of_rows(readings, buckets)
    order = np.argsort(rows_bucket, kind="stable")
    ends = np.searchsorted(rows_bucket[order], np.arange(buckets), side="right").tolist()
    sorted_readings = readings.take(pa.array(order)).combine_chunks()
    start = 0
    for bucket, end in enumerate(ends):
        if start < end:
            yield bucket, sorted_readings.slice(start, end - start)
        start = end


def _bucket_of_rows(rows: pa.Table, buckets: int) -> np.ndarray:
    encoded = boot_keys(rows)
    by_key = np.array([bucket_of(key, buckets) for key in encoded.dictionary.to_pylist()], dtype=np.int64)
    return by_key[encoded.indices.to_numpy()]


def _packed(readings: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, readings.schema) as writer:
        writer.write_table(readings)
    return sink.getvalue().to_pybytes()
