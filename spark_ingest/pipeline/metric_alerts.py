"""Find alerts about metrics in the five-minute means of gold/windows.

At every update, the rules look at the windows of the last hours. Rules that compare with a week also use sums over
the seven days before the current hour, computed once an hour. A device without readings in that time is not judged.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset

from ..alerts.journal import Finding, Verdict
from ..alerts.rules import Rule, RuleSet
from ..tables.delta import Delta
from ..tables.schemas import TIMESTAMP
from .columns import NEVER
from .gold_state import DAY_US

HOUR_US = 3_600_000_000
WEEK_US = 7 * DAY_US
MEDIAN_OF = 3
"""The smallest number of devices of a group in a window for which a median is computed."""
HOUR_MEANS = 3
"""The smallest number of windows of one hour of the day, in the week before, from which a mean is computed."""
FORECAST_MEANS = 12
"""The smallest number of windows, over at least a day, from which a forecast is made."""
_WEEKLY = ("own_week", "battery", "missing")


class Series(NamedTuple):
    """Windows of one metric, sorted by device and then by start, as columns; times in Unix microseconds.

    :ivar device: number of the device.
    :ivar start: start of the window.
    :ivar last: time of the last reading in the window.
    :ivar mean: mean of the metric.
    """

    device: np.ndarray
    start: np.ndarray
    last: np.ndarray
    mean: np.ndarray

    @property
    def ends(self) -> np.ndarray:
        """The row of each device's newest window."""
        return np.flatnonzero(np.append(self.device[1:] != self.device[:-1], len(self.device) > 0))

    @property
    def begins(self) -> np.ndarray:
        """The row of each device's oldest window."""
        return np.flatnonzero(np.append(len(self.device) > 0, self.device[1:] != self.device[:-1]))

    def where(self, rows: np.ndarray) -> "Series":
        """Return a series of the given rows: indices, or a mask."""
        return Series(*(column[rows] for column in self))


class MetricAlerts:
    """The judge of all rules about metrics.

    :param windows: the table gold/windows.
    """

    def __init__(self, windows: Delta, rules: RuleSet) -> None:
        self._windows = windows
        self._set = rules
        self._rules = [rule for rule in rules.rules if rule.is_metric]
        self._week_of = NEVER
        self._weeks: dict[str, _Week] = {}

    def judge(self, last_heard: Mapping[str, int], as_of_us: int) -> list[Verdict]:
        """Return what each rule finds.

        :param last_heard: device to the time when it was last heard, Unix microseconds.
        :param as_of_us: the time to judge at, Unix microseconds.
        """
        if not self._rules:
            return []
        # Sums and differences of the largest doubles overflow; numpy would warn on standard error.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._judge(last_heard, as_of_us)

    def _judge(self, last_heard: Mapping[str, int], as_of_us: int) -> list[Verdict]:
        numbers = {device_id: number for number, device_id in enumerate(last_heard)}
        hour = as_of_us // HOUR_US * HOUR_US
        if hour != self._week_of:
            metrics = {rule["metric"] for rule in self._rules if rule.kind in _WEEKLY}
            self._weeks = self._sums(metrics, hour)
            self._week_of = hour
        since = as_of_us - max(_look_us(rule) for rule in self._rules) - HOUR_US
        columns = ["device_id", "window_start", "last_ts", "metric", "mean"]
        wanted = _since(since) & pa_dataset.field("metric").isin(sorted({rule["metric"] for rule in self._rules}))
        table = self._windows.scan(columns, wanted)
        return [self._verdict(rule, table, numbers, np.array([*last_heard.values()]), as_of_us) for rule in self._rules]

    def _verdict(
        self, rule: Rule, table: pa.Table, numbers: Mapping[str, int], heard: np.ndarray, as_of_us: int
    ) -> Verdict:
        names = list(numbers)
        covered = np.array([self._set.covers(rule, name) for name in names], dtype=bool)
        series = _series(table, rule["metric"], numbers)
        series = series.where(covered[series.device])
        week = self._weeks.get(rule["metric"])
        if rule.kind == "threshold":
            found = _threshold(rule, series)
        elif rule.kind == "rate":
            found = _rate(rule, series)
        elif rule.kind == "group_median":
            groups = np.unique([self._set.of(name).group for name in names], return_inverse=True)[1]
            found = _group_median(rule, series, groups)
        elif week is None:
            found = {}, np.empty(0, dtype=np.int64)
        elif rule.kind == "own_week":
            found = _own_week(rule, series, week.of(numbers))
        elif rule.kind == "battery":
            found = _battery(rule, week.of(numbers), covered, as_of_us)
        else:
            found = _missing(rule, series, week.of(numbers), covered & (heard >= as_of_us - rule["after"]), as_of_us)
        firing, judged = found
        by_name = {names[number]: finding for number, finding in firing.items()}
        return Verdict(rule.name, by_name, frozenset(names[number] for number in judged.tolist()))

    def _sums(self, metrics: Iterable[str], hour: int) -> dict[str, "_Week"]:
        weeks = {metric: _Week(hour) for metric in metrics}
        if not weeks:
            return weeks
        field = pa_dataset.field("window_start")
        before = pa.scalar(hour, pa.int64()).cast(TIMESTAMP)
        wanted = _since(hour - WEEK_US) & (field < before) & pa_dataset.field("metric").isin(sorted(weeks))
        columns = ["device_id", "window_start", "last_ts", "metric", "mean"]
        for batch in self._windows.dataset().to_batches(columns=columns, filter=wanted):
            rows = pa.Table.from_batches([batch])
            for metric, week in weeks.items():
                week.add(rows.filter(pc.call_function("equal", [rows["metric"], pa.scalar(metric)])))
        return weeks


class _Week:
    """Sums of a metric over the week before `hour`, by device, for means by hour of the day and a regression line.

    COLUMNS are the number of windows; the sums of t, v, t*t and t*v, where t is the window's start in days relative
    to `hour` and v its mean; the first t; and the time of the last reading in the same unit.
    """

    COLUMNS = ("n", "t", "v", "tt", "tv", "first", "last")

    def __init__(self, hour: int) -> None:
        self.hour = hour
        self._index: dict[str, int] = {}
        self._columns = np.zeros((0, len(self.COLUMNS)))
        self._hours = np.zeros((0, 24, 2))

    def add(self, rows: pa.Table) -> None:
        """Add windows: columns device_id, window_start, last_ts, mean. Means that are not finite are left out."""
        rows = rows.filter(pc.call_function("is_finite", [rows["mean"]]))
        if not rows.num_rows:
            return
        encoded = rows["device_id"].combine_chunks().dictionary_encode()
        codes = [self._index.setdefault(name, len(self._index)) for name in encoded.dictionary.to_pylist()]
        device = np.array(codes)[encoded.indices.to_numpy()]
        more = len(self._index) - len(self._columns)
        fills = np.tile([0.0, 0.0, 0.0, 0.0, 0.0, np.inf, -np.inf], (more, 1))
        self._columns = np.concatenate([self._columns, fills])
        self._hours = np.concatenate([self._hours, np.zeros((more, 24, 2))])
        start, mean = _us(rows["window_start"]), rows["mean"].to_numpy()
        day = (start - self.hour) / DAY_US
        for column, values in enumerate((np.ones(len(day)), day, mean, day * day, day * mean)):
            np.add.at(self._columns[:, column], device, values)
        np.minimum.at(self._columns[:, 5], device, day)
        np.maximum.at(self._columns[:, 6], device, (_us(rows["last_ts"]) - self.hour) / DAY_US)
        hour_of_day = start // HOUR_US % 24
        np.add.at(self._hours, (device, hour_of_day), np.stack([np.ones(len(mean)), mean], axis=1))

    def of(self, numbers: Mapping[str, int]) -> "_Sums":
        """Return the sums, indexed by the devices' numbers; zeros for a device without windows in the week."""
        columns, hours = np.zeros((len(numbers), len(self.COLUMNS))), np.zeros((len(numbers), 24, 2))
        known = [(numbers[name], row) for name, row in self._index.items() if name in numbers]
        if known:
            to, rows = np.array(known).T
            columns[to], hours[to] = self._columns[rows], self._hours[rows]
        return _Sums(self.hour, hours, *columns.T)


class _Sums(NamedTuple):
    hour: int
    hours: np.ndarray
    n: np.ndarray
    t: np.ndarray
    v: np.ndarray
    tt: np.ndarray
    tv: np.ndarray
    first: np.ndarray
    last: np.ndarray


Found = tuple[dict[int, Finding], np.ndarray]
"""Findings by the number of the device, and the numbers of the devices that were evaluated."""


def _threshold(rule: Rule, series: Series) -> Found:
    above, below = rule["above"], rule["below"]
    with np.errstate(invalid="ignore"):
        bad = np.zeros(len(series.mean), dtype=bool)
        if above is not None:
            bad |= series.mean > above
        if below is not None:
            bad |= series.mean < below

    def words(value: float) -> str:
        over = above is not None and value > above
        return f"{rule['metric']} {value:g} is {'above' if over else 'below'} {above if over else below:g}"

    return _lasting(series, bad, rule["after"], series.mean, words)


def _group_median(rule: Rule, series: Series, groups: np.ndarray) -> Found:
    """Find devices that differ from the median of their group in the same window by more than the rule's `by`.

    :param groups: the number of each device's group, by the device's number.
    """
    key = np.stack([groups[series.device], series.start])
    _, place, sizes = np.unique(key, axis=1, return_inverse=True, return_counts=True)
    place = place.reshape(-1)
    order = np.lexsort((series.mean, place))
    ends = np.cumsum(sizes)
    begins = ends - sizes
    ranked = series.mean[order]
    medians = ranked[begins + (sizes - 1) // 2] / 2 + ranked[begins + sizes // 2] / 2 if len(sizes) else ranked
    enough = sizes[place] >= MEDIAN_OF
    series, median = series.where(enough), medians[place][enough]
    off = series.mean - median
    middle = dict(zip(range(len(off)), median.tolist(), strict=True))
    found, judged = _lasting(series, np.abs(off) > rule["by"], rule["after"], off, str)
    ends_of = {int(series.device[row]): row for row in series.ends.tolist()}
    named = {}
    for number, finding in found.items():
        row = ends_of[number]
        words = f"{rule['metric']} {series.mean[row]:g} is {finding.value:+g} from its group's median {middle[row]:g}"
        named[number] = finding._replace(text=words)
    return named, judged


def _lasting(series: Series, bad: np.ndarray, after_us: int, values: np.ndarray, words) -> Found:
    """Find devices whose newest windows, over at least `after_us`, are all bad; the others with data are judged good.

    :param bad: which windows are bad.
    :param values: the figure of each window.
    :param words: makes the text of a finding from its figure.
    """
    rows = np.arange(len(bad))
    ends, begins = series.ends, series.begins
    good = np.maximum.accumulate(np.where(bad, -1, rows)) if len(bad) else rows
    since = series.start[np.minimum(np.maximum(good[ends] + 1, begins), ends)]
    lasts = bad[ends] & (series.last[ends] - since >= after_us)
    found = {
        int(series.device[row]): Finding(int(at), float(values[row]), words(float(values[row])))
        for row, at in zip(ends[lasts].tolist(), since[lasts].tolist(), strict=True)
    }
    return found, series.device[ends]


def _rate(rule: Rule, series: Series) -> Found:
    change, ends = rule["change"], series.ends
    found: dict[int, Finding] = {}
    if not len(ends):
        return found, series.device
    newest = np.repeat(series.last[ends], np.diff(np.append(series.begins, len(series.device))))
    series = series.where(series.start >= newest - rule["within"])
    begins, ends = series.begins, series.ends
    extreme = (np.minimum if change > 0 else np.maximum).reduceat(series.mean, begins)
    moved = series.mean[ends] - extreme
    for i in np.flatnonzero(moved >= change if change > 0 else moved <= change).tolist():
        mine = slice(begins[i], ends[i] + 1)
        at = int(series.start[mine][np.flatnonzero(series.mean[mine] == extreme[i])[-1]])
        minutes = (int(series.last[ends[i]]) - at) / 60e6
        words = f"{rule['metric']} went from {extreme[i]:g} to {series.mean[ends[i]]:g} in {minutes:.0f} min"
        found[int(series.device[ends[i]])] = Finding(at, float(moved[i]), words)
    return found, series.device[ends]


def _own_week(rule: Rule, series: Series, week: _Sums) -> Found:
    ends = series.ends
    device = series.device[ends]
    count, total = week.hours[device, series.start[ends] // HOUR_US % 24].T
    known = count >= HOUR_MEANS
    ends, device, usual = ends[known], device[known], total[known] / count[known]
    off = series.mean[ends] - usual
    found = {}
    for i in np.flatnonzero(np.abs(off) > rule["by"]).tolist():
        words = f"{rule['metric']} {series.mean[ends[i]]:g} is {off[i]:+g} from {usual[i]:g}, its week's at this hour"
        found[int(device[i])] = Finding(int(series.start[ends[i]]), float(off[i]), words)
    return found, device


def _battery(rule: Rule, week: _Sums, covered: np.ndarray, as_of_us: int) -> Found:
    """Find devices whose metric reaches the rule's `empty` within the rule's time, on a line through the week."""
    known = np.flatnonzero(covered & (week.n >= FORECAST_MEANS) & (week.last - week.first >= 1))
    n, t, v, tt, tv = (column[known] for column in week[2:7])
    spread = n * tt - t * t
    slope = np.divide(n * tv - t * v, spread, out=np.zeros(len(known)), where=spread > 0)
    now = (as_of_us - week.hour) / DAY_US
    level = (v - slope * t) / n + slope * now
    left = np.divide(level - rule["empty"], -slope, out=np.full(len(known), np.inf), where=slope < 0)
    left = np.where(level <= rule["empty"], 0.0, left)
    found = {}
    for i in np.flatnonzero(left * DAY_US < rule["within"]).tolist():
        words = f"{rule['metric']} {level[i]:.3g}, {slope[i]:+.2g} a day: {rule['empty']:g} in {left[i]:.1f} days"
        found[int(known[i])] = Finding(week.hour, float(left[i]), words)
    return found, known


def _missing(rule: Rule, series: Series, week: _Sums, listened: np.ndarray, as_of_us: int) -> Found:
    """Find devices that are still heard and sent the metric in the last week, but longer ago than the rule's `after`.

    :param listened: by device number, which devices were heard recently enough to be judged.
    """
    newest = np.where(week.n > 0, week.hour + week.last * DAY_US, NEVER)
    np.maximum.at(newest, series.device, series.last)
    judged = np.flatnonzero(listened & (newest != NEVER))
    found = {}
    for number in judged[as_of_us - newest[judged] > rule["after"]].tolist():
        since = int(newest[number])
        found[number] = Finding(since, (as_of_us - since) / 1e6, f"no {rule['metric']} in what it sends")
    return found, judged


def _look_us(rule: Rule) -> int:
    """Return how many microseconds back a rule looks at windows; sums of the week do not count."""
    return 0 if rule.kind == "battery" else max(rule.values.get("after", 0), rule.values.get("within", 0))


def _series(table: pa.Table, metric: str, numbers: Mapping[str, int]) -> Series:
    rows = table.filter(pc.call_function("equal", [table["metric"], pa.scalar(metric)]))
    encoded = rows["device_id"].combine_chunks().dictionary_encode()
    codes = np.array([numbers.get(name, -1) for name in encoded.dictionary.to_pylist()], dtype=np.int64)
    device = codes[encoded.indices.to_numpy(zero_copy_only=False)] if rows.num_rows else codes[:0]
    series = Series(device, _us(rows["window_start"]), _us(rows["last_ts"]), rows["mean"].to_numpy())
    order = np.lexsort((series.start, device))
    # A sum of huge values may be infinite.
    return series.where(order[(device[order] >= 0) & np.isfinite(series.mean[order])])


def _since(us: int) -> pa_dataset.Expression:
    return pa_dataset.field("window_start") >= pa.scalar(us, pa.int64()).cast(TIMESTAMP)


def _us(times: pa.ChunkedArray) -> np.ndarray:
    return times.cast(pa.int64()).to_numpy()
