"""Find the alerts that are not about metrics, open ones and past ones, as functions of gold's state and the time."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..alerts.journal import Finding, Verdict
from ..alerts.rules import Rule, RuleSet
from ..tables.schemas import ALERTS_SCHEMA, TIMESTAMP
from .columns import NEVER
from .gold_boots import boot_starts, follows, newest_boots
from .gold_state import DAY_US, GAP_US, KEPT_US, Refused, State, newest_silences

QUIET_US = DAY_US
"""The alert about quarantined messages ends after this many microseconds without such a message."""


class Alert(NamedTuple):
    """A row of gold/alerts; times in Unix microseconds."""

    device_id: str
    rule: str
    kind: str
    since: int | None
    until: int | None
    value: float | None
    text: str


def state_alerts(state: State, gaps: pa.Table, rules: RuleSet, as_of_us: int) -> list[Alert]:
    """Return the alerts of all rules that are not about a metric, in no particular order.

    Alerts that ended more than KEPT_US ago are left out. Of a device's silences, only the newest are included.

    :param gaps: rows of gold/gaps.
    :param as_of_us: the time to judge at, Unix microseconds.
    """
    ids = list(state.devices.index)
    found: list[Alert] = []
    starts: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    for rule in rules.rules:
        if rule.kind == "offline":
            mine = _offline(rule, state, ids, as_of_us)
        elif rule.kind == "gap":
            mine = _gaps(rule, gaps, as_of_us)
        elif rule.kind == "reboot_loop":
            starts = starts or boot_starts(state, unasked=True)
            mine = _loops(rule, starts[0], starts[1], ids, as_of_us)
        elif rule.kind == "memory_falling":
            mine = _memory(rule, state, ids)
        elif rule.kind == "quarantined":
            mine = _quarantined(rule, state, ids, as_of_us)
        elif rule.kind == "firmware":
            mine = _firmware(rule, state, ids)
        else:
            continue
        oldest = as_of_us - KEPT_US
        kept = (alert for alert in mine if alert.until is None or alert.until > oldest)
        found += [alert for alert in kept if rules.covers(rule, alert.device_id)]
    return found


def verdicts_of(alerts: Iterable[Alert], rules: RuleSet) -> list[Verdict]:
    """Return a verdict for each rule of :func:`state_alerts`: its oldest open alert of each device."""
    firing: dict[str, dict[str, Finding]] = {rule.name: {} for rule in rules.rules if not rule.is_metric}
    for alert in sorted((one for one in alerts if one.until is None), key=_by_time):
        firing[alert.rule].setdefault(alert.device_id, Finding(alert.since, alert.value, alert.text))
    return [Verdict(name, found) for name, found in firing.items()]


def alerts_table(alerts: Iterable[Alert]) -> pa.Table:
    """Return the alerts as rows of ALERTS_SCHEMA, sorted by device, rule and time."""
    rows = sorted(alerts, key=_by_time)
    columns = list(zip(*rows, strict=True)) if rows else [[]] * len(ALERTS_SCHEMA)
    arrays = [pa.array(column, one.type) for column, one in zip(columns, ALERTS_SCHEMA, strict=True)]
    return pa.table(arrays, schema=ALERTS_SCHEMA)


def _by_time(alert: Alert) -> tuple:
    return alert.device_id, alert.rule, alert.since or 0, alert.text


def _offline(rule: Rule, state: State, ids: Sequence[str], as_of_us: int) -> Iterable[Alert]:
    after_us = rule["after"]
    for device, silences in state.silences.items():
        for since, until in newest_silences(silences):
            if until - since > after_us:
                yield _silence(rule, ids[device], since, until, until)
    last = state.devices["last_us"]
    for device in np.flatnonzero((as_of_us - last > after_us) & (last != NEVER)).tolist():
        yield _silence(rule, ids[device], int(last[device]), as_of_us, None)


def _silence(rule: Rule, device_id: str, since: int, end: int, until: int | None) -> Alert:
    words = "nothing was heard" if until else "nothing has been heard since"
    return Alert(device_id, rule.name, rule.kind, since, until, (end - since) / 1e6, words)


def _gaps(rule: Rule, gaps: pa.Table, as_of_us: int) -> Iterable[Alert]:
    for gap in gaps.filter(gaps["open"]).to_pylist():
        if gap["missing"] >= rule["readings"]:
            words = f"{gap['missing']} readings missing, {gap['first']} to {gap['last']} of boot {gap['boot']}"
            since = None if gap["since"] is None else pa.scalar(gap["since"], TIMESTAMP).cast(pa.int64()).as_py()
            until = None if since is None or as_of_us - since <= GAP_US else since + GAP_US
            yield Alert(gap["device_id"], rule.name, rule.kind, since, until, float(gap["missing"]), words)


def loops(rule: Rule, device: np.ndarray, us: np.ndarray) -> list[tuple[int, int]]:
    """Return the runs of a device's boots in which any `boots` consecutive boots began within the rule's time `within`.

    :param device, us: device and time of each boot, as :func:`boot_starts` returns them.
    :returns: of each run, the indices of the first and the last boot.
    """
    boots, within_us = rule["boots"], rule["within"]
    ends = np.arange(boots - 1, len(us))
    begins = ends - boots + 1
    ends = ends[(device[ends] == device[begins]) & (us[ends] - us[begins] <= within_us)]
    new = ~follows(device[ends]) | (np.diff(ends, prepend=-2) != 1)
    firsts, lasts = ends[new] - boots + 1, ends[np.append(new[1:], True)[: len(ends)]]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _loops(rule: Rule, device: np.ndarray, us: np.ndarray, ids: Sequence[str], as_of_us: int) -> Iterable[Alert]:
    for first, last in loops(rule, device, us):
        count, end = last - first + 1, int(us[last])
        since = int(us[first + rule["boots"] - 1])
        until = None if as_of_us - end <= rule["within"] else end
        words = f"{count} boots in a row"
        yield Alert(ids[device[first]], rule.name, rule.kind, since, until, float(count), words)


def _memory(rule: Rule, state: State, ids: Sequence[str]) -> Iterable[Alert]:
    boots = state.boots
    ran = boots["last_us"] - boots["first_us"] >= rule["after"]
    with np.errstate(invalid="ignore"):
        falls = ran & (boots["mem_last"] < rule["share"] * boots["mem_first"])
    newest = newest_boots(state)
    for row in np.flatnonzero(falls).tolist():
        device = int(boots["device"][row])
        until = None if newest[device] == row else int(boots["last_us"][row])
        value = float(boots["mem_last"][row])
        words = f"mem_free fell from {boots['mem_first'][row]:.0f} to {value:.0f} bytes within a boot"
        yield Alert(ids[device], rule.name, rule.kind, int(boots["first_us"][row]), until, value, words)


def _quarantined(rule: Rule, state: State, ids: Sequence[str], as_of_us: int) -> Iterable[Alert]:
    """Yield runs of a device's quarantined messages that have no pause longer than QUIET_US."""
    runs: list[tuple[int, Refused]] = []
    oldest_day = (as_of_us - KEPT_US) // DAY_US
    for (device, day), one in sorted(state.refused.items()):
        if day < oldest_day:
            continue
        if runs and runs[-1][0] == device and one.first_us - runs[-1][1].last_us <= QUIET_US:
            runs[-1] = device, runs[-1][1].joined(one)
        else:
            runs.append((device, one))
    for device, run in runs:
        if run.total >= rule["messages"]:
            until = None if as_of_us - run.last_us <= QUIET_US else run.last_us
            yield Alert(ids[device], rule.name, rule.kind, run.first_us, until, float(run.total), run.reason)


def _firmware(rule: Rule, state: State, ids: Sequence[str]) -> Iterable[Alert]:
    """Yield devices whose newest boot runs none of the expected versions; one that ends in * matches as a prefix."""
    texts, boots = list(state.texts), state.boots
    for device, row in enumerate(newest_boots(state).tolist()):
        code = int(boots["fw"][row]) if row >= 0 else -1
        if code >= 0 and not any(_is_version(texts[code], one) for one in rule["expected"]):
            words = f"runs {texts[code]}, not {' or '.join(rule['expected'])}"
            yield Alert(ids[device], rule.name, rule.kind, int(boots["fw_us"][row]), None, None, words)


def _is_version(version: str, expected: str) -> bool:
    return version.startswith(expected[:-1]) if expected.endswith("*") else version == expected
