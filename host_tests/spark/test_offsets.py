"""Laws of offsets, limits and partitions, without Spark."""

import json
import math
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_helpers import fill

from spark_ingest.errors import DataLoss, UsageError
from spark_ingest.source.offsets import Offset, Range, SpoolTree, bytes_between, lag_behind
from spark_ingest.source.rows import read_range
from spark_ingest.spool.blocks import BLOCK_HEADER, BlockHeader, Position, Run, encode_position, segment_path


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
    """Fill two spools: north with 3 segments of 5 groups of 4, south with 1 segment of 10 groups of 4."""
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


@pytest.mark.parametrize("most", [1, 4, 5, 9, 1000])
@pytest.mark.parametrize("min_partitions", [None, 3])
def test_no_partition_has_more_messages_than_it_may_but_a_block_alone(two_spools, most, min_partitions):
    """Planted: messages counted per range, so that a partition of several ranges has more; a cut after the block."""
    tree = SpoolTree(two_spools)
    parts = tree.cut(tree.ranges(tree.earliest(), tree.latest()), min_partitions, max_rows=most)
    rows = [payloads(tree, list(part)) for part in parts]
    assert all(rows) and max(map(len, rows)) <= max(most, 4)
    assert [payload for some in rows for payload in some] == payloads(tree, tree.ranges({}, tree.latest()))
    assert len(parts) >= (min_partitions or 1)


class Planned:
    """A spool whose blocks exist only as headers, so that they may be large."""

    def __init__(self, name: str, blocks: list[BlockHeader], segments: int) -> None:
        self.name = self.where = name
        self.blocks, self._segments = blocks, segments
        self._per_segment = -(-len(blocks) // segments)
        self._ends = [self._in(segment)[-1].end if self._in(segment) else 0 for segment in range(segments)]

    def _in(self, segment: int) -> list[BlockHeader]:
        position, found = 0, []
        for block in self.blocks[segment * self._per_segment : (segment + 1) * self._per_segment]:
            start = position + BLOCK_HEADER.size
            position = start + block.end - block.start
            found.append(block._replace(start=start, end=position))
        return found

    def durable(self) -> Position:
        return Position("u", self._segments - 1, self._ends[-1])

    def runs(self) -> list[Run]:
        return [Run(0, "u")]

    def segments(self) -> list[int]:
        return list(range(self._segments))

    def segment_end(self, segment: int, durable: Position) -> int:
        return self._ends[segment]

    def headers(self, segment: int, start: int, end: int):
        return (block for block in self._in(segment) if start < block.end <= end)


class PlannedTree:
    def __init__(self, spools: list[Planned]) -> None:
        self._spools = {spool.name: spool for spool in spools}

    def names(self) -> list[str]:
        return sorted(self._spools)

    def view(self, name: str) -> Planned:
        return self._spools[name]


def test_no_micro_batch_exceeds_a_limit_but_by_one_block_alone_and_none_starves():
    """Planted: a limit that may be exceeded by the block that reaches it, as one block of each collector could."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(1000 if os.environ.get("UMQTT_FULL_SWEEPS") else 40):
        largest = 2 ** rng.uniform(5, 24)

        def block() -> BlockHeader:
            size = int(2 ** rng.uniform(5, math.log2(largest)))  # noqa: B023
            return BlockHeader(0, size, rng.randint(1, max(1, size // 30)), 0, rng.randrange(1000))

        spools = [Planned(f"s{i}", [block() for _ in range(rng.randrange(40))], rng.randint(1, 4)) for i in range(5)]
        tree = SpoolTree(PlannedTree(spools))
        max_bytes = rng.choice([None, int(2 ** rng.uniform(6, 26))])
        max_rows = rng.choice([None, int(2 ** rng.uniform(0, 20))]) if max_bytes else rng.randint(1, 10**6)
        at, target = tree.earliest(), tree.latest()
        waiting = {spool.name: list(spool.blocks) for spool in spools}
        while at != target:
            end = tree.advance(at, target, max_rows=max_rows, max_bytes=max_bytes)
            assert end != at, "never without progress"
            taken = []
            oldest = min(((blocks[0].received_ms, name) for name, blocks in waiting.items() if blocks), default=None)
            for r in tree.ranges(at, end):
                for header in tree.spools.view(r.collector).headers(r.segment, r.start, r.end):
                    expected = waiting[r.collector].pop(0)
                    assert (expected.messages, expected.received_ms) == (header.messages, header.received_ms)
                    taken.append((header.messages, header.end - header.start + BLOCK_HEADER.size, r.collector))
            if len(taken) > 1:
                assert sum(rows for rows, _, _ in taken) <= (max_rows or math.inf)
                assert sum(size for _, size, _ in taken) <= (max_bytes or math.inf)
            assert oldest is None or oldest[1] in [name for _, _, name in taken], "who waits longest comes first"
            at = end
        assert not any(waiting.values()), "everything was read"


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
    """Provide a spool with two segments, and an offset in the first."""
    fill(tmp_path / "north", numbered(0, 2, 3))
    offset = SpoolTree(tmp_path).latest()
    fill(tmp_path / "north", numbered(6, 2, 3))
    return tmp_path, offset


def loses(root: Path, start: Offset, match: str, still_read: int) -> None:
    """Check that this is an error, and skipped with failOnDataLoss=false."""
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
    assert tree.remove_before(offset, read_for_s=0) == 0, "the segment that an offset points into stays"
    middle = tree.advance(offset, tree.latest(), max_rows=1)
    assert tree.remove_before(middle, read_for_s=60) == 0, "read just now"
    assert tree.remove_before(middle, read_for_s=0) == 1
    assert len(payloads(tree, tree.ranges(middle, tree.latest()))) == 3
    assert tree.earliest()["north"]["segment"] == 1


def test_retention_counts_from_when_a_segment_was_read_and_not_from_when_it_was_written(tmp_path):
    """Planted: the time of the segment counts, which after an outage is old before it is read."""
    week_s = 168 * 3600.0
    for run in range(4):
        fill(tmp_path / "north", numbered(10 * run, 1, 2))
    for path in (tmp_path / "north").glob("*.seg"):
        os.utime(path, (0, 0))
    view = SpoolTree(tmp_path).spools.view("north")
    runs = {run.segment: run.spool for run in view.runs()}

    def read_to(segment: int, read_for_s: float) -> list[int]:
        view.remove_before(Position(runs[segment], segment, 0), read_for_s=read_for_s)
        return view.segments()

    assert read_to(2, week_s) == [0, 1, 2, 3], "read just now"
    for segment in (0, 1):
        mark = tmp_path / "north" / f"{segment:010d}.read"
        written = mark.stat().st_mtime - week_s - 60
        os.utime(mark, (written, written))
    assert read_to(3, week_s) == [2, 3], "2 has been read only now"
    assert read_to(3, week_s) == [2, 3]
    assert sorted(path.name for path in (tmp_path / "north").glob("*.read")) == ["0000000002.read"]
    assert read_to(3, 0) == [3]


def test_the_lag_is_the_bytes_between_an_offset_and_the_durable_position(consumed):
    root, offset = consumed
    latest = SpoolTree(root).latest()
    assert bytes_between(latest, latest, root) == 0
    assert bytes_between(offset, latest, root) == latest["north"]["position"]
    assert bytes_between({}, latest, root) == offset["north"]["position"] + latest["north"]["position"]


def test_the_lag_is_told_for_each_collector_also_for_one_that_nobody_has_read(consumed):
    """Planted: only the collectors that the offset names."""
    root, offset = consumed
    fill(root / "south", numbered(0, 1, 3))
    latest = SpoolTree(root).latest()
    behind = lag_behind(offset, root)
    assert {name: place.pop("lagBytes") for name, place in behind.items()} == {
        name: latest[name]["position"] for name in ("north", "south")
    }
    assert behind == latest


def test_a_folder_that_does_not_exist_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="give the --spool folder of the collector"):
        SpoolTree(tmp_path / "nowhere").latest()
