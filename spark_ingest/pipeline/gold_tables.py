"""The rows of all gold tables but windows and alerts, as functions of the state of gold."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..alerts.rules import RuleSet
from ..tables.schemas import (
    BOOTS_SCHEMA,
    DEVICES_SCHEMA,
    GAPS_SCHEMA,
    GOODBYES,
    HEALTH,
    TIMESTAMP,
    TRAFFIC_SCHEMA,
)
from .columns import NEVER, from_bin, quantiles
from .dedup import SEPARATOR
from .gold_boots import boot_starts, follows, heard_days, newest_boots
from .gold_state import (
    BIN_BITS,
    BIN_ZERO,
    DAY_US,
    DELAY,
    DEVICE_BITS,
    GAP_US,
    METRIC_BITS,
    MINUTE_US,
    SHOWN,
    Part,
    State,
)

LATE_MS = 60_000.0
"""A device whose median delay is above this is late."""
_HEALTH_OF_ALERT = {
    "offline": "offline",
    "reboot_loop": "rebooting",
    "quarantined": "quarantined",
    "memory_falling": "memory",
}
"""The health of a device with an open alert of each kind."""
# Counts are capped at this: a device can announce, or skip, more seqs than a column can hold.
_MOST = (1 << 63) - 1


def gaps_table(state: State) -> pa.Table:
    """Return the rows of GAPS_SCHEMA of the boots in the state: what silver lacks, split where its state changes."""
    rows: list[tuple] = []
    numbers, days = state.boots.index, heard_days(state)
    for (device_id, boot), parts in parted_gaps(state).items():
        number = numbers.get(device_id + SEPARATOR + boot)
        day = None if number is None else int(days[number])
        for first, last, word, since in parts:
            told, still = word == "dropped", word == "missing"
            rows.append((device_id, boot, first, last, _length(first, last), told, still, since, word, day))
    rows.sort(key=lambda row: row[:3])
    columns = list(zip(*rows, strict=True)) if rows else [[]] * len(GAPS_SCHEMA)
    # Arrow does not make dates from numbers at once.
    arrays = [pa.array(column, pa.int32() if one.name == "heard_date" else one.type).cast(one.type)
              for column, one in zip(columns, GAPS_SCHEMA, strict=True)]  # fmt: skip
    return pa.table(arrays, schema=GAPS_SCHEMA)


def gap_sums(parts: Sequence[Part]) -> tuple[int, int, int]:
    """Return how many readings of a boot are missing, how many it has dropped, and the number of open gaps."""
    total = {
        word: min(sum(last - first + 1 for first, last, state, _since in parts if state == word), _MOST)
        for word in ("missing", "dropped")
    }
    return total["missing"], total["dropped"], sum(state == "missing" for _first, _last, state, _since in parts)


def parted_gaps(state: State) -> dict[tuple[str, str], list[Part]]:
    """Return the ranges of seq that silver lacks of the boots in the state, by (device_id, boot)."""
    numbers = state.boots.index
    known: dict[tuple[int, int], int] = {}
    earlier = _earlier(state)
    of_boot: defaultdict[tuple[str, str], list[Part]] = defaultdict(list)
    missing = state.seen.gap_table()
    for device_id, boot, first, last in zip(*(column.to_pylist() for column in missing.columns), strict=True):
        key = (numbers[device_id + SEPARATOR + boot], last)
        since = state.gap_since.get(key)
        if since is not None:
            known[key] = since
        of_boot[device_id, boot].append((first, last, "missing", since))
    state.gap_since = known
    for key, announced in state.announced.items():
        highest = state.seen.highest_of(*key)
        of_boot[key] = _parted(of_boot[key], announced, "dropped")
        of_boot[key] += [
            (max(first, highest + 1), last, "dropped", None) for first, last in announced if last > highest
        ]
    for (device_id, boot), parts in of_boot.items():
        parts = _parted(parts, state.unread.get((device_id, boot), []), "quarantined")
        row = numbers.get(device_id + SEPARATOR + boot)
        if row is not None and earlier[row]:
            parts = _parted(parts, [(0, int(state.boots["first_seq"][row]) - 1)], "earlier")
        of_boot[device_id, boot] = parts
    return of_boot


def _length(first: int, last: int) -> int:
    return min(last - first + 1, _MOST)


def _sums(rows: np.ndarray, amounts: np.ndarray, count: int) -> np.ndarray:
    """Return the sum of the amounts for each of `count` rows, at most _MOST."""
    sums = np.zeros(count, dtype=np.int64)
    if amounts.sum(dtype=np.float64) < _MOST / 2:
        np.add.at(sums, rows, amounts)
        return sums
    for row, amount in zip(rows.tolist(), amounts.tolist(), strict=True):
        sums[row] = min(int(sums[row]) + amount, _MOST)
    return sums


def _earlier(state: State) -> np.ndarray:
    """Return which boots began before the first message of the collector that received their lowest seq.

    The readings that such a boot took before then were never sent to this collector.
    """
    boots, collectors = state.boots, state.collectors
    began = np.where(boots["anchor_seq"] != -NEVER, boots["anchor_us"], boots["began_us"])
    known = boots["collector"] >= 0
    if not known.any():
        return known
    return known & (began < collectors["first_us"][np.where(known, boots["collector"], 0)])


def _parted(parts: list[Part], ranges: list[tuple[int, int]], word: str) -> list[Part]:
    """Return `parts` with the state `word` for everything missing that lies in `ranges`; parts are split if needed.

    :param ranges: disjoint, in ascending order.
    """
    lasts = [last for _, last in ranges]
    cut: list[Part] = []
    for part in parts:
        at, last, state, since = part
        if state != "missing":
            cut.append(part)
            continue
        for low, high in ranges[bisect_left(lasts, at) :]:
            if low > last:
                break
            if at < low:
                cut.append((at, low - 1, state, since))
            cut.append((max(low, at), min(high, last), word, since))
            at = high + 1
        if at <= last:
            cut.append((at, last, state, since))
    return cut


def boots_table(state: State, gaps: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return the rows of BOOTS_SCHEMA for some rows of the state's boots.

    :param rows: indices of these rows.
    """
    open_gaps = gaps.filter(gaps["open"])
    names = zip(open_gaps["device_id"].to_pylist(), open_gaps["boot"].to_pylist(), strict=True)
    numbers = [state.boots.index[device_id + SEPARATOR + boot] for device_id, boot in names]
    missing = _sums(np.array(numbers, dtype=np.int64), open_gaps["missing"].to_numpy(), len(state.boots))
    # Leave out the rows for readings that are identified by their place: they are no boots.
    rows = rows[~state.unnumbered[rows]]
    names = list(state.boots.index)
    keys = [names[row].split(SEPARATOR) for row in rows.tolist()]
    boots = {name: state.boots[name][rows] for name in state.boots.names}
    highest = [state.seen.highest_of(device_id, boot) for device_id, boot in keys]
    anchored = boots["anchor_seq"] != -NEVER
    clock = np.where(boots["ok"] == boots["readings"], "ts", np.where(anchored, "anchor", "received"))
    silent = boots["readings"] == 0
    columns = {
        "device_id": pa.array([key[0] for key in keys], pa.string()),
        "boot": pa.array([key[1] for key in keys], pa.string()),
        "boot_number": pa.array([_boot_number(key[1]) for key in keys], pa.int64()),
        "first_seen": _times(np.minimum(boots["first_us"], boots["born_us"])),
        "last_seen": _times(boots["last_us"]),
        "first_seq": pa.array(boots["first_seq"], mask=silent),
        "highest_seq": pa.array(np.array(highest, dtype=np.int64), mask=silent),
        "readings": pa.array(boots["readings"]),
        "missing": pa.array(missing[rows]),
        "fw": state.text(boots["fw"]),
        "cause": state.text(boots["cause"]),
        "reason": state.text(boots["reason"]),
        "anchor_ts_us": pa.array(boots["anchor_us"], mask=~anchored),
        "clock": pa.array(clock, pa.string(), mask=silent),
        "heard_date": pa.array(heard_days(state)[rows], pa.int32()).cast(pa.date32()),
    }
    return pa.table([columns[name] for name in BOOTS_SCHEMA.names], schema=BOOTS_SCHEMA)


def devices_table(state: State, gaps: pa.Table, alerts: pa.Table, rules: RuleSet, as_of_us: int) -> pa.Table:
    """Return the rows of DEVICES_SCHEMA, in the order in which the devices were first met."""
    devices, boots = state.devices, state.boots
    booted, started_us, _rows = boot_starts(state)
    count = len(devices)
    ids = list(devices.index)
    memberships = [rules.of(device_id) for device_id in ids]
    of = boots["device"]
    readings = np.bincount(of, boots["readings"], count).astype(np.int64) + devices["old_readings"]
    ok = np.bincount(of, boots["ok"], count) + devices["old_ok"]
    missing, dropped, open_gaps = _gaps_of_devices(state, gaps)
    p50, p95 = _percentiles(state, DELAY, (0.5, 0.95))
    newest = newest_boots(state)
    names = list(boots.index)
    boot = [names[row].split(SEPARATOR)[1] if row >= 0 else None for row in newest.tolist()]
    fw = np.where(newest >= 0, boots["fw"][newest] if len(boots) else -1, -1)
    event = devices["old_event_us"].copy()
    np.maximum.at(event, of, state.last_event_us)
    reboots = booted[follows(booted) & (started_us > as_of_us - DAY_US)]
    columns = {
        "device_id": pa.array(ids, pa.string()),
        "health": pa.array(_health(state, gaps, alerts, p50, as_of_us), pa.string()),
        "last_seen": _times(devices["last_us"]),
        "last_event_ts": _times(event),
        "online": pa.array(devices["online"] == 1, mask=devices["online"] < 0),
        "status_reason": state.text(devices["status_reason"]),
        "boot": pa.array(boot, pa.string()),
        "boots": pa.array(np.bincount(booted, minlength=count) + devices["old_boots"], pa.int64()),
        "reboots_24h": pa.array(np.bincount(reboots, minlength=count), pa.int64()),
        "fw": state.text(fw),
        "readings": pa.array(readings),
        "duplicates": pa.array(devices["duplicates"]),
        "missing": pa.array(missing),
        "dropped_announced": pa.array(dropped),
        "open_gaps": pa.array(open_gaps),
        "clock_ok_share": pa.array(
            np.divide(ok, readings, out=np.zeros(count), where=readings > 0), mask=readings == 0
        ),
        "delay_p50_ms": _numbers(p50),
        "delay_p95_ms": _numbers(p95),
        "quarantined": pa.array(devices["quarantined"]),
        "device_group": pa.array([at.group or None for at in memberships], pa.string()),
        "site": pa.array([at.site or None for at in memberships], pa.string()),
    }
    for number, name in enumerate(SHOWN, 1):
        columns[name] = _numbers(devices[name])
        columns[name + "_p50"] = _numbers(_percentiles(state, number, (0.5,))[0])
    return pa.table([columns[name] for name in DEVICES_SCHEMA.names], schema=DEVICES_SCHEMA)


def _gaps_of_devices(state: State, gaps: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, per device, how many readings are missing, how many it has dropped, and the number of open gaps.

    :param gaps: the gaps of the boots in the state.
    """
    devices, old = state.devices, state.old_gaps
    ids = gaps["device_id"].combine_chunks().dictionary_encode()
    numbers = np.array([devices.index[device_id] for device_id in ids.dictionary.to_pylist()], dtype=np.int64)
    rows = np.append(numbers[ids.indices.to_numpy()], old["device"])
    lengths = gaps["missing"].to_numpy()
    missing = gaps["open"].to_numpy()
    dropped = gaps["announced"].to_numpy()

    def total(amounts: np.ndarray, name: str) -> np.ndarray:
        return _sums(rows, np.append(amounts, old[name]), len(devices))

    return total(lengths * missing, "missing"), total(lengths * dropped, "dropped"), total(missing, "open_gaps")


def _health(state: State, gaps: pa.Table, alerts: pa.Table, delay_p50: np.ndarray, as_of_us: int) -> np.ndarray:
    devices = state.devices
    applies = {word: np.zeros(len(devices), dtype=bool) for word in HEALTH}
    applies["ok"][:] = True
    applies["late"] = np.nan_to_num(delay_p50) > LATE_MS
    fresh = gaps["since"].cast(pa.int64()).fill_null(NEVER).to_numpy() >= as_of_us - GAP_US
    for device_id in gaps.filter(pa.array(fresh & gaps["open"].to_numpy()))["device_id"].to_pylist():
        applies["gaps"][devices.index[device_id]] = True
    open_alerts = alerts.filter(alerts["until"].is_null())
    for device_id, kind in zip(*(open_alerts[name].to_pylist() for name in ("device_id", "kind")), strict=True):
        if kind in _HEALTH_OF_ALERT:
            applies[_HEALTH_OF_ALERT[kind]][devices.index[device_id]] = True
    goodbye = np.isin(devices["status_reason"], [state.texts.get(reason, -2) for reason in GOODBYES])
    away = (devices["online"] == 0) & ~goodbye & (devices["status_us"] >= devices["last_us"])
    applies["offline"] |= away | (devices["last_us"] == NEVER)
    return np.array(HEALTH, dtype=object)[np.argmax([applies[word] for word in HEALTH], axis=0)]


def traffic_table(state: State) -> pa.Table:
    """Return the rows of TRAFFIC_SCHEMA for the minutes in the state."""
    minutes = np.array(sorted(state.minutes), dtype=np.int64)
    counts = np.array([state.minutes[minute] for minute in minutes.tolist()]).reshape(-1, 4)
    seen, devices = np.unique(state.minute_devices >> DEVICE_BITS, return_counts=True)
    by_minute = dict(zip(seen.tolist(), devices.tolist(), strict=True))
    delays = state.minute_delays
    groups, at = quantiles(delays.keys >> BIN_BITS, delays.counts, (0.5, 0.95))
    middle = from_bin((delays.keys & ((1 << BIN_BITS) - 1)) - BIN_ZERO)
    p50, p95 = (dict(zip(groups.tolist(), middle[which].tolist(), strict=True)) for which in at)
    columns = [
        pa.array(minutes * MINUTE_US).cast(TIMESTAMP),
        *(pa.array(counts[:, kind], pa.int64()) for kind in range(4)),
        pa.array([by_minute.get(minute, 0) for minute in minutes.tolist()], pa.int64()),
        pa.array([p50.get(minute) for minute in minutes.tolist()], pa.float64()),
        pa.array([p95.get(minute) for minute in minutes.tolist()], pa.float64()),
    ]
    return pa.table(columns, schema=TRAFFIC_SCHEMA)


def _percentiles(state: State, metric: int, shares: Sequence[float]) -> list[np.ndarray]:
    """Return percentiles of a metric: one array per share, indexed by device, NaN for a device without the metric.

    :param metric: number of the metric in the histogram.
    :param shares: for example 0.5 for the median.
    """
    keys, counts = state.histogram.keys, state.histogram.counts
    mine = (keys >> BIN_BITS & ((1 << METRIC_BITS) - 1)) == metric
    keys, counts = keys[mine], counts[mine]
    groups, at = quantiles(keys >> (BIN_BITS + METRIC_BITS), counts, shares)
    middle = from_bin((keys & ((1 << BIN_BITS) - 1)) - BIN_ZERO)
    found = []
    for which in at:
        column = np.full(len(state.devices), np.nan)
        column[groups] = middle[which]
        found.append(column)
    return found


def _boot_number(boot: str) -> int | None:
    number = boot.split("-", 1)[0]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 19 else None


def _times(us: np.ndarray) -> pa.Array:
    return pa.array(us, pa.int64(), mask=(us == NEVER) | (us == -NEVER)).cast(TIMESTAMP)


def _numbers(values: np.ndarray) -> pa.Array:
    return pa.array(values, pa.float64(), mask=np.isnan(values))
