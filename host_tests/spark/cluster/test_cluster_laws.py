"""The tasks give the same tables as one undisturbed process, whatever dies, is repeated or comes late.

Without Spark: a loop plays its part. It repeats tasks, loses attempts half-way, passes rows on in any order and now
and then clears a worker's memory. With Spark: test_cluster.py.

UMQTT_FULL_SWEEPS=1 runs twice as many micro-batches, with more partitions, and another seed in every run.
"""

import errno
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from object_store import ObjectStore, use
from spark_helpers import record, topic_of
from sparkplug_payloads import DOUBLE, UINT64, double, metric, payload, tagged

from spark_ingest.decoders.rules import NO_RULES, Rules
from spark_ingest.errors import IngestError, TablesWriteFailed, UsageError
from spark_ingest.location import Location, located, open_table
from spark_ingest.pipeline.run.claim import claim
from spark_ingest.pipeline.write import data_files, tasks
from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, STAGES, BatchWriter, Reports, Totals
from spark_ingest.pipeline.write.job import Job
from spark_ingest.source.rows import ARROW_SCHEMA
from spark_ingest.tables import summary
from spark_ingest.tables.upkeep import retain

QUERY = "0b7e"
FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
BATCHES, PARTITIONS = (4, 4) if FULL else (2, 3)
DAY_MS = 86_400_000
RECEIVED_MS = 1_795_000_000_000
TABLES = ("bronze", "silver", "quarantine", "duplicates", "status", "logs")


class Died(BaseException):
    """A process ends here: no handler of the pipeline may catch this."""


def workload(rng: random.Random) -> list[pa.Table]:
    """Make micro-batches with late, reordered, repeated, conflicting, clockless and corrupt messages, over two days."""
    telemetry = [
        record(f"d{device}", "1-a", seq, **({"ts": None} if seq < 5 else {"ts": RECEIVED_MS + seq}))
        for device in range(6)
        for seq in range(25)
    ]
    telemetry += rng.choices(telemetry, k=30) + [b"corrupt %d" % i for i in range(8)]
    telemetry += [record("d1", "1-a", seq, m={"t": -1}) for seq in (3, 17)]
    sent = [(topic_of(payload), payload) for payload in telemetry]
    sent += [("fleet/d3/telemetry", telemetry[0])]
    sent += [(f"fleet/d{i}/status", json.dumps({"online": bool(i % 2), "boot": "1-a"}).encode()) for i in range(6)]
    sent += [("fleet/d2/log", b'{"level":"error","text":"x"}'), ("fleet/d2/log", b"[]")]
    rng.shuffle(sent)
    rows = [
        {
            "topic": topic,
            "payload": payload,
            "received_ts": (RECEIVED_MS + i * 2 * DAY_MS // len(sent)) * 1000,
            "qos": 1,
            "retain": False,
            "dup": False,
            "collector": "north",
            "spool": "00" * 16,
            # The first segment ends in a later micro-batch than it begins.
            "segment": i // 120,
            "position": 100 * i,
        }
        for i, (topic, payload) in enumerate(sent)
    ]
    table = pa.Table.from_pylist(rows, schema=ARROW_SCHEMA).select(MESSAGE_COLUMNS)
    size = -(-table.num_rows // BATCHES)
    return [table.slice(i * size, size) for i in range(BATCHES)]


def unfit(batches: list[pa.Table]) -> int:
    """Count the messages that belong in quarantine: nine unreadable ones, one of another device, and conflicts."""
    first: dict[tuple, bytes] = {}
    conflicts = 0
    for row in (row for batch in batches for row in batch.select(["topic", "payload"]).to_pylist()):
        if row["topic"].endswith("/telemetry") and row["payload"].startswith(b"{"):
            fields = json.loads(row["payload"])
            if row["topic"] != topic_of(row["payload"]):
                continue
            identity = fields["id"], fields["boot"], fields["seq"]
            conflicts += first.setdefault(identity, row["payload"]) != row["payload"]
    return 10 + conflicts


class Spark:
    """Runs a micro-batch's tasks as Spark might."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.died = 0

    def run(self, messages: pa.Table, job: Job) -> Reports:
        # The partitions depend on the offsets alone, the parts of a bucket do not.
        cuts = sorted(random.Random(job.batch_id).choices(range(messages.num_rows + 1), k=PARTITIONS - 1))
        ends = [*cuts, messages.num_rows]
        partitions = [messages.slice(start, end - start) for start, end in zip([0, *cuts], ends, strict=True)]
        shuffled: dict[int, list[pa.RecordBatch]] = {bucket: [] for bucket in range(job.buckets)}
        reports: dict[str, dict] = {}
        parts = self._rng.randint(1, 3)
        for number, some in enumerate(partitions):

            def decode(report, number=number, some=some) -> list[pa.RecordBatch]:
                return list(tasks.decode(job, number, some.to_batches(10), report, parts=parts))

            for rows in self._attempts(decode, reports):
                for i in range(rows.num_rows):
                    shuffled[rows["bucket"][i].as_py()].append(rows.slice(i, 1))
        for bucket, rows in shuffled.items():
            self._rng.shuffle(rows)
            rows.sort(key=lambda row: [row[name][0].as_py() for name in ("part", "source", "number")])

            def write(report, bucket=bucket, rows=rows) -> list:
                tasks.write(job, bucket, tasks.deduplicate(job, [bucket], rows, report), report)
                return []

            self._attempts(write, reports)
        return reports

    def _attempts(self, task, reports: dict[str, dict]) -> list[pa.RecordBatch]:
        """Return the result of one successful attempt; run others before and after it, complete or interrupted."""
        results = []
        for _ in range(self._rng.randint(0, 1)):
            results += self._attempt(task, reports, dies=self._rng.random() < 0.5)
        results += self._attempt(task, reports, dies=False)
        return self._rng.choice(results)

    def _attempt(self, task, reports: dict[str, dict], *, dies: bool) -> list[list[pa.RecordBatch]]:
        if self._rng.random() < 0.2:
            # Another Python worker, which has none of the sets in memory.
            tasks.forget_worker()
        reported: dict[str, dict] = {}
        with pytest.MonkeyPatch.context() as patch:
            if dies:
                self._die_somewhere(patch)
            try:
                results = [task(reported.__setitem__)]
            except Died:
                self.died += 1
                return []
        # Spark passes on the reports of complete attempts alone.
        reports |= json.loads(json.dumps(reported))
        return results

    def _die_somewhere(self, patch: pytest.MonkeyPatch) -> None:
        left = [self._rng.randint(1, 3)]
        close = data_files._OpenFile.close

        def dying(*arguments):
            left[0] -= 1
            if not left[0]:
                raise Died
            return close(*arguments)

        patch.setattr(data_files._OpenFile, "close", dying)
        if self._rng.random() < 0.3:

            def unsaved(*_arguments):
                raise Died

            patch.setattr(tasks.Progress, "save", unsaved)


def content(tables: Location) -> dict[str, list[str]]:
    """Return every row of every table, sorted, so that order and files do not matter."""
    return {name: sorted(map(repr, open_table(tables / name).to_pyarrow_table().to_pylist())) for name in TABLES}


def undisturbed(folder: Path, batches: list[pa.Table], rules: Rules = NO_RULES) -> BatchWriter:
    writer = BatchWriter(folder, folder / "state", buckets=1, rules=rules, report=lambda _line: None)
    for number, messages in enumerate(batches):
        writer.write(messages, number, QUERY)
    return writer


def in_tasks(
    folder: Path, batches: list[pa.Table], spark: Spark, kills: list[tuple[int, str]], rules: Rules = NO_RULES
) -> BatchWriter:
    """Write all micro-batches as Spark would; after each of `kills`, start again at the uncommitted one."""
    committed = 0
    pending = list(kills)

    def kill(stage: str) -> None:
        if pending and pending[0] == (committed, stage):
            pending.pop(0)
            raise Died(stage)

    while True:
        quiet = {"on_stage": kill, "report": lambda _line: None, "rules": rules}
        writer = BatchWriter(folder, folder / "state", buckets=3, run=spark.run, **quiet)
        try:
            while committed < len(batches):
                writer.write(batches[committed], committed, QUERY)
                committed += 1
        except Died:
            continue
        assert not pending, "every kill happened"
        return writer


@pytest.fixture(autouse=True)
def fresh_worker() -> Iterator[None]:
    yield
    tasks.forget_worker()


@pytest.mark.parametrize("stages", [STAGES[:4], STAGES[3:]], ids=["early", "late"])
def test_tasks_that_die_or_are_repeated_and_a_driver_that_is_killed_anywhere_change_no_row(tmp_path, stages):
    seed = random.randrange(1 << 32) if FULL else 1
    print("seed", seed)
    rng = random.Random(seed)
    batches = workload(rng)
    kills = list(enumerate(rng.sample(stages, k=BATCHES)))
    spark = Spark(rng)
    in_tasks(tmp_path / "cluster", batches, spark, kills)
    undisturbed(tmp_path / "one", batches)
    assert content(tmp_path / "cluster") == content(tmp_path / "one")
    assert summary(tmp_path / "cluster") == (150, 150, unfit(batches))
    assert spark.died, "attempts died"
    silver = tmp_path / "cluster" / "silver"
    files = {str(path.relative_to(silver)) for path in silver.rglob("*.parquet")}
    held = set(DeltaTable(str(silver)).file_uris())
    assert held <= {str(silver / name) for name in files} and len(files) > len(held), "torn attempts left files"


def test_executors_write_the_same_rows_to_an_object_store(tmp_path, monkeypatch):
    """Planted: a file that is committed under another name than it was written with."""
    batches, spark = workload(random.Random(29)), Spark(random.Random(1))
    undisturbed(tmp_path / "one", batches)
    with ObjectStore() as store:
        use(store, monkeypatch)
        tables, state = located("s3://readings/tables"), tmp_path / "umqtt"
        for _ in range(2):  # the second round finds everything there
            writer = BatchWriter(
                tables, state, buckets=2, run=spark.run, on_open=lambda opened: claim(opened, tables, tmp_path)
            )
            for number, messages in enumerate(batches):
                writer.write(messages, number, QUERY)
        assert content(tables) == content(tmp_path / "one")


def test_readings_that_are_known_by_their_place_are_written_once_by_executors_too(tmp_path):
    """Planted: executors forget readings known by their place, or a new checkpoint adds them again."""
    rules = Rules(False, json.dumps([{"topic": "n/{device}", "format": "number", "metric": "t"}]))
    rng, batches = random.Random(23), []
    for batch in workload(random.Random(23)):
        rows = batch.to_pylist()
        for row in rows[::3]:
            row |= {"topic": "n/" + rng.choice("ab"), "payload": rng.choice([b"1.5", b"1.5", b"?"])}
        batches.append(pa.Table.from_pylist(rows, schema=batch.schema))
    spark = Spark(rng)
    in_tasks(tmp_path / "cluster", batches, spark, list(enumerate(rng.sample(STAGES, k=BATCHES))), rules)
    undisturbed(tmp_path / "one", batches, rules)
    before = content(tmp_path / "cluster")
    assert before == content(tmp_path / "one")
    assert sum("'metrics': [('t', 1.5)]" in row for row in before["silver"]) > 20
    other = {"buckets": 5 if FULL else 2, "run": spark.run, "rules": rules}
    writer = BatchWriter(tmp_path / "cluster", tmp_path / "other", **other)
    for number, messages in enumerate(batches):
        writer.write(messages, number, "another checkpoint")
    assert content(tmp_path / "cluster") == before


def test_messages_of_a_sparkplug_node_are_decoded_in_their_order_whatever_dies(tmp_path):
    """Planted: births of the latest attempt; a node in several buckets; births that a bucket does not store."""
    rules = Rules(False, json.dumps([{"topic": "spBv1.0/#", "format": "sparkplug"}]))
    rng = random.Random(31)
    sent = {f"edge-{number}": [] for number in range(5)}
    for node, messages in sent.items():
        for seq in range(20):
            kind = "NBIRTH" if seq in (0, 11) else "NDATA"
            names = [metric("bdSeq", datatype=UINT64, value=tagged(11, seq)), metric("t", 1, DOUBLE, double(seq))]
            some = names if kind == "NBIRTH" else [metric(alias=1, value=double(seq))]
            messages.append((f"spBv1.0/plant/{kind}/{node}", payload(seq, 1000 * seq, *some)))
    nodes = [node for node, messages in sent.items() for _ in messages]
    rng.shuffle(nodes)
    batches = [batch.to_pylist()[: 100 // BATCHES] for batch in workload(random.Random(31))]
    for row, node in zip([row for rows in batches for row in rows], nodes, strict=True):
        row["topic"], row["payload"] = sent[node].pop(0)
    schema = workload(random.Random(31))[0].schema
    tables = [pa.Table.from_pylist(rows, schema=schema) for rows in batches]
    spark = Spark(rng)
    in_tasks(tmp_path / "cluster", tables, spark, list(enumerate(rng.sample(STAGES, k=BATCHES))), rules)
    undisturbed(tmp_path / "one", tables, rules)
    assert content(tmp_path / "cluster") == content(tmp_path / "one")
    assert summary(tmp_path / "one") == (100, 100, 0)


class Written(NamedTuple):
    """What a cluster has written of `batches`, with no driver killed.

    undisturbed: the counts of a process that nothing disturbs.
    """

    tables: Path
    batches: list[pa.Table]
    totals: Totals
    undisturbed: Totals


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Provide one set of tables for the tests that only read it."""
    folder = tmp_path_factory.mktemp("written")
    batches = workload(random.Random(7))
    totals = in_tasks(folder / "cluster", batches, Spark(random.Random(8)), []).totals
    return Written(folder / "cluster", batches, totals, undisturbed(folder / "one", batches).totals)


def test_the_counts_are_those_of_an_undisturbed_process(written: Written):
    assert written.totals == written.undisturbed


@pytest.mark.parametrize("retained", [False, True])
def test_a_new_checkpoint_on_the_same_tables_adds_nothing_twice(written: Written, tmp_path, retained):
    batches = written.batches
    if retained:
        # Once the first payload of a conflict is gone, nothing shows that it was one.
        batches = [
            batch.filter(pa.array([b'{"t": -1}' not in payload for payload in batch["payload"].to_pylist()]))
            for batch in batches
        ]
        undisturbed(tmp_path, batches)
        assert retain(tmp_path, 1, datetime.fromtimestamp(RECEIVED_MS / 1000 + 2 * 86_400, UTC))["silver"]
    else:
        shutil.copytree(written.tables, tmp_path, dirs_exist_ok=True)
    before = content(tmp_path)
    buckets = 5 if FULL else 2
    writer = BatchWriter(tmp_path, tmp_path / "other", buckets=buckets, run=Spark(random.Random(9)).run)
    for number, messages in enumerate(batches):
        writer.write(messages, number, "another query")
    assert content(tmp_path) == before


def test_an_empty_micro_batch_carries_every_bucket_s_set_on(tmp_path):
    batches = workload(random.Random(9))
    spark = Spark(random.Random(10))
    nothing = batches[0].slice(0, 0)
    in_tasks(tmp_path / "cluster", [batches[0], nothing, nothing, *batches[1:]], spark, [])
    files = sorted(path.name for path in (tmp_path / "cluster" / "state" / "bucket-0002").iterdir())
    assert files == [*(f"changes-{number}.arrow" for number in range(1, BATCHES + 2)), "progress-0.arrow"]
    undisturbed(tmp_path / "one", batches)
    assert content(tmp_path / "cluster") == content(tmp_path / "one")


def test_readings_that_the_shuffle_lost_or_doubled_are_an_error_before_anything_is_committed(tmp_path):
    batches = workload(random.Random(11))
    spark = Spark(random.Random(12))

    def losing(messages, job: Job) -> Reports:
        reports = spark.run(messages, job)
        reports["bucket 2"]["counts"]["received readings"] -= 1
        return reports

    writer = BatchWriter(tmp_path, tmp_path / "state", buckets=3, run=losing)
    with pytest.raises(IngestError, match="nothing was committed"):
        writer.write(batches[0], 0, QUERY)
    assert summary(tmp_path) == (0, 0, 0) and not content(tmp_path)["bronze"]


def test_a_node_that_has_folders_of_its_own_instead_of_the_shared_ones_is_refused(tmp_path):
    batches = workload(random.Random(15))
    shared, alone = tmp_path / "shared", tmp_path / "alone"

    def on_that_node(**moved: Path):
        def run(messages, job: Job) -> Reports:
            # Other tables and another checkpoint under the same names, as on a node without the shared disk.
            BatchWriter(alone, alone / "state", buckets=3)
            there = {name: str(path) for name, path in moved.items()}
            return Spark(random.Random(16)).run(messages, replace(job, **there))

        return run

    for name, path in (("tables", alone), ("state", alone / "state"), ("tables", tmp_path), ("state", tmp_path)):
        writer = BatchWriter(shared, shared / "state", buckets=3, run=on_that_node(**{name: path}))
        with pytest.raises(UsageError, match="paths on a disk that all nodes share"):
            writer.write(batches[0], 0, QUERY)
        tasks.forget_worker()
    assert summary(shared) == summary(alone) == (0, 0, 0)


def test_a_file_that_the_driver_does_not_see_is_never_committed(tmp_path):
    batches = workload(random.Random(17))

    def losing(messages, job: Job) -> Reports:
        reports = Spark(random.Random(18)).run(messages, job)
        file = reports["writer 0"]["files"]["silver"][0]
        (tmp_path / "silver" / file["path"]).unlink()
        return reports

    writer = BatchWriter(tmp_path, tmp_path / "state", buckets=3, run=losing)
    with pytest.raises(UsageError, match="the driver does not see it"):
        writer.write(batches[0], 0, QUERY)
    assert summary(tmp_path).rows == 0


def test_a_full_disk_on_an_executor_is_told_as_such(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(data_files._OpenFile, "close", full)
    writer = BatchWriter(tmp_path, tmp_path / "state", buckets=3, run=Spark(random.Random(19)).run)
    with pytest.raises(TablesWriteFailed, match=r"No space left on device; .*nothing is lost"):
        writer.write(workload(random.Random(20))[0], 0, QUERY)


def test_the_number_of_buckets_of_a_checkpoint_stays(tmp_path):
    said: list[str] = []
    BatchWriter(tmp_path, tmp_path / "state", buckets=3)
    again = BatchWriter(tmp_path, tmp_path / "state", buckets=9, report=said.append)
    assert again.buckets == 3 and "has 3 buckets and keeps them" in said[0]


def test_a_device_s_bucket_never_changes_and_buckets_are_even():
    assert [tasks.place_of(f"d{i}", 8) for i in range(6)] == [0, 6, 7, 1, 3, 0]
    for names in ("d%d", "pump-%04d", "device-%06d"):
        shares = Counter(tasks.place_of(names % i, 16) for i in range(4000))
        assert len(shares) == 16 and min(shares.values()) > 200 and max(shares.values()) < 330
        assert all(tasks.place_of(names % i, 48) // 3 == tasks.place_of(names % i, 16) for i in range(200))


def test_files_have_bounds_by_which_readers_skip_them(written: Written):
    actions = DeltaTable(str(written.tables / "silver")).get_add_actions(flatten=True)
    rows = pa.table(actions).to_pylist()
    assert {row["partition.received_date"].isoformat() for row in rows} == {"2026-11-18", "2026-11-19", "2026-11-20"}
    for row in rows:
        assert row["min.device_id"] <= row["max.device_id"] and row["min.received_ts"] <= row["max.received_ts"]
        assert row["null_count.seq"] == 0


def test_the_readings_of_a_large_micro_batch_come_to_a_bucket_in_parts_of_whole_devices(tmp_path, monkeypatch):
    """Planted: parts that divide a device, which then has readings twice."""
    (messages, *_), sizes = workload(random.Random(21)), []
    judge = tasks.judge

    def counted(readings: pa.Table, *more: object):
        sizes.append((readings.num_rows, set(readings["device_id"].to_pylist())))
        return judge(readings, *more)

    monkeypatch.setattr(tasks, "judge", counted)
    spark = Spark(random.Random(0))
    monkeypatch.setattr(spark._rng, "randint", lambda low, high: high if (low, high) == (1, 3) else low)
    writer = BatchWriter(tmp_path, tmp_path / "state", buckets=2, run=spark.run)
    writer.write(messages, 0, QUERY)
    parts = [devices for rows, devices in sizes if rows]
    assert len(parts) > 3 and sum(map(len, parts)) == len(set().union(*parts)) == 6
