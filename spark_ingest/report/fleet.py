"""Converts rows of gold to data for the page: devices, traffic, gaps, reboots and alerts.

Everything is sorted and rounded here, so the same tables give the same page byte for byte. Times are in Unix seconds.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..tables.schemas import GOODBYES, HEALTH
from .timeline import US, Timeline

_LISTED_GAPS = 100
_LISTED_ALERTS = 200
_OLDEST_BOOT_US = 400 * 86_400 * US

_DEVICE_COLUMNS = (
    ("health", "health"),
    ("last_seen", "seen"),
    ("boots", "boots"),
    ("reboots_24h", "reboots"),
    ("fw", "fw"),
    ("device_group", "group"),
    ("readings", "readings"),
    ("missing", "missing"),
    ("dropped_announced", "dropped"),
    ("duplicates", "duplicates"),
    ("quarantined", "quarantined"),
    ("delay_p50_ms", "p50"),
    ("delay_p95_ms", "p95"),
    ("clock_ok_share", "clock"),
    ("clock_behind_h", "behind"),
    ("supply_v", "supply_v"),
    ("temp_c", "temp_c"),
    ("mem_free", "mem_free"),
    ("rssi", "rssi"),
)
"""Column of gold/devices and its name on the page."""


def rounded(value: float | None) -> float | int | None:
    """Round to five significant digits, which is more than a chart shows; None for None, NaN and infinity."""
    if value is None or not np.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    if not np.isfinite(short):  # The largest floats round up to infinity.
        return value
    return int(short) if short.is_integer() and abs(short) < 1 << 53 else short


def microseconds(column: pa.ChunkedArray) -> np.ndarray:
    """Convert timestamps to Unix microseconds; null becomes 0."""
    return pc.fill_null(column.cast(pa.int64()), 0).to_numpy()


def seconds(column: pa.ChunkedArray) -> list[int | None]:
    """Convert timestamps to Unix seconds, rounded down."""
    return [None if value is None else value // US for value in column.cast(pa.int64()).to_pylist()]


def sorted_devices(devices: pa.Table) -> pa.Table:
    """Sort devices by health, worst first, then by name; a health that this release does not know comes first."""
    rank = {word: i for i, word in enumerate(HEALTH)}
    health, names = devices["health"].to_pylist(), devices["device_id"].to_pylist()
    order = sorted(range(len(names)), key=lambda i: (rank.get(health[i] or "ok", -1), names[i]))
    return devices.take(pa.array(order, pa.int64()))


def device_columns(devices: pa.Table) -> dict[str, list]:
    """Return the devices by column, which takes half the size of rows; columns without any value are left out."""
    found: dict[str, list] = {"id": devices["device_id"].to_pylist()}
    for column, name in _DEVICE_COLUMNS:
        values = devices[column]
        if pa.types.is_timestamp(values.type):
            found[name] = seconds(values)
        elif pa.types.is_floating(values.type):
            found[name] = [rounded(value) for value in values.to_pylist()]
        else:
            found[name] = values.to_pylist()
        if all(value is None for value in found[name]):
            del found[name]
    return {**found, "link": links(devices)}


def links(devices: pa.Table) -> list[str | None]:
    """Return each device's newest status: online, goodbye (it left on purpose) or lost; None without a status."""
    said = zip(devices["online"].to_pylist(), devices["status_reason"].to_pylist(), strict=True)
    return [
        None if online is None else "online" if online else "goodbye" if reason in GOODBYES else "lost"
        for online, reason in said
    ]


def totals(devices: pa.Table, gaps: pa.Table, alerts: pa.Table) -> dict[str, int]:
    """Return the totals that the tiles show; ``umqtt report --json`` prints them too."""

    def total(rows: pa.Table, column: str) -> int:
        return sum(value for value in rows[column].to_pylist() if value)

    link = Counter(links(devices))
    return {
        "devices": devices.num_rows,
        **{name: link[name] for name in ("online", "goodbye", "lost")},
        "readings": total(devices, "readings"),
        "missing": total(devices, "missing"),
        "dropped": total(devices, "dropped_announced"),
        "duplicates": total(devices, "duplicates"),
        "gaps": total(gaps, "open"),
        "alerts": alerts["until"].null_count,
    }


def traffic(rows: pa.Table, timeline: Timeline, minutes: np.ndarray) -> dict[str, Any]:
    """Return the traffic per minute in each step; delays are means of the minutes' percentiles, weighted by readings.

    :param minutes: the number of observed minutes in each step.
    """
    at = microseconds(rows["minute"])
    found: dict[str, Any] = {**timeline.as_json(), "per": "minute"}
    for name in ("readings", "duplicates", "quarantined"):
        found[name] = [rounded(value) for value in timeline.totals(at, _numbers(rows[name])) / minutes]
    weights = _numbers(rows["readings"])
    for column, name in (("delay_p50_ms", "p50"), ("delay_p95_ms", "p95")):
        known = rows[column].is_valid().to_numpy() & (weights > 0)
        values = _numbers(rows[column])
        weight = timeline.totals(at[known], weights[known])
        total = timeline.totals(at[known], (values * weights)[known])
        found[name] = [rounded(t / w) if w else None for t, w in zip(total, weight, strict=True)]
    return found


def gaps(rows: pa.Table, index: dict[str, int], timeline: Timeline) -> dict[str, Any]:
    """Return the 100 largest gaps, and the number of missing seqs in each step."""
    columns = ("device_id", "boot", "first", "last", "missing", "announced", "open", "state")
    listed = sorted(
        zip(*_lists(rows, columns), seconds(rows["since"]), strict=True),
        key=lambda row: (-row[4], row[0], row[1], row[2]),
    )
    announced, still_open = (rows[name].fill_null(False).to_numpy() for name in ("announced", "open"))
    at, missing = microseconds(rows["since"]), _numbers(rows["missing"])
    return {
        **timeline.as_json(),
        "missing": [rounded(value) for value in timeline.totals(at[still_open], missing[still_open])],
        "dropped": [rounded(value) for value in timeline.totals(at[announced], missing[announced])],
        "total": rows.num_rows,
        "rows": [[index.get(row[0], row[0]), *row[1:]] for row in listed[:_LISTED_GAPS]],
    }


def reboots(boots: pa.Table, index: dict[str, int], timeline: Timeline) -> dict[str, Any]:
    """Return the reboots of each device, which are all its known boots but the first; most reboots first.

    A row is device, reboots, [[step, reboots, cause], …]; the cause is the most frequent one in that step.
    """
    first_seen = microseconds(boots["first_seen"])
    anchor = _numbers(boots["anchor_ts_us"]).astype(np.int64)
    # Ignore the device's own time of boot if it is later than the first message, or over 400 days before it.
    good = (anchor > first_seen - _OLDEST_BOOT_US) & (anchor <= first_seen)
    at = np.where(good, anchor, first_seen)
    begun = defaultdict(list)
    columns = _lists(boots, ("device_id", "cause", "reason"))
    for device, cause, reason, when, step in zip(*columns, at.tolist(), timeline.index(at).tolist(), strict=True):
        begun[device].append((when, step, cause or reason or ""))
    rows: list[tuple[int, int, list[list[int | str]]]] = []
    for device, each in begun.items():
        inside = [(step, cause) for _, step, cause in sorted(each)[1:] if 0 <= step < timeline.count]
        if inside and device in index:
            by_step: dict[int, Counter[str]] = defaultdict(Counter)
            for step, cause in inside:
                by_step[step][cause] += 1
            cells = [[step, n.total(), min(n, key=lambda c: (-n[c], c))] for step, n in sorted(by_step.items())]
            rows.append((index[device], len(inside), cells))
    return {**timeline.as_json(), "rows": sorted(rows, key=lambda row: (-row[1], row[0]))}


def judged_us(alerts: pa.Table) -> int:
    """Return up to when gold has measured the silence of devices that are offline now; 0 if none is."""
    rows = zip(*(alerts[name].to_pylist() for name in ("kind", "until", "value")), strict=True)
    found = zip(microseconds(alerts["since"]).tolist(), rows, strict=True)
    return max((us + round(v * US) for us, (kind, until, v) in found if kind == "offline" and until is None), default=0)


def alerts(rows: pa.Table, index: dict[str, int]) -> dict[str, Any]:
    """Return at most 200 alerts: open ones first, and newest first among each."""
    listed = sorted(
        zip(
            *_lists(rows, ("device_id", "kind", "text")),
            seconds(rows["since"]),
            seconds(rows["until"]),
            rows["rule"].to_pylist(),
            strict=True,
        ),
        key=lambda row: (row[4] is not None, -(row[3] or 0), row[0], row[1]),
    )
    return {
        "total": rows.num_rows,
        "rows": [[index.get(row[0], row[0]), *row[1:]] for row in listed[:_LISTED_ALERTS]],
    }


def _lists(rows: pa.Table, columns: Iterable[str]) -> list[list]:
    return [rows[name].to_pylist() for name in columns]


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    # safe=False: a device can announce a count above 2**53, whose last digits a chart does not need.
    return pc.fill_null(column.cast(pa.float64(), safe=False), 0.0).to_numpy()
