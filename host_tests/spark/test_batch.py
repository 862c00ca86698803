"""The exactly-once law of a micro-batch: stopped anywhere and replayed, 0 lost and 0 duplicated.

`make test` covers every stage.
"""

import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from spark_helpers import record
from test_record import messages

from spark_ingest.errors import UsageError
from spark_ingest.pipeline.deduplicate.dedup import Seen
from spark_ingest.pipeline.deduplicate.progress import Progress
from spark_ingest.pipeline.run.claim import claim
from spark_ingest.pipeline.write import tasks
from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, STAGES, BatchWriter, Totals
from spark_ingest.tables import identities, summary

QUERY = "0b7e"
BATCHES = 3
FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))


class Killed(BaseException):
    """The process ends here: no handler of the pipeline may catch this."""


def workload(seed: int, count: int = BATCHES) -> tuple[list[pa.Table], set[tuple[str, str, int]], int]:
    """Make so many micro-batches with late, reordered, repeated and corrupt messages.

    Returns the micro-batches, the identities, and the number of corrupt messages.
    """
    rng = random.Random(seed)
    made = [(f"d{device}", "1-a", seq) for device in range(5) for seq in range(40)]
    payloads = [record(*identity) for identity in made]
    payloads += rng.choices(payloads, k=30) + [b"corrupt %d" % i for i in range(12)]
    rng.shuffle(payloads)
    table = messages(payloads).select(MESSAGE_COLUMNS)
    size = -(-table.num_rows // count)
    return [table.slice(i * size, size) for i in range(count)], set(made), 12


def run_killed(folder: Path, batches: list[pa.Table], kills: Sequence[tuple[int, str]]) -> None:
    """Write all micro-batches as Spark would; after each of `kills`, start again at the uncommitted one."""
    committed = 0
    pending = list(kills)

    def kill(stage: str) -> None:
        if pending and pending[0] == (committed, stage):
            pending.pop(0)
            raise Killed(stage)

    while committed < len(batches):
        writer = BatchWriter(folder, folder / "state", on_stage=kill, report=lambda _line: None)
        try:
            while committed < len(batches):
                writer.write(batches[committed], committed, QUERY)
                committed += 1
        except Killed:
            continue
    assert not pending, "every kill happened"


def lost_and_duplicated(folder: Path, made: set[tuple[str, str, int]]) -> tuple[int, int]:
    rows = list(identities(folder))
    return len(made - set(rows)), len(rows) - len(set(rows))


@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_any_stage_of_any_micro_batch_nothing_is_lost_or_duplicated(tmp_path, stage):
    """Planted: a replay that reads the newest progress (below); an append without its transaction (prove.py)."""
    # Each micro-batch is hit at some stage.
    for batch_id in range(BATCHES) if FULL else [STAGES.index(stage) % BATCHES]:
        folder = tmp_path / str(batch_id)
        batches, made, corrupt = workload(seed=batch_id)
        run_killed(folder, batches, [(batch_id, stage)] * 2)
        assert lost_and_duplicated(folder, made) == (0, 0), f"killed at micro-batch {batch_id}, {stage!r}"
        assert summary(folder) == (len(made), len(made), corrupt)


@pytest.mark.parametrize("mark", ["whole", "damaged"])
def test_a_checkpoint_is_refused_once_another_one_has_written_to_its_tables(tmp_path, mark):
    """It does not know what the other has stored, and would store repeated messages at other positions twice.

    Planted: a number that is not checked (59 readings are stored twice); a damaged number taken for none.
    """
    batches, made, _ = workload(seed=4)
    tables = tmp_path / "tables"

    def start(name: str) -> BatchWriter:
        state = tmp_path / name / "umqtt"
        state.mkdir(parents=True, exist_ok=True)
        writer = BatchWriter(
            tables,
            state,
            on_open=lambda opened: claim(opened, tables, state.parent),
            report=lambda _line: None,
        )
        (tmp_path / name / "metadata").touch()  # as Spark does, once the query has begun
        return writer

    for batch_id in range(2):
        start("a").write(batches[batch_id], batch_id, "a")
    other = start("b")
    for batch_id in range(BATCHES):
        other.write(batches[batch_id], batch_id, "b")
    if mark == "damaged":
        (tables / "umqtt.writer").write_bytes(b"umqtt 1 2 00000000\n{}")
    with pytest.raises(UsageError, match=r"another pipeline has written to the tables .*: give a new --checkpoint"):
        start("a").write(batches[2], 2, "a")
    assert lost_and_duplicated(tables, made) == (0, 0)
    start("c").write(batches[0], 0, "c")
    assert lost_and_duplicated(tables, made) == (0, 0)


def test_killed_at_random_stages_many_times_nothing_is_lost_or_duplicated(tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    batches, made, corrupt = workload(seed)
    # How often each kill happens; in full sweeps once on average.
    times = [0, 1, 2] if FULL else [0, 0, 0, 1, 2]
    kills = [k for k in itertools.product(range(BATCHES), STAGES) for _ in range(rng.choice(times))]
    kills.sort(key=lambda kill: (kill[0], rng.random()))
    run_killed(tmp_path, batches, kills)
    assert lost_and_duplicated(tmp_path, made) == (0, 0)
    assert summary(tmp_path).quarantined == corrupt


@pytest.mark.tier(3)  # a control
def test_the_control_that_reads_the_latest_progress_is_caught(tmp_path, monkeypatch):
    """It reads the newest progress, not that of micro-batch N-1: a replay finds its own rows and skips them."""

    class LatestProgress(Progress):
        def load(self, batch_id: int) -> Seen | None:
            return super().load(batch_id + 1) or super().load(batch_id)

    monkeypatch.setattr(tasks, "Progress", LatestProgress)
    batches, made, _ = workload(seed=1)
    run_killed(tmp_path, batches, [(2, "written")])
    lost, duplicated = lost_and_duplicated(tmp_path, made)
    assert lost > 0 and duplicated == 0


def test_a_new_checkpoint_over_the_same_spool_adds_nothing_to_the_tables(tmp_path):
    batches, made, corrupt = workload(seed=2)
    lines: list[str] = []
    totals: list[Totals] = []
    for query in ("first", "second"):
        writer = BatchWriter(tmp_path, tmp_path / query, report=lines.append)
        for batch_id, batch in enumerate(reversed(batches) if query == "second" else batches):
            writer.write(batch, batch_id, query)
        totals.append(writer.totals)
    assert summary(tmp_path) == (len(made), len(made), corrupt)
    assert len(lines) == 1 and "rebuilt it from" in lines[0]
    read = sum(batch.num_rows for batch in batches)
    assert [(each.messages, each.replayed, each.duplicates) for each in totals] == [(read, 0, 30), (read, read, 0)]


def test_a_new_query_whose_rows_are_new_is_not_taken_for_a_replay(tmp_path):
    batches, made, corrupt = workload(seed=3)
    for query, batch in enumerate(batches):
        BatchWriter(tmp_path, tmp_path / str(query), report=lambda _line: None).write(batch, 0, str(query))
    assert summary(tmp_path) == (len(made), len(made), corrupt)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:50])])
def test_lost_or_damaged_progress_is_rebuilt_from_the_table(tmp_path, damage):
    batches, made, corrupt = workload(seed=4)
    for batch_id, batch in enumerate(batches):
        writer = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None)
        writer.write(batch, batch_id, QUERY)
        for path in (tmp_path / "state").rglob("*.arrow"):
            damage(path)
    assert summary(tmp_path) == (len(made), len(made), corrupt)


@pytest.mark.parametrize("stage", STAGES)
def test_a_micro_batch_that_failed_is_tried_again_by_the_same_writer_without_loss(tmp_path, stage):
    """What the failed attempt put into the set in memory must not count as seen."""
    batches, made, corrupt = workload(seed=7)
    fail = {2: stage}

    def fail_once(reached: str) -> None:
        if fail.get(batch_id) == reached:
            del fail[batch_id]
            raise OSError(28, "No space left on device")

    writer = BatchWriter(tmp_path, tmp_path / "state", on_stage=fail_once, report=lambda _line: None)
    for batch_id, batch in enumerate(batches):
        if batch_id in fail:
            with pytest.raises(OSError, match="No space left"):
                writer.write(batch, batch_id, QUERY)
        writer.write(batch, batch_id, QUERY)
    assert summary(tmp_path) == (len(made), len(made), corrupt)


def test_only_what_a_replay_needs_is_kept_of_the_progress(tmp_path):
    batches, _, _ = workload(seed=5)
    writer = BatchWriter(tmp_path, tmp_path / "state")
    for batch_id, batch in enumerate(batches):
        writer.write(batch, batch_id, QUERY)
        kept = sorted(path.name for path in (tmp_path / "state" / "bucket-0001").iterdir())
        assert kept == [f"changes-{i}.arrow" for i in range(1, batch_id + 1)] + ["progress-0.arrow"]


def test_the_totals_count_what_came_and_where_it_went(tmp_path):
    batches, made, corrupt = workload(seed=6)
    writer = BatchWriter(tmp_path, tmp_path / "state")
    for batch_id, batch in enumerate(batches):
        writer.write(batch, batch_id, QUERY)
    totals = writer.totals
    assert (totals.batches, totals.messages) == (BATCHES, sum(batch.num_rows for batch in batches))
    assert (totals.rows_silver, totals.rows_quarantined, totals.duplicates) == (len(made), corrupt, 30)
    assert (totals.boots, totals.open_gaps) == (5, 0)


def test_clocks_in_1970_and_2100_change_only_their_own_rows(tmp_path):
    payloads = [record("a", "1-a", 0), record("b", "1-b", 0, ts=0), record("c", "1-c", 0, ts=4_102_444_800_000)]
    writer = BatchWriter(tmp_path, tmp_path / "state")
    writer.write(messages(payloads).select(MESSAGE_COLUMNS), 0, QUERY)
    writer.write(messages([record("a", "1-a", 1)]).select(MESSAGE_COLUMNS), 1, QUERY)
    from deltalake import DeltaTable

    rows = sorted(
        DeltaTable(tmp_path / "silver").to_pyarrow_table().to_pylist(), key=lambda r: (r["device_id"], r["seq"])
    )
    assert [(r["device_id"], r["seq"], r["clock_ok"], r["event_ts_from"]) for r in rows] == [
        ("a", 0, True, "ts"),
        ("a", 1, True, "ts"),
        ("b", 0, False, "received"),
        ("c", 0, False, "received"),
    ]
    assert [r["ts"].year for r in rows] == [2026, 2026, 1970, 2100], "what the device said is kept as it is"
