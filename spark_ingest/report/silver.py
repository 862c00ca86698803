"""Readings of a short time, from silver. Gold has minutes and five-minute windows, too coarse for short outages."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..tables.schemas import TIMESTAMP
from .fleet import microseconds, rounded
from .gold import WINDOW_COLUMNS, Gold
from .timeline import US, Timeline

LONGEST_US = 3600 * US
MOST_READINGS = 500_000
"""Above this number of readings, or for a longer time, the charts are made from gold."""
_READINGS_A_POINT, _VALUES_A_POINT = 4, 2
"""Average readings of the fleet, and values of a device, in a step, so that lines have no holes."""


class Silver:
    """The readings received from `start_us` to `end_us`, in Unix microseconds.

    :ivar start_us, end_us: when the first and just after the last message were received, in Unix microseconds; both 0
        if there are none.
    """

    def __init__(self, gold: Gold, start_us: int, end_us: int) -> None:
        self._gold = gold
        received = pc.field("received_ts")
        day = pc.field("received_date") >= _time(start_us).cast(pa.date32())
        self._inside = (received >= _time(start_us)) & (received <= _time(end_us))
        self._of_silver = self._inside & day
        columns = ["received_ts", "event_ts", "clock_ok"]
        rows = pa.Table.from_batches(
            gold.scan("silver", columns, self._of_silver),
            pa.schema([("received_ts", TIMESTAMP), ("event_ts", TIMESTAMP), ("clock_ok", pa.bool_())]),
        )
        self._received = rows["received_ts"].cast(pa.int64()).to_numpy()
        # A reading cannot be received before it is taken, so a clock that is ahead is corrected.
        taken = pc.fill_null(rows["event_ts"], rows["received_ts"]).cast(pa.int64()).to_numpy()
        self._taken = np.minimum(taken, self._received)
        self._clock_ok = pc.fill_null(rows["clock_ok"], False).to_numpy()
        self._others = {name: self._times(table) for name, table in _OTHERS.items()}
        came = np.concatenate([self._received, *self._others.values()])
        self.start_us, self.end_us = (int(came.min()), int(came.max()) + 1) if len(came) else (0, 0)

    def __len__(self) -> int:
        return len(self._received)

    @classmethod
    def of(cls, gold: Gold, traffic: pa.Table, start_us: int, end_us: int) -> "Silver | None":
        """Return the readings; None if the time is over an hour, there are too many readings, or silver has none."""
        at = microseconds(traffic["minute"])
        readings = pc.fill_null(traffic["readings"], 0).to_numpy()[(at > start_us - 60 * US) & (at <= end_us)].sum()
        if end_us - start_us > LONGEST_US or readings > MOST_READINGS:
            return None
        found = cls(gold, start_us, end_us)
        return found if len(found) else None

    def finest_s(self, devices: int | None = None) -> int:
        """Return the seconds of the finest step with enough readings of the fleet, or per device for `devices`."""
        apart_s = (self.end_us - self.start_us) / US / len(self)
        return max(1, math.ceil(apart_s * (_READINGS_A_POINT if devices is None else _VALUES_A_POINT * devices)))

    def traffic(self, timeline: Timeline, seconds: np.ndarray) -> dict[str, Any]:
        """Return the traffic as :func:`fleet.traffic`, but per second.

        Adds ``taken``, the readings by the time at which devices took them, and ``waiting``, see :meth:`_waiting`.

        :param seconds: the number of observed seconds in each step.
        """
        step = timeline.index(self._received)
        counted = {"readings": self._received, "taken": self._taken, **self._others}
        found: dict[str, Any] = {**timeline.as_json(), "per": "second"}
        for name, times in counted.items():
            found[name] = [rounded(value) for value in timeline.totals(times, np.ones(len(times))) / seconds]
        found["waiting"] = self._waiting(timeline)
        percentiles: dict[str, list[float | None]] = {name: [None] * timeline.count for name in ("p50", "p95")}
        good = self._clock_ok & (step >= 0) & (step < timeline.count)
        order = np.argsort(step[good], kind="stable")
        delays, at = ((self._received - self._taken)[good] / 1000)[order], step[good][order]
        steps, first = np.unique(at, return_index=True)
        for one, some in zip(steps.tolist(), np.split(delays, first[1:]), strict=False):
            for values, share in zip(percentiles.values(), (50, 95), strict=True):
                values[one] = rounded(float(np.percentile(some, share)))
        return {**found, **percentiles}

    def windows(self, start_s: int) -> Iterator[pa.RecordBatch]:
        """Yield batches as :meth:`Gold.windows`, with each value as a window of its own."""
        for batch in self._gold.scan("silver", ["device_id", "event_ts", "metrics"], self._of_silver):
            batch = batch.filter(batch["metrics"].is_valid()).filter(pc.field("event_ts").is_valid())
            maps = batch["metrics"]
            offsets = maps.offsets.to_numpy()
            inside = slice(offsets[0], offsets[-1])
            parent = pa.array(np.repeat(np.arange(len(maps)), np.diff(offsets)))
            ones = pa.array(np.ones(len(parent), np.int64))
            columns = [
                *(batch[name].take(parent) for name in ("device_id", "event_ts")),
                *(maps.keys[inside], ones, maps.items[inside]),
            ]
            yield pa.record_batch(columns, WINDOW_COLUMNS).filter(pc.field("window_start") >= _time(start_s * US))

    def _waiting(self, timeline: Timeline) -> list[int]:
        """Return the number of readings that were taken but not yet received at the end of each step."""
        change = np.zeros(timeline.count + 1, np.int64)
        for times, sign in ((self._taken, 1), (self._received, -1)):
            np.add.at(change, np.clip(timeline.index(times), 0, timeline.count), sign)
        return np.cumsum(change)[:-1].tolist()

    def _times(self, table: str) -> np.ndarray:
        batches = list(self._gold.scan(table, ["received_ts"], self._inside))
        parts = [batch["received_ts"].cast(pa.int64()).to_numpy(zero_copy_only=False) for batch in batches]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


_OTHERS = {"duplicates": "duplicates", "quarantined": "quarantine"}
"""Name on the page, and table."""


def _time(us: int) -> pa.Scalar:
    return pa.scalar(us, pa.int64()).cast(TIMESTAMP)
