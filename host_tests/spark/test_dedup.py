"""Laws of deduplication: a set union, whatever the order, the repetitions and the micro-batches."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ingest.pipeline.deduplicate.dedup import STATE_SCHEMA, Limits, Seen
from spark_ingest.pipeline.deduplicate.progress import Progress

IDENTITY = st.tuples(st.sampled_from(["a", "b", "a\x01"]), st.sampled_from(["1-x", "2-y"]), st.integers(0, 30))
FAR_IDENTITY = st.tuples(st.just("a"), st.just("1-x"), st.sampled_from([0, 1, 5, 2**40, 2**63 - 2, 2**63 - 1]))


def readings(identities: list[tuple[str, str, int]]) -> pa.Table:
    columns = list(zip(*identities, strict=True)) or [[], [], []]
    types = [pa.string(), pa.string(), pa.int64()]
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], ["device_id", "boot", "seq"])


def take(seen: Seen, batch: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    return [batch[row] for row in seen.take(readings(batch)).rows.tolist()]


def missing_ranges(identities: set[tuple[str, str, int]]) -> int:
    """Count the missing ranges of seq in a slow and simple way."""
    return sum(seq > 0 and (device, boot, seq - 1) not in identities for device, boot, seq in identities)


@given(st.lists(st.tuples(st.lists(IDENTITY | FAR_IDENTITY, max_size=40), st.booleans()), max_size=8))
def test_any_batching_order_and_duplication_keeps_each_identity_exactly_once(batches):
    seen, kept, union = Seen(), [], set()
    for batch, is_restarted in batches:
        before = set(union)
        union |= set(batch)
        new = take(seen, batch)
        assert set(new) == union - before, "no reading is new that was seen before, and none is lost"
        kept += new
        assert seen.open_gaps == missing_ranges(union), "bounded by what is really missing"
        if is_restarted:
            table, seen = seen.to_table(), Seen()
            seen.apply(table)
    assert sorted(kept) == sorted(union)
    assert len(seen) == len({identity[:2] for identity in union})


@given(st.lists(st.lists(IDENTITY, max_size=40), max_size=8))
def test_the_changes_of_each_batch_make_the_whole_set(batches):
    """Planted: a boot whose readings are all duplicates, or that came first in an earlier batch, is no change."""
    seen, copy = Seen(), Seen()
    for batch in batches:
        take(seen, batch)
        changes = seen.take_changes()
        boots = list(zip(changes["device_id"].to_pylist(), changes["boot"].to_pylist(), strict=True))
        assert sorted(boots) == sorted({identity[:2] for identity in batch})
        copy.apply(changes)
        assert copy.to_table() == seen.to_table()


@given(st.permutations(range(40)), st.integers(1, 40))
def test_a_boot_whose_readings_have_all_arrived_has_no_gaps(order, size):
    seen = Seen()
    for i in range(0, len(order), size):
        take(seen, [("a", "1-x", seq) for seq in order[i : i + size]])
    assert (len(seen), seen.open_gaps) == (1, 0)
    assert seen.to_table().to_pylist() == [
        {"device_id": "a", "boot": "1-x", "highest": 39, "gaps": [], "last_us": -(1 << 62)}
    ]


def test_of_equal_readings_the_first_is_kept_and_order_is_kept():
    identities = [("a", "1-x", 3), ("a", "1-x", 1), ("a", "1-x", 3), ("b", "1-x", 1), ("a", "1-x", 1)]
    assert Seen().take(readings(identities)).rows.tolist() == [0, 1, 3]


def test_boots_of_different_devices_do_not_mix_even_when_their_names_join_to_the_same_text():
    seen = Seen()
    assert take(seen, [("ab", "c", 0), ("a", "bc", 0)]) == [("ab", "c", 0), ("a", "bc", 0)]
    assert len(seen) == 2


def test_the_state_grows_with_boots_and_gaps_and_not_with_readings():
    seen = Seen()
    for start in range(0, 100_000, 10_000):
        take(seen, [("a", "1-x", seq) for seq in range(start, start + 10_000)])
    assert seen.to_table().schema == STATE_SCHEMA
    assert seen.to_table().nbytes < 250


@pytest.mark.parametrize("limits", [Limits(boots=120), Limits(gaps=300)])
def test_a_device_that_fills_the_set_pushes_out_none_of_fifty(limits):
    """Planted: the boots that were silent for longest leave, whoever has most."""
    seen = Seen(recall=lambda _boots: readings([]))
    quiet = [(f"quiet{i}", "1-x", seq) for i in range(50) for seq in (0, 2, 4)]
    greedy = [("greedy", f"{boot}-x", seq) for boot in range(200) for seq in range(0, 20, 2)]
    for at, batch in enumerate((quiet, greedy)):
        seen.take(readings(batch).append_column("received_ts", pa.array([at] * len(batch), pa.timestamp("us"))))
    assert seen.shrink(limits) and len(seen) <= limits.boots and seen.open_gaps <= limits.gaps
    stay = {(row["device_id"], row["highest"]) for row in seen.to_table().to_pylist()}
    assert stay >= {(f"quiet{i}", 4) for i in range(50)}
    assert len(seen) > 65, "and no more leave than need to"
    assert seen.shrink(limits) == 0


def test_more_boots_than_hashes_may_be_kept_leave_and_none_of_their_readings_counts_twice(monkeypatch):
    """Planted: a recalled boot takes its hash along, which is another's too; what an earlier process left out is asked
    for in vain."""
    monkeypatch.setattr("spark_ingest.pipeline.deduplicate.dedup.MAX_ARCHIVED", 50)
    made = [("a", f"{boot}-x", seq) for boot in range(500) for seq in (0, 1)]
    silver = []

    def recall(boots):
        return readings([each for each in silver if each[:2] in boots])

    seen = Seen(recall)
    for at in range(0, 1000, 100):
        assert take(seen, made[at : at + 100]) == made[at : at + 100]
        silver += made[at : at + 100]
        seen.shrink(Limits(boots=10))
    again = Seen(recall)
    again.apply(seen.to_table(), seen.archived)
    assert len(again.archived) <= 50 and again.archived.nbytes <= 400
    for at in range(0, 1000, 20):
        assert take(again, made[at : at + 20]) == []
    again.shrink(Limits(boots=10))
    assert take(again, made) == []
    assert take(again, [("a", "0-x", 2), ("b", "0-x", 0)]) == [("a", "0-x", 2), ("b", "0-x", 0)]
    assert len(again.archived) <= 50


def test_an_empty_batch_changes_nothing():
    seen = Seen()
    assert take(seen, []) == []
    assert seen.to_table().num_rows == 0


def test_what_an_attempt_saved_whose_plan_was_dropped_does_not_count(tmp_path):
    """Planted: the whole set saved by the first attempt stays beside the changes of the second."""
    first = Seen()
    take(first, [("a", "1-x", 0)])
    Progress(tmp_path).save(0, first)
    dropped = Progress(tmp_path, whole_every=1)
    seen = dropped.load(0)
    assert seen is not None
    take(seen, [("a", "1-x", seq) for seq in range(100)])
    dropped.save(1, seen)
    replanned = Progress(tmp_path)
    seen = replanned.load(0)
    assert seen is not None
    take(seen, [("a", "1-x", 1)])
    replanned.save(1, seen)
    assert (tmp_path / "changes-1.arrow").exists()
    after = Progress(tmp_path).load(1)
    assert after is not None and after.to_table() == seen.to_table()
