"""Laws of startingTimestamp and endingTimestamp: the rows are those of a filter."""

import os
import random
from pathlib import Path

import pytest
from spark_helpers import RECEIVED_MS, TOPIC, publish_packet
from test_offsets import payloads

from spark_ingest.source.offsets import SpoolTree
from spark_ingest.spool.view import Spools
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


def test_the_rows_are_those_of_a_filter_over_everything(written, spools, rng):
    """Planted: <= instead of <."""
    for _ in range(WINDOWS):
        since, until = (rng.randrange(RECEIVED_MS - 200, RECEIVED_MS + 900) for _ in range(2))
        for window in ((since, until), (since, None), (None, until)):
            tree = SpoolTree(spools, since_ms=window[0], until_ms=window[1])
            wanted = [p for at, p in written if (window[0] or 0) <= at and (window[1] is None or at < window[1])]
            assert payloads(tree, tree.ranges(tree.earliest(), tree.latest())) == wanted


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
