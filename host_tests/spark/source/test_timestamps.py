"""Laws of startingTimestamp and endingTimestamp: the rows of a filter; segments outside are not opened."""

import os
import random
from pathlib import Path

import pytest
from spark_helpers import RECEIVED_MS, TOPIC, publish_packet
from test_offsets import payloads

from spark_ingest.source.offsets import SpoolTree
from spark_ingest.spool.blocks import known_times, segment_path, times_path
from spark_ingest.spool.view import Spools, SpoolView
from spark_ingest.spool.writer import Spool

WINDOWS = 500 if os.environ.get("UMQTT_FULL_SWEEPS") else 40


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


@pytest.fixture
def written(tmp_path: Path, rng: random.Random) -> list[tuple[int, bytes]]:
    """Write two spools of several runs and segments, by a clock that is set back now and then.

    Returns (received, payload) of each message.
    """
    made: list[tuple[int, bytes]] = []
    for name in ("north", "south"):
        now = RECEIVED_MS
        for _run in range(3):
            with Spool(tmp_path / name, segment_bytes=300) as spool:
                for _ in range(rng.randrange(12)):
                    now += rng.choice((0, 1, 5, 50, 50, -60))
                    payload = b"%s %d" % (name.encode(), len(made))
                    made.append((now, payload))
                    spool.append(publish_packet(TOPIC, payload), 1, now)
    return made


@pytest.fixture
def spools(tmp_path: Path, written: list[tuple[int, bytes]]) -> Spools:
    return Spools(tmp_path)


def test_the_rows_are_those_of_a_filter_over_everything_and_segments_outside_are_not_opened(
    tmp_path, written, spools, rng, monkeypatch
):
    """Planted: <= instead of <; the first block's time for the whole segment's; every segment is opened."""
    opened: set[tuple[str, int]] = set()

    def spy(name: str) -> None:
        method = getattr(SpoolView, name)

        def watched(view: SpoolView, segment: int, *rest: int) -> object:
            opened.add((view.name, segment))
            return method(view, segment, *rest)

        monkeypatch.setattr(SpoolView, name, watched)

    spy("read")
    spy("headers")
    skipped = 0
    for _ in range(WINDOWS):
        since, until = (rng.randrange(RECEIVED_MS - 200, RECEIVED_MS + 900) for _ in range(2))
        for window in ((since, until), (since, None), (None, until)):
            tree = SpoolTree(spools, since_ms=window[0], until_ms=window[1])
            opened.clear()
            ranges = tree.ranges(tree.earliest(), tree.latest())
            wanted = [p for at, p in written if (window[0] or 0) <= at and (window[1] is None or at < window[1])]
            outside = {
                (name, times.segment)
                for name in ("north", "south")
                for times in spools.view(name).times()
                if times.last_ms < (window[0] or 0) or (window[1] is not None and times.first_ms >= window[1])
            }
            assert payloads(tree, ranges) == wanted
            assert not opened & outside
            skipped += len(outside)
    assert skipped


@pytest.mark.parametrize("limit", [{"max_rows": 1}, {"max_rows": 5}, {"max_bytes": 200}])
def test_a_stream_reads_the_same_rows_whatever_its_limits(written, spools, limit):
    since = RECEIVED_MS + 60
    tree = SpoolTree(spools, since_ms=since)
    at, target, got = tree.earliest(), tree.latest(), []
    while at != target:
        end = tree.advance(at, target, **limit)
        assert end != at, "never without progress"
        got += payloads(tree, tree.ranges(at, end))
        at = end
    assert sorted(got) == sorted(payload for received, payload in written if received >= since)


def test_a_segment_without_a_note_or_with_another_runs_is_looked_into(tmp_path):
    """Planted: a note is used whichever run it belongs to."""
    with Spool(tmp_path / "north", segment_bytes=1) as spool:
        for i in range(3):
            spool.append(publish_packet(TOPIC, b"%d" % i), 1, RECEIVED_MS + i)
    tree = SpoolTree(tmp_path, since_ms=RECEIVED_MS + 1)
    folder = tmp_path / "north"
    first, second, third = known_times(folder)
    assert [(one.first_ms, one.last_ms) for one in (first, second, third)] == [(RECEIVED_MS + i,) * 2 for i in range(3)]
    times_path(folder, second).rename(times_path(folder, second._replace(spool="0" * 32, first_ms=0, last_ms=0)))
    times_path(folder, third).unlink()
    assert payloads(tree, tree.ranges(tree.earliest(), tree.latest())) == [b"1", b"2"]
    durable = tree.spools.view("north").durable()
    assert SpoolView(folder).remove_before(durable, read_for_s=0) == 2
    assert not segment_path(folder, 0).exists() and not list(folder.glob("0000000000*")), "its note goes with a segment"
