"""Laws of readings that silver has: same payload, another payload, and boots no longer in the set of seen ones."""

import contextlib
import os
import random

from deltalake import DeltaTable
from gold_fleet import QUERY, Killed, table_of, telemetry
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_helpers import RECEIVED_MS, record
from test_dedup import IDENTITY, readings

from spark_ingest.pipeline.decode.messages import part
from spark_ingest.pipeline.deduplicate.dedup import Limits, Seen
from spark_ingest.pipeline.deduplicate.progress import Progress
from spark_ingest.pipeline.write.batch import STAGES, BatchWriter

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
TINY = Limits(boots=2, gaps=2, gaps_of_a_boot=1, idle_days=0.001)


def rows(folder, name):
    return DeltaTable(str(folder / name)).to_pyarrow_table().to_pylist()


def test_another_payload_under_a_known_identity_is_quarantined_and_the_same_one_counted(tmp_path):
    def reading(seq, value):
        return (*telemetry("a", "1-x", seq, RECEIVED_MS, 5, t=value), RECEIVED_MS)

    first = [reading(0, 1.0), reading(1, 1.0), reading(1, 2.0), reading(1, 1.0)]
    second = [reading(0, 3.0), reading(0, 1.0), reading(2, 1.0)]
    # The same identity without a clock: found by searching the whole table.
    second.append((*telemetry("a", "1-x", 0, None, 5, t=1.0), RECEIVED_MS))
    for stage in STAGES if FULL else ("written", "silver committed", "quarantine committed"):
        folder = tmp_path / stage.replace(" ", "-")

        def stop(reached, stage=stage):
            if reached == stage:
                raise Killed(reached)

        BatchWriter(folder, folder / "state").write(table_of(first), 0, QUERY)
        with contextlib.suppress(Killed):
            BatchWriter(folder, folder / "state", on_stage=stop).write(table_of(second, 4), 1, QUERY)
        BatchWriter(folder, folder / "state").write(table_of(second, 4), 1, QUERY)
        assert sorted((row["seq"], dict(row["metrics"])["t"]) for row in rows(folder, "silver")) == [
            (0, 1.0),
            (1, 1.0),
            (2, 1.0),
        ]
        conflicts = rows(folder, "quarantine")
        assert sorted(row["position"] for row in conflicts) == [2, 4, 7], stage
        assert all(row["reason"].startswith("identity conflict") for row in conflicts)
        assert sorted(row["position"] for row in rows(folder, "duplicates")) == [3, 5], stage


@settings(max_examples=60 if FULL else 25, deadline=None)
@given(st.lists(st.tuples(st.lists(IDENTITY, max_size=25), st.booleans()), max_size=8))
def test_boots_that_have_left_the_set_are_asked_for_in_silver_and_never_guessed(tmp_path_factory, batches):
    folder = tmp_path_factory.mktemp("state")
    silver: list[tuple[str, str, int]] = []

    def recall(boots):
        return readings([identity for identity in silver if identity[:2] in boots])

    progress = Progress(folder, TINY, whole_every=2)
    seen, union = Seen(), set()
    for batch_id, (batch, is_restarted) in enumerate(batches):
        seen.recall = recall
        new = [batch[row] for row in seen.take(readings(batch)).rows.tolist()]
        assert set(new) == set(batch) - union and len(new) == len(set(new))
        union |= set(batch)
        silver += new
        progress.save(batch_id, seen)
        progress.remove_before(batch_id - 1)
        if is_restarted:
            seen = progress.load(batch_id)
            assert seen is not None


def test_the_set_stays_within_its_limits_however_many_boots_there_were(tmp_path):
    progress, seen = Progress(tmp_path, Limits(boots=50, gaps=200), whole_every=1), Seen()
    seen.recall = lambda _boots: readings([])
    rng = random.Random(1)
    boots = 300 if FULL else 100
    for number in range(boots):
        seen.take(readings([("a", f"{number}-x", seq) for seq in rng.sample(range(100), 20)]))
        progress.save(number, seen)
        assert len(seen) <= 50 and seen.open_gaps <= 200
    assert len(seen.archived) + len(seen) >= boots


def test_a_device_whose_name_no_table_can_tell_from_another_s_boot_ends_in_quarantine():
    sent = [("fleet/a\0b/status", b'{"online":true,"boot":"1-x"}'), ("fleet/a\0b/log", b'{"text":"x"}')]
    parts = part(table_of([(*message, RECEIVED_MS) for message in sent]))
    assert [row["reason"] for row in parts.quarantined.to_pylist()] == [
        "status: the topic holds U+0000",
        "log: the topic holds U+0000",
    ]
    assert parts.status.num_rows == parts.logs.num_rows == 0


def test_each_topic_s_messages_end_in_their_own_table_or_in_quarantine():
    status = b'{"online":true,"boot":"1-x","fw":"0.1","reason":"boot","cause":"power"}'
    log = b'{"level":"warning","text":"2 dropped","boot":"1-x","dropped_seq":[[3,4]],"suppressed":2}'
    sent = [
        ("fleet/a/status", status),
        ("fleet/a/status", b""),
        ("fleet/a/status", b'{"online":1}'),
        ("fleet/a/log", log),
        ("fleet/a/log", b'{"dropped_seq":[[4,3]]}'),
        ("fleet/a/reply", b"{}"),
        ("fleet/a/telemetry", record("a", "1-x", 0)),
        ("elsewhere/telemetry", record("a", "1-x", 5)),
        ("fleet/a/telemetry", record("a", "1-x", 1)),
    ]
    parts = part(table_of([(*message, RECEIVED_MS) for message in sent]))
    assert [row["seq"] for row in parts.readings.to_pylist()] == [0, 1]
    assert [(row["online"], row["reason"], dict(row["extra"])) for row in parts.status.to_pylist()] == [
        (True, "boot", {"cause": '"power"'}),
        (False, "cleared", {}),
    ]
    (logged,) = parts.logs.to_pylist()
    assert (logged["dropped_seq"], dict(logged["extra"])) == ([{"first": 3, "last": 4}], {"suppressed": "2"})
    assert sorted(row["reason"].split(":")[0] for row in parts.quarantined.to_pylist()) == [
        "log",
        "status",
        "the topic is not fleet/DEVICE/..., so nothing vouches for id 'a'",
        "unknown version v=None",
    ]
