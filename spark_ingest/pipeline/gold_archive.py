"""Boots that are over leave the state of gold, which would grow with each boot of the fleet otherwise.

Of a boot that has left, the sums are added to its device, its rows in gold/boots and gold/gaps stay as they were
written, and of its name a 64-bit hash remains, with the sums of its gaps if it has any. If something still comes for
it, it is counted anew from the tables and put back (:func:`put_back`), so gold is the same as if it had never left.
Only one thing is not done for boots that have left: should a collector turn out to have begun earlier, their gaps keep
the state that they had.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from ..alerts.rules import RuleSet
from .dedup import SEPARATOR, boot_hash
from .gold_alerts import loops
from .gold_boots import boot_starts, follows, heard_us, in_order, newest_boots
from .gold_state import DAY_US, MOST_RANGES, OLD_GAPS, State, as_one
from .gold_tables import gap_sums, parted_gaps

SILENT_US = 90 * DAY_US
"""A boot leaves the state if it and the device's next boot have been silent for longer, in microseconds.

More than KEPT_US, so that no alert in gold/alerts needs a boot that has left.
"""


def archive(state: State, rules: RuleSet) -> np.ndarray | None:
    """Let the boots leave that are over; return the rows of those that stay, None if all do."""
    leaves = _over(state, rules)
    if not leaves.any():
        return None
    boots, keys = state.boots, list(state.boots.index)
    names = {_name(keys[row]) for row in np.flatnonzero(leaves).tolist()}
    gapped = {name: parts for name, parts in parted_gaps(state).items() if parts and name in names}
    hashes = _hashes(SEPARATOR.join(name) for name in gapped).tolist()
    sums = [(state.devices.index[name[0]], *gap_sums(parts)) for name, parts in gapped.items()]
    gone = [(one, *rest) for one, rest in zip(hashes, sums, strict=True)]
    state.old_gaps = np.append(state.old_gaps, np.array(gone, dtype=OLD_GAPS))
    device = boots["device"][leaves]
    state.devices.add("old_boots", device)
    state.devices.add("old_readings", device, boots["readings"][leaves])
    state.devices.add("old_ok", device, boots["ok"][leaves])
    state.devices.raise_to("old_event_us", device, state.last_event_us[leaves])
    state.archived = np.union1d(state.archived, _hashes(SEPARATOR.join(name) for name in names))
    stay = np.flatnonzero(~leaves)
    moved = np.full(len(keys), -1)
    moved[stay] = np.arange(len(stay))
    since = {(int(moved[boot]), last): us for (boot, last), us in state.gap_since.items()}
    state.gap_since = {key: us for key, us in since.items() if key[0] >= 0}
    for held in (state.announced, state.unread):
        for name in names & held.keys():
            del held[name]
    state.seen.drop(names)
    boots.keep(stay)
    return stay


def _over(state: State, rules: RuleSet) -> np.ndarray:
    """Return which boots are over. The newest of each device stays, and the one before any that is not silent."""
    boots = state.boots
    looping = [rule for rule in rules.rules if rule.kind == "reboot_loop"]
    oldest_us = state.newest_us - max([SILENT_US, *(2 * rule["within"] for rule in looping)])
    silent = (heard_us(state) < oldest_us) & ~state.unnumbered
    newest = newest_boots(state)
    silent[newest[newest >= 0]] = False
    if looping and silent.any():
        device, us, rows = boot_starts(state, unasked=True)
        for rule in looping:
            for first, last in loops(rule, device, us):
                if us[last] >= oldest_us:
                    silent[rows[first : last + 1]] = False
    rows = in_order(state)
    leaves = np.zeros(len(boots), dtype=bool)
    leaves[rows[:-1][silent[rows[:-1]] & silent[rows[1:]] & follows(boots["device"][rows])[1:]]] = True
    return leaves


def returning(state: State, keys: Iterable[str]) -> list[str]:
    """Return those of the keys of boots that have left the state."""
    new = [key for key in keys if key not in state.boots.index]
    return [key for key, one in zip(new, is_archived(state, new).tolist(), strict=True) if one]


def is_archived(state: State, keys: Iterable[str]) -> np.ndarray:
    """Return which boots have left the state, by their keys."""
    hashes = _hashes(keys)
    if not len(state.archived):
        return np.zeros(len(hashes), dtype=bool)
    # numpy's isin would sort what is sorted already.
    at = np.searchsorted(state.archived, hashes)
    return state.archived[np.minimum(at, len(state.archived) - 1)] == hashes


def put_back(state: State, counted: State, keys: list[str]) -> None:
    """Put boots back that have left.

    :param counted: the state of these boots alone, as the tables have them: it may lack some that retention removed.
    """
    names = [_name(key) for key in keys]
    boots, other = state.boots, counted.boots
    rows = boots.rows(pa.array(keys, pa.string()))
    boots["device"][rows] = state.devices.rows(pa.array([device_id for device_id, _boot in names], pa.string()))
    some = np.array([key in other.index for key in keys])
    here, there = rows[some], np.array([other.index[key] for key in keys if key in other.index], dtype=np.int64)
    for name in set(boots.names) - {"device", "collector", "cause", "reason", "fw"}:
        boots[name][here] = other[name][there]
    for name in ("cause", "reason", "fw"):
        boots[name][here] = state.codes_of(counted.text(other[name][there]).to_pylist())
    received_by = other["collector"][there]
    known = received_by >= 0
    collectors = pa.array(list(counted.collectors.index), pa.string()).take(pa.array(received_by[known]))
    boots["collector"][here[known]] = state.collectors.rows(collectors)
    state.goodbyes |= counted.goodbyes
    state.assign_goodbyes()
    device = boots["device"][rows]
    state.devices.add("old_boots", device, -1)
    state.devices.add("old_readings", device, -boots["readings"][rows])
    state.devices.add("old_ok", device, -boots["ok"][rows])
    state.seen.apply(counted.seen.to_table())
    numbers = dict(zip(there.tolist(), here.tolist(), strict=True))
    state.gap_since |= {(numbers[boot], last): us for (boot, last), us in counted.gap_since.items()}
    for kind in ("announced", "unread"):
        many = state.devices[f"{kind}_ranges"] > MOST_RANGES
        for name, ranges in getattr(counted, kind).items():
            over = many[state.devices.index[name[0]]]
            getattr(state, kind)[name] = as_one(ranges) if over else ranges
    back = _hashes(keys)
    state.old_gaps = state.old_gaps[~np.isin(state.old_gaps["hash"], back)]
    state.archived = np.setdiff1d(state.archived, back)


def _name(key: str) -> tuple[str, str]:
    device_id, _, boot = key.partition(SEPARATOR)
    return device_id, boot


def _hashes(keys: Iterable[str]) -> np.ndarray:
    return np.fromiter(map(boot_hash, keys), dtype=np.uint64)
