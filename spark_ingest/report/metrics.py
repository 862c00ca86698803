"""Metrics over time: percentiles over the fleet, and a line for each device.

A device's value in a step is the mean of its readings in it. A line is encoded as text with two characters per step,
a third of the size of JSON numbers, so a page with a thousand devices still opens at once.
"""

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from .fleet import rounded
from .timeline import Timeline

KNOWN = ("supply_v", "temp_c", "mem_free", "rssi")
"""The metrics shown first, in this order; the others follow, those with most windows first."""
_MOST_METRICS = 8
_PERCENTILES = (10, 50, 90)
_TEXT_BUDGET = 1_500_000
"""Most characters of all lines together."""

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
"""A step is two digits of base 64, from 0 at the line's lowest value to 4095 at its highest; two dots: no value."""
LEVELS = len(ALPHABET) ** 2 - 1
_DIGITS = np.frombuffer(ALPHABET.encode(), np.uint8)


class Windows(Protocol):
    """A source of WINDOW_COLUMNS: Gold, or Silver for a short time."""

    def windows(self, start_s: int) -> Iterator[pa.RecordBatch]: ...


def metrics(source: Windows, devices: list[str], timeline: Timeline) -> list[dict[str, Any]]:
    """Return an entry per metric: name, timeline, low, mid and high of the fleet, number of devices, and lines.

    ``lines`` has a line by device index, see :func:`line`.

    :param devices: names of devices; if there is not enough room for all lines, the first ones get theirs.
    """
    names = _chosen(source, timeline.start_s)
    if not names or not devices:
        return []
    means = _means(source, names, devices, timeline)
    room = _TEXT_BUDGET // (2 * timeline.count * len(names))
    found = []
    for name, cells in zip(names, means, strict=True):
        known = np.isfinite(cells)
        if not known.any():
            continue
        bands = _bands(cells, known)
        lines = {str(i): line(cells[i]) for i in range(min(room, len(devices))) if known[i].any()}
        found.append(
            {
                "name": name,
                **timeline.as_json(),
                **{word: [rounded(v) for v in band] for word, band in zip(("low", "mid", "high"), bands, strict=True)},
                "devices": int(known.any(axis=1).sum()),
                "lines": lines,
            }
        )
    return found


def line(values: np.ndarray) -> list[Any]:
    """Encode a device's values as [lowest, highest, text]; NaN is unknown, and at least one value must be known."""
    known = np.isfinite(values)
    low, high = float(values[known].min()), float(values[known].max())
    # Halve the values first if their difference is too large for a float.
    scale = 1.0 if math.isfinite(high - low) else 0.5
    span = high * scale - low * scale
    levels = np.zeros(len(values), np.int64)
    if span > 0:
        levels[known] = np.rint((values[known] * scale - low * scale) / span * LEVELS).astype(np.int64)
    text = np.full((len(values), 2), ord("."), np.uint8)
    text[known, 0], text[known, 1] = _DIGITS[levels[known] // 64], _DIGITS[levels[known] % 64]
    return [rounded(low), rounded(high), text.tobytes().decode()]


def _chosen(source: Windows, start_s: int) -> list[str]:
    counts: dict[str, int] = {}
    for batch in source.windows(start_s):
        for entry in batch["metric"].value_counts().to_pylist():
            counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
    known = [name for name in KNOWN if name in counts]
    others = sorted(counts.keys() - set(KNOWN), key=lambda name: (-counts[name], name))
    return (known + others)[:_MOST_METRICS]


def _means(source: Windows, names: list[str], devices: list[str], timeline: Timeline) -> np.ndarray:
    """Return the means by metric, device and step; NaN where there was no reading."""
    shape = (len(names), len(devices), timeline.count)
    sums, counts = np.zeros(shape), np.zeros(shape)
    device_index, metric_index = ({name: i for i, name in enumerate(each)} for each in (devices, names))
    for batch in source.windows(timeline.start_s):
        metric, device = _codes(batch["metric"], metric_index), _codes(batch["device_id"], device_index)
        step = timeline.index(batch["window_start"].cast(pa.int64()).to_numpy(zero_copy_only=False))
        n = batch["n"].fill_null(0).to_numpy(zero_copy_only=False)
        total = batch["sum"].cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        good = (metric >= 0) & (device >= 0) & (step >= 0) & (step < timeline.count) & (n > 0) & np.isfinite(total)
        at = (metric[good], device[good], step[good])
        np.add.at(sums, at, total[good])
        np.add.at(counts, at, n[good])
    return np.divide(sums, counts, out=np.full(shape, np.nan), where=counts > 0)


def _codes(names: pa.Array, index: dict[str, int]) -> np.ndarray:
    """Return the index of each name; -1 for a name without index."""
    encoded = names.dictionary_encode(null_encoding="encode")
    codes = np.array([index.get(name, -1) for name in encoded.dictionary.to_pylist()], np.int64)
    return codes[encoded.indices.to_numpy(zero_copy_only=False)]


def _bands(cells: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the percentiles over the devices in each step; NaN where no device has a value."""
    bands = np.full((len(_PERCENTILES), cells.shape[1]), np.nan)
    for step in np.flatnonzero(known.any(axis=0)):
        bands[:, step] = np.percentile(cells[known[:, step], step], _PERCENTILES)
    return bands
