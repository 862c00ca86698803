"""The same rows of the tables whatever the partitions, the parts and the buckets, for messages of every kind at once.

Without Spark: partitions are decoded and buckets deduplicated here, as its tasks do it.
"""

import itertools
import json
import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.accumulators import Accumulator
from spark_helpers import record, topic_of
from sparkplug_payloads import DOUBLE, UINT64, double, metric, payload, tagged

from spark_ingest.decoders.rules import Rules, load
from spark_ingest.location import open_table
from spark_ingest.pipeline.write import stream, tasks
from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, BatchWriter, Reports
from spark_ingest.pipeline.write.job import Job
from spark_ingest.source.options import Options
from spark_ingest.source.rows import ARROW_SCHEMA
from spark_ingest.tables.schemas import SILVER_SCHEMA

FULL = "UMQTT_FULL_SWEEPS" in os.environ
RECEIVED_MS = 1_795_000_000_000
RULES = """
[[decoder]]
topic = "json/{device}"
format = "json"
seq = "n"
boot = "b"
metrics = { t = "temp" }
time = "at"

[[decoder]]
topic = "plain/{device}"
format = "number"
metric = "t"

[[decoder]]
topic = "online/{device}"
format = "status"

[[decoder]]
topic = "senml/{device}"
format = "senml"

[[decoder]]
topic = "gateway"
format = "json"
each = "values"
device = "id"
boot = "b"
seq = "n"
metrics = { v = "v" }

[[decoder]]
topic = "spBv1.0/#"
format = "sparkplug"
"""


def mixed(rng: random.Random) -> list[pa.Table]:
    """Make two micro-batches of messages of all kinds, with repeated, conflicting and unreadable ones."""
    sent: list[tuple[str, bytes]] = []
    for device in range(4):
        for seq in range(12):
            own = record(f"d{device}", "1-a", seq, ts=RECEIVED_MS + seq)
            sent.append((topic_of(own), own))
            fields = {"n": seq, "b": "x", "temp": seq / 2, "at": RECEIVED_MS + seq}
            sent.append((f"json/j{device}", json.dumps(fields).encode()))
            sent.append((f"plain/p{device}", rng.choice([b"1.5", b"2", b"?"])))
            pack = [{"bt": RECEIVED_MS // 1000 + seq, "n": "t", "v": seq}, {"n": "h", "v": 1, "t": -seq}]
            sent.append((f"senml/s{device}", json.dumps(pack).encode()))
            # Readings of several devices in one message; the second of the same number is known by its place.
            values = [{"id": f"{name}{device}", "b": "x", "n": seq, "v": at} for at, name in enumerate("ggh")]
            sent.append(("gateway", json.dumps({"values": values}).encode()))
        sent.append((f"online/p{device}", rng.choice([b"online", b"offline"])))
        sent.append((f"fleet/d{device}/status", json.dumps({"online": True, "boot": "1-a"}).encode()))
    sent += rng.choices(sent, k=40)
    sent += [(topic_of(one), one) for one in (record("d1", "1-a", seq, m={"t": -1}) for seq in (2, 7))]
    sent += [("json/j1", b'{"n":3,"b":"x","temp":99}'), ("json/j1", b"{"), ("senml/s1", b"[1]"), ("no/rule", b"1")]
    rng.shuffle(sent)
    nodes: list[list[tuple[str, bytes]]] = []
    for node in range(3):
        messages = []
        for seq in range(15):
            if seq in (2, 9):
                births = [metric("bdSeq", datatype=UINT64, value=tagged(11, seq)), metric("t", 1, DOUBLE, double(seq))]
                messages.append((f"spBv1.0/plant/NBIRTH/edge-{node}", payload(seq, 1000 * seq, *births)))
            else:
                data = payload(seq, 1000 * seq, metric(alias=1, value=double(seq)))
                messages.append((f"spBv1.0/plant/NDATA/edge-{node}", data))
        nodes.append(messages)
    # The messages of a node keep their order, between those of all others.
    for messages in nodes:
        places = sorted(rng.choices(range(len(sent) + 1), k=len(messages)))
        for shift, (place, message) in enumerate(zip(places, messages, strict=True)):
            sent.insert(place + shift, message)
    rows = [
        {
            "topic": topic, "payload": content, "received_ts": (RECEIVED_MS + 50 * i) * 1000, "qos": 1,
            "retain": False, "dup": False, "collector": "north", "spool": "00" * 16, "segment": 0, "position": 100 * i,
        }
        for i, (topic, content) in enumerate(sent)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=ARROW_SCHEMA).select(MESSAGE_COLUMNS)
    half = rng.randrange(table.num_rows)
    return [table.slice(0, half), table.slice(half)]


def in_partitions(count: int, parts: int, rng: random.Random, messages: pa.Table, job: Job) -> Reports:
    """Run a micro-batch's tasks, with `count` partitions cut anywhere; one partition has one task for all buckets."""
    cuts = sorted(rng.choices(range(messages.num_rows + 1), k=count - 1))
    reports: Reports = {}
    decoded: list[pa.RecordBatch] = []
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, messages.num_rows], strict=True)):
        batches = messages.slice(start, end - start).to_batches(7)
        decoded += tasks.decode(job, number, batches, reports.__setitem__, parts=parts)
    shuffled = [rows.slice(i, 1) for rows in decoded for i in range(rows.num_rows)]
    rng.shuffle(shuffled)
    ended: list[list[int]] = []

    def input_of(buckets: list[int]) -> Iterator[pa.RecordBatch]:
        yield from (row for row in shuffled if row["bucket"][0].as_py() in buckets)
        ended.append(buckets)

    taken = [[*range(job.buckets)]] if count == 1 else [[bucket] for bucket in range(job.buckets)]
    for buckets in taken:
        new = tasks.deduplicate(job, buckets, input_of(buckets), reports.__setitem__)
        tasks.write(job, buckets[0], new, reports.__setitem__)
    # A worker of Spark whose task does not read its input to the end is not used again: the next one has to be forked.
    assert ended == taken
    return json.loads(json.dumps(reports))


def content(tables: Path) -> dict[str, list[str]]:
    names = ("silver", "quarantine", "status", "duplicates")
    return {name: sorted(map(repr, open_table(tables / name).to_pyarrow_table().to_pylist())) for name in names}


@pytest.fixture(autouse=True)
def fresh_worker() -> Iterator[None]:
    yield
    tasks.forget_worker()


@pytest.mark.parametrize("seed", [random.randrange(1 << 32) for _ in range(10)] if FULL else [1])
def test_rows_do_not_depend_on_partitions_parts_and_buckets(tmp_path, seed):
    """Planted: a message's readings in several buckets; Sparkplug decoded where its partition begins; one task for all
    that takes the first bucket alone."""
    print("seed", seed)
    (tmp_path / "ingest.toml").write_text(RULES)
    rules = Rules(False, load(tmp_path / "ingest.toml"))
    rng = random.Random(seed)
    batches = mixed(rng)

    def written(name: str, buckets: int, **run: Any) -> dict[str, list[str]]:
        tasks.forget_worker()
        tables = tmp_path / name
        writer = BatchWriter(tables, tables / "state", buckets=buckets, rules=rules, report=lambda _line: None, **run)
        for number, messages in enumerate(batches):
            writer.write(messages, number, "0b7e")
        return content(tables)

    # One task does all.
    expected = written("one", 1)
    for kind in ("d1", "j1", "p1", "s1", "g1", "h1", "plant/edge-1"):
        assert any(f"'{kind}'" in row for row in expected["silver"]), kind
    for name, some in expected.items():
        assert len(some) >= 3, name
    for partitions, buckets in itertools.product((1, 2, 5), (1, 3)) if FULL else ((2, 3), (5, 1)):
        for count in {partitions, 1}:
            parts = rng.randint(1, 3)
            run = partial(in_partitions, count, parts, rng)
            found = written(f"{partitions}-{buckets}-{count}", buckets, run=run)
            assert found == expected, (seed, count, parts, buckets)


def test_a_task_that_is_not_alone_leaves_its_messages_to_the_try_with_a_shuffle(monkeypatch):
    """Planted: a task that does all steps although there are others, which would write the sets of all buckets too."""
    ranges = pa.RecordBatch.from_pydict({"parts": pa.array([1], pa.int32())})
    steps = stream._Steps(Options({"path": "spool"}), Accumulator(0, {}, stream._Reports()), SILVER_SCHEMA)
    monkeypatch.setattr(stream, "_task", lambda: (SimpleNamespace(in_one_task=True), 0, 0))
    assert list(steps.decode(iter([ranges]))) == []
