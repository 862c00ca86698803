"""The work of Spark's tasks on a micro-batch. The functions know Arrow tables only; :mod:`stream` makes tasks of them.

:func:`decode` runs once per partition of the source. It writes bronze and what is no reading, and yields the readings
in SHUFFLE_SCHEMA: rows of one Arrow table each, for the bucket of their device.

:func:`deduplicate` runs once per bucket, or in a micro-batch of one partition once for all. It takes the set of
readings that the bucket had seen after N-1, writes the set after N, and yields the new readings as rows of silver. The
sets are stored with the checkpoint, which every node sees. Sparkplug's messages are decoded here, since those of a node
must be read in their order.

:func:`write` writes rows of silver.

All of them write data files that belong to no table yet, and report them; the driver commits them (:mod:`batch`).
What a task writes depends only on the offsets and the sets after N-1, so repeating it changes nothing. Memory is
bounded whatever the size of a micro-batch: messages are decoded in pieces, and the readings of a bucket come in parts.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from ...errors import FileDamaged
from ...location import Location
from ...tables.delta import Delta
from ...tables.schemas import BRONZE_SCHEMA, PLACE_COLUMNS, READING_SCHEMA
from ..decode.births import BirthFiles
from ..decode.messages import MESSAGE_COLUMNS, divide_ordered, part
from ..deduplicate.dedup import Seen
from ..deduplicate.progress import Progress
from ..deduplicate.silver import judge, seen_in_tables, stored_identities
from .data_files import FileWriter
from .job import Job, Report, forget_tables, table_of, writer_of, writing

SHUFFLE_SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("part", pa.int32()),
        ("source", pa.int32()),
        ("number", pa.int32()),
        ("kind", pa.string()),
        ("data", pa.binary()),
    ]
)
SHUFFLE_COLUMNS = "bucket int, part int, source int, number int, kind string, data binary"
"""A row between the tasks, in `data` an Arrow table of one `kind`.

part: of the bucket; devices are divided into parts, which are deduplicated one after the other.
source, number: the partition and the piece of it; they give the order in which the messages were received.
"""

_NUMBERED, _UNNUMBERED, _ORDERED = "readings", "unnumbered", "messages in order"
_MESSAGES = pa.schema([BRONZE_SCHEMA.field(name) for name in MESSAGE_COLUMNS])
_KINDS = {_NUMBERED: READING_SCHEMA, _UNNUMBERED: READING_SCHEMA, _ORDERED: _MESSAGES}
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")

# Messages are decoded in pieces of about this many bytes of Arrow.
_PIECE_BYTES = 8 << 20
# A worker may get any bucket; a set that is not in its memory is read from files.
_KEPT_SETS = 8


class _Bucket(NamedTuple):
    """A bucket's set of readings seen after micro-batch `batch_id`, the files of its state, and lines for people."""

    batch_id: int
    seen: Seen
    progress: Progress
    births: BirthFiles
    remarks: list[str]


# Kept by a Python worker between tasks. The keys contain the query's id, so another query never finds them.
_buckets: OrderedDict[tuple[str, str, int], _Bucket] = OrderedDict()


def forget_worker() -> None:
    """Forget what this process keeps between tasks, as if it were a new worker."""
    forget_tables()
    _buckets.clear()


def decode(
    job: Job, partition: int, batches: Iterable[pa.RecordBatch], report: Report, *, parts: int = 1, attempt: int = 0
) -> Iterator[pa.RecordBatch]:
    """Write the messages of one partition, except readings; yield the readings in SHUFFLE_SCHEMA.

    :param batches: the messages, with MESSAGE_COLUMNS and possibly others.
    :param parts: parts of a bucket.
    :param attempt: Spark's number of the task, for the names of files.
    :raises UsageError: this node does not see the tables.
    :raises TablesWriteFailed: a file cannot be written.
    """
    counts = {"messages": 0, "ignored": 0, **{f"sent {kind}": 0 for kind in _KINDS}}
    with writing(job):
        writers = {name: writer_of(job, name, attempt) for name in ("bronze", "quarantine", "status", "logs")}
    for number, messages in enumerate(_pieces(batches)):
        with writing(job):
            counts["messages"] += messages.num_rows
            messages = table_of(job, "bronze").without_removed(messages)
            alone, ordered, nodes = divide_ordered(messages, job.rules)
            found = part(alone, job.rules)
            counts["ignored"] += found.ignored
            rows = {
                "bronze": bronze_rows(messages),
                "quarantine": found.quarantined,
                "status": found.status,
                "logs": found.logs,
            }
            for name, some in rows.items():
                if some.num_rows:
                    writers[name].add(table_of(job, name).without_known(some))
        sent: list[tuple[int, int, int, int, str, bytes]] = []
        for kind, some, devices in (
            (_NUMBERED, found.readings, found.readings["device_id"]),
            (_UNNUMBERED, found.unnumbered, _owners(found.unnumbered, found.readings)),
            (_ORDERED, ordered, pa.chunked_array([pa.array(nodes, pa.string())])),
        ):
            counts[f"sent {kind}"] += some.num_rows
            for place, table in _by_place(some, devices, job.buckets, parts):
                sent.append((*divmod(place, parts), partition, number, kind, _packed(table)))
        if sent:
            yield _shuffled(sent)
    with writing(job):
        files = {name: writer.close() for name, writer in writers.items()}
    report(f"partition {partition}", {"files": files, "counts": counts})


def deduplicate(
    job: Job, buckets: Iterable[int], batches: Iterable[pa.RecordBatch], report: Report, *, attempt: int = 0
) -> Iterator[pa.Table]:
    """Find the new readings of some buckets; yield them as rows of silver, and write duplicates.

    :param batches: all rows of these buckets, in SHUFFLE_SCHEMA and in any order. They are held, as compressed as they
        come.
    :param attempt: as for :func:`decode`.
    :raises UsageError: this node does not see the tables.
    :raises TablesWriteFailed: a file cannot be written.
    """
    held: dict[int, list[_Row]] = {bucket: [] for bucket in buckets}
    for batch in batches:
        places = batch.select(["bucket", *_Row._fields[:-1]]).to_pylist()
        for place, data in zip(places, batch["data"], strict=True):
            held[place.pop("bucket")].append(_Row(**place, data=data.as_buffer()))
    for bucket, rows in held.items():
        # The order in which the messages were received.
        yield from _deduplicate(job, bucket, sorted(rows, key=lambda row: row[:3]), report, attempt)


def _deduplicate(job: Job, bucket: int, rows: "Sequence[_Row]", report: Report, attempt: int) -> Iterator[pa.Table]:
    received = dict.fromkeys(_KINDS, 0)
    conflicts: list[dict[str, Any]] = []
    counts = {"silver": 0, "ignored": 0}
    with writing(job):
        silver_table = table_of(job, "silver")
        writers = {name: writer_of(job, name, attempt) for name in ("duplicates", "quarantine", "status")}
        bucket_state, rebuilt = _state_before(job, bucket, silver_table, _own_places(job, rows))
    seen, births = bucket_state.seen, bucket_state.births
    known = births.before(job.batch_id) if job.rules.has_sparkplug else None
    for tables in _parts_of(rows):
        with writing(job):
            for kind, table in tables.items():
                received[kind] += table.num_rows
            readings, unnumbered = tables[_NUMBERED], tables[_UNNUMBERED]
            if tables[_ORDERED].num_rows:
                found = part(tables[_ORDERED], job.rules, known)
                readings = pa.concat_tables([readings, found.readings])
                unnumbered = pa.concat_tables([unnumbered, found.unnumbered])
                _add_new(job, "quarantine", found.quarantined, writers)
                _add_new(job, "status", found.status, writers)
                counts["ignored"] += found.ignored
            judged = judge(readings, unnumbered, seen, silver_table)
            _add_new(job, "duplicates", judged.duplicates, writers)
            conflicts += judged.conflicts.select(PLACE_COLUMNS).to_pylist()
            counts["silver"] += judged.silver.num_rows
        if judged.silver.num_rows:
            yield judged.silver
    with writing(job):
        bucket_state.progress.save(job.batch_id, seen)
        if known is not None:
            births.save(job.batch_id, known)
            births.keep(job.batch_id, known)
        files = {name: writer.close() for name, writer in writers.items()}
    _keep((job.state, job.query_id, bucket), bucket_state._replace(batch_id=job.batch_id))
    counts |= {"boots": len(seen), "open_gaps": seen.open_gaps, "rebuilt": rebuilt}
    counts |= {f"received {kind}": rows for kind, rows in received.items()}
    remarks = list(bucket_state.remarks)
    bucket_state.remarks.clear()
    report(f"bucket {bucket}", {"files": files, "counts": counts, "conflicts": conflicts, "remarks": remarks})


def write(job: Job, task: int, tables: Iterable[pa.Table], report: Report, *, attempt: int = 0) -> None:
    """Write rows of silver.

    :param task: number of the task.
    :param attempt: as for :func:`decode`.
    :raises UsageError: this node does not see the tables.
    :raises TablesWriteFailed: a file cannot be written.
    """
    with writing(job):
        writer = writer_of(job, "silver", attempt)
    for table in tables:
        with writing(job):
            writer.add(table)
    with writing(job):
        files = writer.close()
    report(f"writer {task}", {"files": {"silver": files}, "counts": {"written": sum(file["rows"] for file in files)}})


def bronze_rows(messages: pa.Table) -> pa.Table:
    """Return messages as rows of bronze."""
    dated = messages.append_column("received_date", messages["received_ts"].cast(pa.date32()))
    return dated.select(BRONZE_SCHEMA.names).cast(BRONZE_SCHEMA)


def place_of(device_id: str, places: int) -> int:
    """Return the number below `places` of a device. This must never change: the sets are divided by it."""
    # The CRCs of names that differ in one digit often have the same low bits; the product spreads the difference.
    mixed = crc32(device_id.encode("utf-8", "surrogatepass")) * 0x9E3779B1 & 0xFFFFFFFF
    return mixed * places >> 32


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield messages in tables of about _PIECE_BYTES."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _PIECE_BYTES:
            yield pa.Table.from_batches(held).select(MESSAGE_COLUMNS).cast(_MESSAGES)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held).select(MESSAGE_COLUMNS).cast(_MESSAGES)


class _Row(NamedTuple):
    """A row of SHUFFLE_SCHEMA without its bucket; `data` is still compressed."""

    part: int
    source: int
    number: int
    kind: str
    data: pa.Buffer


def _shuffled(rows: Sequence[tuple]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SHUFFLE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SHUFFLE_SCHEMA)


def _parts_of(rows: Sequence[_Row]) -> Iterator[dict[str, pa.Table]]:
    """Yield the tables of each part of a bucket, by kind; at least one part."""
    for _, group in groupby(rows, lambda row: row.part):
        yield _joined((row.kind, pa.ipc.open_stream(row.data).read_all()) for row in group)
    if not rows:
        yield _joined(())


def _joined(tables: Iterable[tuple[str, pa.Table]]) -> dict[str, pa.Table]:
    by_kind = {kind: [schema.empty_table()] for kind, schema in _KINDS.items()}
    for kind, table in tables:
        by_kind[kind].append(table)
    return {kind: pa.concat_tables(some) for kind, some in by_kind.items()}


def _own_places(job: Job, rows: Sequence[_Row]) -> pa.Table:
    """Return the places of this micro-batch's messages if silver has it from an earlier attempt, else none.

    Rows of silver at these places do not count as seen before.
    """
    places = pa.schema([READING_SCHEMA.field(name) for name in PLACE_COLUMNS])
    found = [places.empty_table()]
    if job.silver_committed:
        for tables in _parts_of(rows):
            found += [table.select(PLACE_COLUMNS).cast(places) for table in tables.values()]
    return pa.concat_tables(found)


def _state_before(job: Job, bucket: int, silver: Delta, own: pa.Table) -> tuple[_Bucket, int]:
    """Return the bucket's state after N-1, and from how many rows its set was rebuilt (0 if it was not).

    :param own: places of this micro-batch's readings, if silver has them from an earlier attempt.
    """
    before = job.batch_id - 1
    # Removed from memory: if this task fails halfway, the set would be neither the one before nor the one after.
    kept = _buckets.pop((job.state, job.query_id, bucket), None)
    rebuilt = 0
    if kept is None:
        folder = Path(job.state) / f"bucket-{bucket:04d}"
        remarks: list[str] = []
        kept = _Bucket(-1, Seen(), Progress(folder, job.limits), BirthFiles(folder, remarks.append), remarks)
    seen, progress, damage = kept.seen, kept.progress, ""
    try:
        if not progress.catch_up(seen, before):
            seen = progress.load(before)
    except FileDamaged as error:
        seen, damage = None, f" ({error})"
    if seen is None:

        def in_bucket(rows: pa.Table) -> pa.Table:
            return rows.filter(pa.array(_places_of(rows["device_id"], job.buckets) == bucket))

        seen, rebuilt = seen_in_tables(silver, table_of(job, "duplicates"), own, in_bucket)
        if damage:
            kept.remarks.append(rebuilt_line(job.batch_id, damage, rebuilt, silver.path))
            rebuilt = 0
    progress.remove_before(before)
    seen.recall = lambda boots: stored_identities(silver, boots, own)
    return kept._replace(batch_id=before, seen=seen), rebuilt


def rebuilt_line(batch_id: int, damage: str, rows: int, silver: Location) -> str:
    """Return the line that reports that the set of readings seen was rebuilt from the tables."""
    return (
        f"no record of what was seen before micro-batch {batch_id}{damage}: "
        f"rebuilt it from {rows} rows of {silver} and duplicates"
    )


def _keep(key: tuple[str, str, int], bucket: _Bucket) -> None:
    _buckets[key] = bucket
    while len(_buckets) > _KEPT_SETS:
        _buckets.popitem(last=False)


def _add_new(job: Job, name: str, rows: pa.Table, writers: Mapping[str, FileWriter]) -> None:
    """Write the rows whose places the table does not have yet."""
    if rows.num_rows:
        writers[name].add(table_of(job, name).without_known(rows))


def _owners(unnumbered: pa.Table, readings: pa.Table) -> pa.ChunkedArray:
    """Return the device of each unnumbered reading, or of the numbered reading that came in the same message.

    If that is a duplicate, the others are too: so they belong into its bucket.
    """
    devices = unnumbered["device_id"]
    if not unnumbered.num_rows or not readings.num_rows:
        return devices
    numbered = zip(*(readings[name].to_pylist() for name in [*PLACE_COLUMNS, "device_id"]), strict=True)
    owners = {tuple(at): device for *at, device in numbered}
    mine = zip(*(unnumbered[name].to_pylist() for name in [*PLACE_COLUMNS, "device_id"]), strict=True)
    return pa.chunked_array([pa.array([owners.get(tuple(at), device) for *at, device in mine], pa.string())])


def _by_place(rows: pa.Table, devices: pa.ChunkedArray, buckets: int, parts: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (bucket * parts + part, rows) where there are rows; the order of the rows is kept."""
    if not rows.num_rows:
        return
    count = buckets * parts
    if count == 1:
        yield 0, rows
        return
    places = _places_of(devices, count)
    order = np.argsort(places, kind="stable")
    ends = np.searchsorted(places[order], np.arange(count), side="right").tolist()
    sorted_rows = rows.take(pa.array(order)).combine_chunks()
    start = 0
    for place, end in enumerate(ends):
        if start < end:
            yield place, sorted_rows.slice(start, end - start)
        start = end


def _places_of(devices: pa.ChunkedArray, places: int) -> np.ndarray:
    encoded = devices.combine_chunks().dictionary_encode()
    by_device = np.array([place_of(name, places) for name in encoded.dictionary.to_pylist()], dtype=np.int64)
    return by_device[encoded.indices.to_numpy()]


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()
