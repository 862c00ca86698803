"""Laws of event_ts: an implausible clock never places a reading, and one device's clock never affects another's."""

import numpy as np
import pyarrow as pa

from spark_ingest.pipeline.deduplicate.clock import AHEAD_US, BEHIND_US, event_times

TIMESTAMP = pa.timestamp("us", tz="UTC")
NOW = 1_795_000_000_000_000
SECOND = 1_000_000


def placed(rows: list[tuple[int, int | None, int | None]], received: int = NOW) -> list[tuple[int, bool, str]]:
    """Map (boot, ts in µs, up in ms) to (event_ts in µs, clock_ok, event_ts_from)."""
    times = event_times(
        np.array([boot for boot, _, _ in rows], dtype=np.int64),
        pa.array([ts for _, ts, _ in rows], TIMESTAMP),
        pa.array([up for _, _, up in rows], pa.int64()),
        pa.array([received] * len(rows), TIMESTAMP),
    )
    event_ts = times.event_ts.cast(pa.int64()).to_pylist()
    return list(zip(event_ts, times.clock_ok.to_pylist(), times.event_ts_from.to_pylist(), strict=True))


def test_a_plausible_clock_is_believed_up_to_its_limits():
    for ts in (NOW, NOW + AHEAD_US, NOW - BEHIND_US, NOW - 30 * 86400 * SECOND):
        assert placed([(0, ts, 5)]) == [(ts, True, "ts")]


def test_an_implausible_or_missing_clock_without_an_anchor_gives_the_received_time():
    for ts in (None, 0, 946_684_800 * SECOND, NOW + AHEAD_US + 1, NOW - BEHIND_US - 1, 253_402_300_799_999_000):
        assert placed([(0, ts, 5)]) == [(NOW, False, "received")]


def test_readings_from_before_the_clock_was_set_are_placed_by_an_anchor_of_the_same_boot():
    anchor = (0, NOW - 10 * SECOND, 60_000)
    got = placed([(0, None, 20_000), anchor, (1, None, 20_000), (0, 0, 70_000), (0, None, None)])
    assert got == [
        (NOW - 50 * SECOND, False, "anchor"),
        (NOW - 10 * SECOND, True, "ts"),
        (NOW, False, "received"),
        (NOW, False, "anchor"),
        (NOW, False, "received"),
    ]


def test_an_uptime_that_would_place_a_reading_in_the_future_is_not_believed():
    got = placed([(0, NOW, 1000), (0, None, 1000 + 86_400_000)])
    assert got[1] == (NOW, False, "received")


def test_no_readings_give_no_times():
    assert placed([]) == []
