"""Find out when a reading was taken: boards start in 1970 or 2000, and some clocks are simply wrong.

`event_ts` is the first of these that is known:

- ``ts``: the device's time, if it is plausible compared with the time at which the collector received the reading;
- ``anchor``: the time computed from another reading of the same boot *and micro-batch* that has a plausible ts,
  with `up` as the distance between the two (gold applies anchors that come in a later micro-batch, because rows of
  silver are never rewritten);
- ``received``: the time at which the collector received the reading.

`event_ts_from` holds that word, and `clock_ok` is true for ``ts`` only. Nothing here moves a watermark: progress may
depend only on received_ts, the collector's clock.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

AHEAD_US = 5 * 60 * 1_000_000
"""How far a device's clock may be ahead of the collector's: two clocks are never equal."""
BEHIND_US = 400 * 24 * 3600 * 1_000_000
"""How long a reading may have waited in a device's flash; an older time means that the clock was never set."""

_LONGEST_UP_MS = 100 * 366 * 24 * 3600 * 1000
"""The longest credible uptime of a board; a longer one would not fit into microseconds either."""

_SOURCES = pa.array(["ts", "anchor", "received"], pa.string())


class EventTimes(NamedTuple):
    """Three columns of the silver table, with one value per reading."""

    event_ts: pa.Array
    clock_ok: pa.Array
    event_ts_from: pa.Array


def event_times(boots: np.ndarray, ts: pa.Array, up_ms: pa.Array, received_ts: pa.Array) -> EventTimes:
    """Return the time columns of a micro-batch's readings.

    :param boots: a number per reading, equal for readings of the same device and boot.
    :param ts: the device's time; null if its clock was not set.
    :param up_ms: milliseconds since the boot, or null.
    :param received_ts: when the collector received the reading.
    """
    known = ts.is_valid().to_numpy(zero_copy_only=False)
    ts_us = _microseconds(ts)
    received_us = _microseconds(received_ts)
    lag_us = received_us - ts_us
    plausible = known & (lag_us >= -AHEAD_US) & (lag_us <= BEHIND_US)
    has_up, up_us = uptimes(up_ms)

    event_us = np.where(plausible, ts_us, received_us)
    source = np.where(plausible, 0, 2)
    anchors = np.flatnonzero(plausible & has_up)
    if len(anchors) and not plausible.all():
        # Use the boot's first anchor in the batch. Any would do, but a replay must choose the same one.
        anchored, first = np.unique(boots[anchors], return_index=True)
        booted_us = (ts_us - up_us)[anchors[first]]
        at = np.minimum(np.searchsorted(anchored, boots), len(anchored) - 1)
        derived_us = booted_us[at] + up_us
        derive = ~plausible & has_up & (anchored[at] == boots)
        # A reading cannot have been taken after it was received, or before 1970, so an `up` that says so is wrong too.
        derive &= (derived_us >= 0) & (derived_us <= received_us + AHEAD_US)
        event_us = np.where(derive, derived_us, event_us)
        source = np.where(derive, 1, source)
    return EventTimes(
        pa.array(event_us.astype("datetime64[us]")).cast(received_ts.type),
        pa.array(plausible),
        _SOURCES.take(pa.array(source)),
    )


def uptimes(up_ms: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return which readings have a usable uptime, and the uptimes in microseconds (0 for the others)."""
    milliseconds = up_ms.fill_null(-1).to_numpy(zero_copy_only=False)
    usable = (milliseconds >= 0) & (milliseconds <= _LONGEST_UP_MS)
    return usable, np.where(usable, milliseconds, 0) * 1000


def _microseconds(times: pa.Array) -> np.ndarray:
    return times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
