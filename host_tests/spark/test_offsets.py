"""Laws of offsets, limits and partitions, without Spark."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_helpers import fill

from spark_ingest.errors import DataLoss, UsageError
from spark_ingest.source.offsets import Offset, Range, SpoolTree, bytes_between
from spark_ingest.source.rows import read_range
from spark_ingest.spool.blocks import Position, encode_position, segment_path


def payloads(tree: SpoolTree, ranges: list[Range]) -> list[bytes]:
    return [
        payload
        for r in ranges
        for batch in read_range(tree.spools.view(r.collector), r.spool, r.segment, r.start, r.end)
        for payload in batch["payload"].to_pylist()
    ]


def numbered(first: int, groups: int, size: int) -> list[list[bytes]]:
    return [[b"%d" % (first + size * g + i) for i in range(size)] for g in range(groups)]


@pytest.fixture(scope="module")
def two_spools(tmp_path_factory) -> Path:
    """north: 3 segments of 5 groups of 4; south: 1 of 10 groups of 4."""
    root = tmp_path_factory.mktemp("spools")
    for run in range(3):
        fill(root / "north", numbered(20 * run, 5, 4))
    fill(root / "south", numbered(1000, 10, 4))
    return root


ALL = {b"%d" % n for n in [*range(60), *range(1000, 1040)]}


@pytest.mark.parametrize("limit", [{"max_rows": 1}, {"max_rows": 7}, {"max_bytes": 1}, {"max_bytes": 500}])
def test_limited_steps_reach_the_target_reading_everything_once_in_order(two_spools, limit):
    tree = SpoolTree(two_spools)
    target, at, got, steps = tree.latest(), tree.earliest(), [], 0
    while at != target:
        end = tree.advance(at, target, **limit)
        assert end != at, "never without progress"
        step = payloads(tree, tree.ranges(at, end))
        if "max_rows" in limit:
            assert len(step) <= limit["max_rows"] + 2 * 4, "at most one block beyond the limit in each spool"
        got += step
        at, steps = end, steps + 1
    assert steps > 3
    assert len(got) == len(ALL) and set(got) == ALL
    north = [int(p) for p in got if int(p) < 1000]
    assert north == sorted(north)


def test_limits_are_shared_in_proportion_to_what_waits(two_spools):
    tree = SpoolTree(two_spools)
    step = payloads(tree, tree.ranges({}, tree.advance(tree.earliest(), tree.latest(), max_rows=50)))
    assert 26 <= sum(int(p) < 1000 for p in step) <= 38


@given(minimum=st.none() | st.integers(1, 60))
def test_partitions_hold_every_message_once_and_are_about_as_many_as_asked(two_spools, minimum):
    tree = SpoolTree(two_spools)
    ranges = tree.ranges({}, tree.latest())
    parts = tree.cut(ranges, minimum)
    assert [p for part in parts for p in payloads(tree, list(part))] == payloads(tree, ranges)
    blocks = 25
    assert min(minimum or 1, blocks) - 1 <= len(parts) <= min(minimum or 1, blocks)


def test_earliest_latest_and_json_are_starting_offsets_and_nothing_else_is(two_spools):
    tree = SpoolTree(two_spools)
    assert tree.starting("earliest")["north"]["segment"] == 0
    assert tree.starting("latest") == tree.latest()
    assert tree.starting(json.dumps(tree.latest())) == tree.latest()
    mixed = json.dumps({"north": "latest", "south": "earliest"})
    assert tree.starting(mixed) == {"north": tree.latest()["north"], "south": tree.earliest()["south"]}
    place = '{"north": {"spool": "x", "segment": %s, "position": %s}}'
    numbers = [("-1", "0"), ("0", "-1"), ("0", "1.5"), ("true", "0"), ("0", "Infinity"), ("0", str(1 << 63))]
    wrong = ["newest", "[]", "5", '{"north": {"segment": 0}}', '{"north": 5}', '{"east": "latest"}', "[" * 100_000]
    for nonsense in (*wrong, *(place % pair for pair in numbers)):
        with pytest.raises(UsageError, match="startingOffsets"):
            tree.starting(nonsense)


def test_a_collector_that_appears_later_is_read_from_its_beginning(two_spools):
    tree = SpoolTree(two_spools)
    start: Offset = {"north": tree.latest()["north"]}
    assert len(payloads(tree, tree.ranges(start, tree.advance(start, tree.latest())))) == 40


@pytest.fixture
def consumed(tmp_path) -> tuple[Path, Offset]:
    """A spool with two segments, and an offset in the first."""
    fill(tmp_path / "north", numbered(0, 2, 3))
    offset = SpoolTree(tmp_path).latest()
    fill(tmp_path / "north", numbered(6, 2, 3))
    return tmp_path, offset


def loses(root: Path, start: Offset, match: str, still_read: int) -> None:
    """It is an error, and passed over with failOnDataLoss=false."""
    with pytest.raises(DataLoss, match=match):
        tree = SpoolTree(root)
        tree.advance(start, tree.latest())
    tree = SpoolTree(root, fail_on_data_loss=False)
    assert len(payloads(tree, tree.ranges(start, tree.advance(start, tree.latest())))) == still_read


def test_a_spool_made_anew_is_noticed_although_its_segment_numbers_are_the_same(consumed):
    root, offset = consumed
    shutil.rmtree(root / "north")
    fill(root / "north", numbered(0, 9, 3))
    loses(root, offset, "was made anew", 27)


def test_a_removed_segment_is_data_loss(consumed):
    root, offset = consumed
    segment_path(root / "north", 0).unlink()
    loses(root, offset, "0000000000.seg was removed before it was read", 6)


def test_a_removed_spool_is_data_loss(consumed):
    root, offset = consumed
    shutil.rmtree(root / "north")
    loses(root, offset, "is gone", 0)


def test_a_spool_restored_from_an_old_copy_is_data_loss(consumed):
    root, _ = consumed
    newest = SpoolTree(root).latest()
    shutil.copytree(root / "north", root.parent / "kept" / "north")
    fill(root / "north", [[b"x"]])
    beyond = SpoolTree(root).latest()
    shutil.rmtree(root / "north")
    shutil.move(root.parent / "kept" / "north", root / "north")
    with pytest.raises(DataLoss, match="restored from an old copy"):
        SpoolTree(root).ranges(newest, beyond)


@pytest.mark.parametrize("later_runs", [0, 1, 2, 3])
def test_a_restored_spool_that_goes_on_is_data_loss_wherever_it_has_got_to(tmp_path, later_runs):
    root, kept = tmp_path / "spool", tmp_path / "kept"
    fill(root / "north", numbered(0, 2, 3))
    shutil.copytree(root, kept)
    fill(root / "north", numbered(6, 2, 3))
    fill(root / "north", numbered(12, 2, 3))
    seen = SpoolTree(root).latest()
    shutil.rmtree(root)
    shutil.move(kept, root)
    for run in range(later_runs):
        fill(root / "north", numbered(100 + 9 * run, 3, 3))
    loses(root, seen, "was made anew or restored from an old copy", 6 + 9 * later_runs)


def test_a_position_that_went_back_in_its_own_segment_is_data_loss(consumed):
    root, _ = consumed
    newest = SpoolTree(root).latest()
    view = SpoolTree(root).spools.view("north")
    first, second = (header.end for header in view.headers(1, 0, newest["north"]["position"]))
    assert second == newest["north"]["position"]
    place = Position(newest["north"]["spool"], 1, first)
    (root / "north" / "pos").write_bytes(encode_position(place))
    loses(root, newest, "ends before an offset that was read from it", 9)


def test_retention_removes_whole_committed_segments_of_that_age_and_reading_goes_on(consumed):
    root, offset = consumed
    tree = SpoolTree(root)
    assert tree.remove_before(offset, older_than=1e12) == 0, "the segment that an offset points into stays"
    middle = tree.advance(offset, tree.latest(), max_rows=1)
    assert tree.remove_before(middle, older_than=0.0) == 0, "too young"
    assert tree.remove_before(middle, older_than=1e12) == 1
    assert len(payloads(tree, tree.ranges(middle, tree.latest()))) == 3
    assert tree.earliest()["north"]["segment"] == 1


def test_the_lag_is_the_bytes_between_an_offset_and_the_durable_position(consumed):
    root, offset = consumed
    latest = SpoolTree(root).latest()
    assert bytes_between(latest, latest, root) == 0
    assert bytes_between(offset, latest, root) == latest["north"]["position"]
    assert bytes_between({}, latest, root) == offset["north"]["position"] + latest["north"]["position"]


def test_a_folder_that_does_not_exist_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="give the --spool folder of the collector"):
        SpoolTree(tmp_path / "nowhere").latest()
