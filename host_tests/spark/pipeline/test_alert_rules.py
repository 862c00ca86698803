"""The rules of alerts.toml: what each finds, and a one-line error for a rule that cannot work."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from gold_fleet import QUERY, SECOND, assert_law, rows_of, table_of, telemetry
from spark_helpers import RECEIVED_MS

from spark_ingest.alerts.config import load
from spark_ingest.alerts.journal import Journal
from spark_ingest.alerts.rules import DEFAULT_RULES, KINDS, rules_from_text
from spark_ingest.errors import UsageError
from spark_ingest.gold import Gold
from spark_ingest.gold.alerts import Alerts
from spark_ingest.gold.database import Database
from spark_ingest.pipeline.run.command import main
from spark_ingest.pipeline.run.config import PipelineConfig
from spark_ingest.pipeline.run.upkeep import Upkeep
from spark_ingest.pipeline.write.batch import BatchWriter
from spark_ingest.tables.delta import Delta
from spark_ingest.tables.schemas import PARTITIONED_BY, SCHEMAS

DOCS = Path(__file__).resolve().parents[3] / "docs"
NOW = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
NOW_US = int(NOW.timestamp()) * 1_000_000
MINUTE = timedelta(minutes=1)
HOUR = 60 * MINUTE
DAY = 24 * HOUR
GROUPS = "device,group,site\na,pumps,north\nb,pumps,north\nc,pumps,south\nd,fans,\n"


def rules_of(folder, text: str):
    (folder / "alerts.toml").write_text(text)
    (folder / "groups.csv").write_text(GROUPS)
    return load(folder / "alerts.toml").rules


def a_window(device: str, ago: timedelta, mean: float, metric: str = "t") -> dict:
    """Return a five-minute window that began `ago` before NOW, with a reading at its end."""
    start = NOW - ago
    figures = dict.fromkeys(("min", "max", "mean", "sum", "last"), mean)
    last = {"n": 1, "last_ts": start + 5 * MINUTE, "window_date": start.date(), "window_hour": start.hour}
    return {"device_id": device, "window_start": start, "metric": metric, **figures, **last}


def windows(device: str, *means: float, every: timedelta = 5 * MINUTE, metric: str = "t") -> list[dict]:
    """Return windows of a device, the newest of which ends NOW."""
    return [a_window(device, every * n + 5 * MINUTE, mean, metric) for n, mean in enumerate(reversed(means))]


def judged(folder, text: str, rows: list[dict], heard: dict[str, timedelta] | None = None) -> tuple[dict, set]:
    """Judge the file's one rule about a metric; return what it finds and which devices it judged.

    The findings are {device: (minutes since, value)}.
    """
    table = Delta(folder / "windows", SCHEMAS["gold/windows"], PARTITIONED_BY["gold/windows"], "window_hour")
    write_deltalake(table.delta, pa.Table.from_pylist(rows, SCHEMAS["gold/windows"]), mode="append")
    last = dict.fromkeys(sorted({row["device_id"] for row in rows}), NOW_US)
    last |= {name: NOW_US - ago // timedelta(microseconds=1) for name, ago in (heard or {}).items()}
    db = Database(folder)
    alerts = Alerts(table, Journal(folder), rules_of(folder, text), lambda _alert: ())
    alerts.fill(db)
    db.connection.executemany("INSERT INTO devices (device_id, last_us) VALUES (?, ?)", [*last.items()])
    (verdict,) = alerts.of_metrics(db, NOW_US)
    db.close()
    found = {name: ((NOW_US - one.since) // 60_000_000, round(one.value, 2)) for name, one in verdict.firing.items()}
    return found, set(verdict.judged)


def rule(kind: str, keys: str) -> str:
    return f'groups = "groups.csv"\n[[rule]]\nname = "mine"\nkind = "{kind}"\n{keys}'


THRESHOLD = rule("threshold", 'metric = "t"\nabove = 60\nbelow = 10\nafter = "10m"')
MEDIAN = rule("group_median", 'metric = "t"\nby = 4\nafter = "10m"')
OWN_WEEK = rule("own_week", 'metric = "t"\nby = 4')
BATTERY = rule("battery", 'empty = 3.0\nwithin = "10d"')
MISSING = rule("missing", 'metric = "t"\nafter = "1h"')


def at_this_hour(device: str, *means: float) -> list[dict]:
    """Return a window per day at NOW's hour, and others half a day apart with very different values."""
    days = [a_window(device, DAY * (n + 1), mean) for n, mean in enumerate(means)]
    return days + [a_window(device, DAY * (n + 1) - 12 * HOUR, mean + 50) for n, mean in enumerate(means)]


def falling(device: str, volts: float, a_day: float, days: int = 6) -> list[dict]:
    """Return supply_v every four hours, falling by `a_day` a day to `volts` at NOW."""
    hours = [4 * n for n in range(1, 6 * days)]
    return [a_window(device, n * HOUR, volts + a_day * n / 24, "supply_v") for n in hours]


@pytest.mark.parametrize(
    ("text", "rows", "found", "looked_at"),
    [
        (THRESHOLD, windows("a", 50, 61, 62, 63), {"a": (15, 63.0)}, "a"),
        (THRESHOLD, windows("a", 5, 5) + windows("b", 61, 20), {"a": (10, 5.0)}, "ab"),
        (THRESHOLD, windows("a", 61, 61, 20, 61), {}, "a"),
        (THRESHOLD, [a_window("a", 3 * HOUR, 61)], {}, ""),
        (THRESHOLD + '\nsites = ["south"]', windows("a", 61, 61) + windows("c", 61, 61), {"c": (10, 61.0)}, "c"),
        (
            MEDIAN,
            windows("a", 20, 20, 20) + windows("b", 21, 21, 21) + windows("c", 20, 26, 26) + windows("d", 90, 90),
            {"c": (10, 5.0)},
            "abc",
        ),
        (MEDIAN, windows("a", 20, 20) + windows("b", 90, 90), {}, ""),
        # Devices that report every 20 minutes, each at another time: 55 minutes ago only c had sent, then all.
        (
            MEDIAN,
            [
                a_window(name, 20 * n * MINUTE + ago * MINUTE, mean)
                for name, ago, mean in (("a", 5, 20), ("b", 10, 21), ("c", 15, 30))
                for n in range(3)
            ],
            {"c": (35, 9.0)},
            "abc",
        ),
        # A newest window that is not over: a single reading is no mean yet.
        (THRESHOLD, [*windows("a", 20, 20, 20), a_window("a", MINUTE, 61)], {}, "a"),
        (OWN_WEEK, at_this_hour("a", 20, 21, 22) + windows("a", 26), {"a": (5, 5.0)}, "a"),
        (OWN_WEEK, at_this_hour("a", 20, 21, 22) + windows("a", 24), {}, "a"),
        (OWN_WEEK, at_this_hour("a", 20, 21) + windows("a", 90), {}, ""),
        (
            BATTERY,
            falling("a", 3.4, 0.05) + falling("b", 3.6, 0.05) + falling("c", 2.9, 0.0) + falling("d", 3.4, 0.05, 1),
            {"a": (30, 8.0), "c": (30, 0.0)},
            "abc",
        ),
        (MISSING, [*windows("a", 1, 1), a_window("b", 3 * HOUR, 1)], {"b": (175, 175 * 60.0)}, "ab"),
    ],
)  # fmt: skip
def test_a_rule_about_a_metric_finds_what_it_is_for(tmp_path, text, rows, found, looked_at):
    """Planted: a run of windows that continues over a good one, the week at any hour, the group of another device."""
    assert judged(tmp_path, text, rows) == (found, set(looked_at))


def sampled(folder, text: str, readings: list[tuple[str, float, float]], until: float = 0) -> dict[str, tuple]:
    """Return what the file's one rule finds in readings (device, minute, value of t): {device: (value, text)}."""
    folder.mkdir(exist_ok=True)
    messages = [reading(name, seq, minute, t=value) for seq, (name, minute, value) in enumerate(readings)]
    messages += [reading("clock", 0, until)] if until else []
    write(folder, sorted(messages, key=lambda message: message[2]))
    rules = rules_of(folder, text)
    Gold(folder, rules=rules).update()
    rows = DeltaTable(str(folder / "gold" / "alerts")).to_pyarrow_table().to_pylist()
    return {row["device_id"]: (round(row["value"], 2), row["text"]) for row in rows if row["rule"] == "mine"}


def steps(*values: float, every: float = 1.0) -> list[tuple[str, float, float]]:
    return [("a", every * n, value) for n, value in enumerate(values)]


# within, readings of t -> the change that is found
RATES = {
    "a step of 12 within a minute": ("1m", steps(20, 20, 32, every=0.5), 12),
    "a step of 12 within ten minutes": ("10m", steps(20, 20, 20, 32), 12),
    "a step of 1000": ("10m", steps(*[0] * 9, 1000), 1000),
    "a step just before": ("5m", steps(20, 20, 32, 32, 32), 12),
    "a step that is over": ("3m", steps(20, 20, *[32] * 5), None),
    "a slow drift": ("2m", steps(20, 22, 24, 26, 28, 30), None),
    "the other way": ("10m", steps(32, 20), None),
    "late, all in another order": ("10m", steps(20, 20, 32)[::-1], 12),
}


@pytest.mark.parametrize("case", RATES)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_rate_is_the_change_of_readings_and_not_of_means(tmp_path, case, sign):
    """Planted: five-minute means, which never differ within five minutes, and level a step."""
    within, readings, change = RATES[case]
    readings = [(name, minute, sign * value) for name, minute, value in readings]
    found = sampled(tmp_path, rule("rate", f'metric = "t"\nchange = {sign * 10}\nwithin = "{within}"'), readings)
    assert {name: value for name, (value, _text) in found.items()} == ({} if change is None else {"a": sign * change})


def test_a_rate_says_from_what_to_what_in_which_time(tmp_path):
    found = sampled(tmp_path, rule("rate", 'metric = "t"\nchange = 10\nwithin = "5m"'), steps(20, 21, 32.5))
    assert found == {"a": (12.5, "t went from 20 to 32.5 in 2 min")}
    quick = sampled(tmp_path / "q", rule("rate", 'metric = "t"\nchange = 10\nwithin = "5m"'), steps(20, 32, every=0.5))
    assert quick == {"a": (12.0, "t went from 20 to 32 in 30 s")}


def test_one_reading_at_the_beginning_of_a_window_is_no_mean_yet(tmp_path):
    """Planted: the newest window is judged before it is over."""
    calm = [("a", minute, 20.0) for minute in range(9)]
    text = rule("threshold", 'metric = "t"\nabove = 60')
    assert sampled(tmp_path / "1", text, [*calm, ("a", 10, 90.0)]) == {}
    found = sampled(tmp_path / "2", text, [*calm, *(("a", 10 + n, 90.0) for n in range(3))], 30)
    assert found == {"a": (90.0, "t 90 is above 60")}


@pytest.mark.parametrize(("behind_h", "shown"), [(0, None), (8, 8), (1, 1), (-9, None)])
def test_a_clock_that_is_whole_hours_behind_is_shown_and_switches_no_alarm_off(tmp_path, behind_h, shown):
    """Planted: windows are looked for where a right clock would have dated them."""
    messages = []
    for minute in range(40):
        payload, received = reading("a", minute, minute, t=90.0 if minute > 20 else 20.0)[1:]
        record = json.loads(payload)
        record["ts"] -= behind_h * 3_600_000
        messages.append(("fleet/a/telemetry", json.dumps(record).encode(), received + 700))
    write(tmp_path, messages)
    rules = rules_of(tmp_path, rule("threshold", 'metric = "t"\nabove = 60\nafter = "5m"'))
    Gold(tmp_path, rules=rules).update()
    assert open_alerts(tmp_path) == {("a", "mine")}
    (device,) = DeltaTable(str(tmp_path / "gold" / "devices")).to_pyarrow_table().to_pylist()
    assert device["clock_behind_h"] == shown


def test_readings_that_come_late_from_a_right_clock_are_not_taken_for_a_wrong_one(tmp_path):
    """Planted: any delay of hours is a clock's."""
    late = [(*reading("a", n, n, t=1.0)[:2], RECEIVED_MS + (300 + n % 3) * 60 * SECOND) for n in range(60)]
    steady = [(*reading("b", n, n, t=1.0)[:2], RECEIVED_MS + (90 + n) * 60 * SECOND) for n in range(60)]
    write(tmp_path, sorted(late + steady, key=lambda message: message[2]))
    Gold(tmp_path).update()
    devices = DeltaTable(str(tmp_path / "gold" / "devices")).to_pyarrow_table().to_pylist()
    assert [device["clock_behind_h"] for device in devices] == [None, None]


def logged(boot: int, seq: int, began_h: float, minute: float, received: int, **metrics: float):
    """Return a reading of a logger, taken a while after its boot began, and received with all others."""
    at = RECEIVED_MS + round(began_h * 3_600_000)
    up = round(minute * 60_000)
    return (*telemetry("a", f"{boot}-x", seq, at + up, up, **metrics), received)


@pytest.mark.parametrize(("apart_h", "loop"), [(24, False), (0.1, True)])
def test_boots_that_are_delivered_in_one_go_are_a_loop_only_if_they_began_soon_after_one_another(
    tmp_path, apart_h, loop
):
    """Planted: a boot begins when it is first heard of."""
    received = RECEIVED_MS + 10 * 24 * 3600 * SECOND
    boots = [logged(n, seq, n * apart_h, seq, received + 10 * n + seq) for n in range(8) for seq in range(3)]
    write(tmp_path, boots)
    Gold(tmp_path).update()
    alerts = DeltaTable(str(tmp_path / "gold" / "alerts")).to_pyarrow_table().to_pylist()
    assert ("reboot_loop" in {row["kind"] for row in alerts}) is loop
    assert_law(tmp_path, 0)


def test_a_leak_that_is_delivered_in_one_go_is_one(tmp_path):
    """Planted: a boot lasts from its first to its last message, as they were received."""
    received = RECEIVED_MS + 24 * 3600 * SECOND
    write(tmp_path, [logged(1, n, 0, 20 * n, received + n, mem_free=1e5 - 1e4 * n) for n in range(8)])
    Gold(tmp_path).update()
    assert open_alerts(tmp_path) == {("a", "memory_falling")}


def test_gaps_and_firmware_that_are_over_stay_in_the_table_for_a_while(tmp_path):
    """Planted: only what the tables still tell is in gold/alerts."""
    rules = rules_of(tmp_path, rule("firmware", 'expected = ["2.*"]') + '\n[[rule]]\nname = "gap"\nreadings = 5')
    said = [("fleet/a/status", b'{"online":true,"boot":"1-x","fw":"%s"}' % fw, RECEIVED_MS + n * SECOND)
            for n, fw in enumerate((b"1.0", b"2.0"))]  # fmt: skip
    write(tmp_path, [said[0], reading("a", 0, 0), reading("a", 9, 1)])
    Gold(tmp_path, rules=rules).update()
    assert open_alerts(tmp_path) == {("a", "mine"), ("a", "gap")}
    write(tmp_path, [said[1], *(reading("a", seq, 2) for seq in range(1, 9))], 1)
    Gold(tmp_path, rules=rules).update()
    assert open_alerts(tmp_path) == set()
    alerts = DeltaTable(str(tmp_path / "gold" / "alerts")).to_pyarrow_table().to_pylist()
    assert {row["rule"]: row["until"] is not None for row in alerts} == {"mine": True, "gap": True}
    assert_law(tmp_path, 0)


def refused(minute: float, topic: str = "fleet/a/telemetry") -> tuple[str, bytes, int]:
    return topic, b"damaged %f" % minute, RECEIVED_MS + round(minute * 60 * SECOND)


def test_one_quarantined_message_is_no_alert_two_are_and_a_device_that_is_well_ends_it(tmp_path):
    """Planted: one message is enough; the text lacks the topic; the alert lasts a day."""
    write(tmp_path, [reading("a", 0, 0), refused(1)])
    Gold(tmp_path).update()
    assert open_alerts(tmp_path) == set()
    write(tmp_path, [refused(2), reading("a", 1, 3)], 1)
    Gold(tmp_path).update()
    (alert,) = DeltaTable(str(tmp_path / "gold" / "alerts")).to_pyarrow_table().to_pylist()
    assert alert["until"] is None and alert["value"] == 2
    assert alert["text"].startswith("fleet/a/telemetry: not JSON")
    write(tmp_path, [reading("a", 2, 17)], 2)
    Gold(tmp_path).update()
    assert open_alerts(tmp_path) == set()
    assert_law(tmp_path, 0)


def test_a_fleet_that_is_silent_as_a_whole_is_silent_until_now(tmp_path):
    """Planted: silence ends at the newest message of all, even when nothing waits."""
    write(tmp_path, [reading("a", 0, 0)])
    Gold(tmp_path).update((RECEIVED_MS + 7200 * SECOND) * 1000)
    (alert,) = DeltaTable(str(tmp_path / "gold" / "alerts")).to_pyarrow_table().to_pylist()
    assert (alert["kind"], alert["value"]) == ("offline", 7200.0)


def test_the_last_value_of_a_window_is_that_of_the_last_place(tmp_path):
    """Planted: of readings of one time, the largest."""
    for name, batches in {"one": [range(30, 18, -2)], "two": [range(30, 24, -2), range(24, 18, -2)]}.items():
        (tmp_path / name).mkdir()
        writer, gold, seq = BatchWriter(tmp_path / name, tmp_path / name / "state"), Gold(tmp_path / name), 0
        for number, values in enumerate(batches):
            sent = [
                (*telemetry("a", "1-x", seq + n, None, None, t=float(v)), RECEIVED_MS) for n, v in enumerate(values)
            ]
            seq += len(sent)
            writer.write(table_of(sent, 10 * number), number, QUERY)
            gold.update()
        (window,) = DeltaTable(str(tmp_path / name / "gold" / "windows")).to_pyarrow_table().to_pylist()
        assert (window["last"], window["max"], window["n"]) == (20.0, 30.0, 6)


def test_a_metric_is_not_missing_in_a_device_that_says_nothing_at_all(tmp_path):
    """Planted: a device's silence is taken for a failed sensor."""
    rows = [a_window("a", 3 * HOUR, 1), a_window("b", 3 * HOUR, 1)]
    found, looked_at = judged(tmp_path, MISSING, rows, {"a": 2 * HOUR, "c": timedelta()})
    assert set(found) == looked_at == {"b"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = ", "is not TOML"),
        ("rules = 1", "there is no key rules"),
        ("rule = 1", "has no [[rule]]"),
        ('groups = "none.csv"', "cannot read"),
        ("groups = 3", "groups = 3 must be the name of a CSV file"),
        ("[[rule]]\nkind = 'gap'", "rule 1: name must be text"),
        ('[[rule]]\nname = "a\\u001b"', "name must be text of 1 to 64 characters that print"),
        (rule("storm", ""), "rule 'mine': kind 'storm' is none of offline, gap"),
        (rule("gap", "reading = 3"), "rule 'mine': gap has no key reading; it has readings, groups, sites"),
        (rule("gap", "readings = 0"), "rule 'mine': readings = 0 must be a whole number above 0"),
        (rule("gap", "readings = true"), "readings = True must be a whole number"),
        (rule("offline", "after = 900"), "rule 'mine': after = 900 must be a time like"),
        (rule("offline", 'after = "0s"'), "after = '0s' must be longer than 0"),
        (rule("offline", 'after = "99999999d"'), "after = '99999999d' must be a time like"),
        (rule("firmware", ""), "rule 'mine': firmware needs the key expected"),
        (rule("firmware", 'expected = "1.4"'), "expected = '1.4' must be a list of texts"),
        (rule("threshold", 'metric = "t"'), "threshold needs the key above or below"),
        (rule("threshold", 'metric = "t"\nabove = nan'), "above = nan must be a number"),
        (rule("threshold", 'metric = "t"\nabove = 1\nafter = "2d"'), "after and within are at most 1d"),
        (rule("rate", 'metric = "t"\nwithin = "1h"\nchange = 0'), "change = 0 must be a number other than 0"),
        (rule("memory_falling", "share = 1"), "share = 1 must be a number between 0 and 1"),
        (rule("gap", 'groups = ["pump"]'), "groups: no device of groups.csv belongs to 'pump'"),
        (rule("gap", "") + rule("gap", "").partition("\n")[2], "two rules are called 'mine'"),
        ('[[rule]]\nname = "mine"\noff = true', "off = true stands alone, and only for offline, gap"),
        ('[[rule]]\nname = "gap"\noff = false', "off = true stands alone"),
    ],
)
def test_a_rule_that_cannot_work_is_one_line_with_file_rule_and_key(tmp_path, text, line):
    with pytest.raises(UsageError) as caught:
        rules_of(tmp_path, text)
    assert line in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("device;group;site\n", "the first line must be device,group,site"),
        ("", "the first line must be device,group,site"),
        ("device,group,site\na,b\n", "line 2: must be device,group,site"),
        ("device,group,site\na,b,c\n\na,b,c\n", "line 4: 'a' is listed twice"),
        ('device,group,site\na,"b\x1b",c\n', "line 2: a group or site is at most 64 characters that print"),
        ('device,group,site\na,"b\n', "is not CSV"),
    ],
)
def test_a_line_of_groups_that_cannot_be_is_told(tmp_path, text, line):
    (tmp_path / "alerts.toml").write_text('groups = "g.csv"')
    (tmp_path / "g.csv").write_text(text)
    with pytest.raises(UsageError, match=r"g\.csv") as caught:
        load(tmp_path / "alerts.toml")
    assert line in str(caught.value)


def test_rules_and_groups_are_kept_with_gold_as_they_were_read(tmp_path):
    several = rule("gap", 'readings = 7\ngroups = ["pumps"]') + '\n[[rule]]\nname = "offline"\noff = true\n'
    rules = rules_of(tmp_path, several)
    assert rules_from_text(rules.as_text()) == rules
    assert [one.name for one in rules.rules] == ["gap", "reboot_loop", "memory_falling", "quarantined", "mine"]
    assert [one.name for one in DEFAULT_RULES.rules] == ["offline", *[one.name for one in rules.rules[:-1]]]
    for kept in ("", "{}", '{"rules": [{"name": "x", "kind": "of a newer release"}], "groups": {}}'):
        with pytest.raises(ValueError):
            rules_from_text(kept)


def reading(device: str, seq: int, minutes: float, **metrics: float) -> tuple[str, bytes, int]:
    at = RECEIVED_MS + round(minutes * 60 * SECOND)
    return (*telemetry(device, "1-x", seq, at, 5, **metrics), at)


def write(folder, messages, batch_id: int = 0) -> None:
    BatchWriter(folder, folder / "state").write(table_of(messages, 100 * batch_id), batch_id, QUERY)


def open_alerts(folder) -> set[tuple[str, str]]:
    rows = DeltaTable(str(folder / "gold" / "alerts")).to_pyarrow_table().to_pylist()
    return {(row["device_id"], row["rule"]) for row in rows if row["until"] is None}


def test_gold_judges_by_the_file_and_a_rebuild_by_the_same_rules(tmp_path):
    """Planted: a rebuild with the defaults, and a metric's alert that ends because the device sends nothing more."""
    text = """
        groups = "groups.csv"
        [[rule]]
        name = "offline"
        kind = "offline"
        after = "2h"
        [[rule]]
        name = "fans offline"
        kind = "offline"
        after = "30m"
        groups = ["fans"]
        [[rule]]
        name = "warm"
        kind = "threshold"
        metric = "temp_c"
        above = 60
        [[rule]]
        name = "old firmware"
        kind = "firmware"
        expected = ["2.*"]
    """
    rules = rules_of(tmp_path, text)
    folder = tmp_path / "tables"
    folder.mkdir()
    versions = [("a", "1.9"), ("b", "2.1")]
    boots = [(f"fleet/{one}/status", b'{"online":true,"boot":"1-x","fw":"%s"}' % fw.encode(), RECEIVED_MS)
             for one, fw in versions]  # fmt: skip
    write(folder, [*boots, reading("a", 0, 0, temp_c=70.0), reading("d", 0, 0), reading("b", 0, 40)])
    Gold(folder, rules=rules).update()
    assert open_alerts(folder) == {("a", "warm"), ("a", "old firmware"), ("d", "fans offline")}
    write(folder, [reading("b", 1, 400)], 1)
    Gold(folder, rules=rules).update()
    expected = {("a", "warm"), ("a", "old firmware"), ("d", "fans offline"), ("a", "offline"), ("d", "offline")}
    assert open_alerts(folder) == expected, "a device that says nothing more has not recovered"
    rows = assert_law(folder, 0)
    devices = DeltaTable(str(folder / "gold" / "devices")).to_pyarrow_table().to_pylist()
    assert {row["device_id"]: (row["health"], row["device_group"], row["site"]) for row in devices} == {
        "a": ("offline", "pumps", "north"),
        "b": ("ok", "pumps", "north"),
        "d": ("offline", "fans", None),
    }
    write(folder, [reading("a", 1, 401, temp_c=20.0), reading("b", 2, 406)], 2)
    Gold(folder, rules=rules).update()
    assert len(rows_of(folder)["alerts"]) >= len(rows["alerts"]), "what is over stays for a while"
    assert ("a", "warm") not in open_alerts(folder) and ("d", "offline") in open_alerts(folder)
    Gold(folder).update()
    assert open_alerts(folder) == {("d", "offline")}, "the defaults"


@pytest.mark.parametrize(("lag_bytes", "silent"), [(0, {("a", "offline")}), (1, set()), (None, set())])
def test_nobody_is_silent_while_the_spool_has_messages_that_were_not_read(tmp_path, lag_bytes, silent):
    """Planted: silence is measured against the clock whatever waits, so that a start after a pause alerts for all."""
    write(tmp_path, [reading("a", 0, 0)])
    Upkeep(PipelineConfig(None, tmp_path, tmp_path), on_stage=lambda _stage: None).finish(lag_bytes)
    assert open_alerts(tmp_path) == silent


@pytest.mark.parametrize("options", [["--no-gold"], []])
def test_alerts_that_nobody_would_look_for_and_a_file_that_cannot_work_end_the_start(tmp_path, capsys, options):
    """Planted: `--alerts` is accepted and ignored."""
    (tmp_path / "alerts.toml").write_text("x = 1")
    folders = [word for name in ("spool", "tables", "checkpoint") for word in (f"--{name}", str(tmp_path / name))]
    assert main([*folders, "--alerts", str(tmp_path / "alerts.toml"), *options]) == 2
    line = "--alerts needs gold" if options else "there is no key x"
    assert line in capsys.readouterr().err


def test_the_page_lists_every_kind_and_key():
    """Planted: a kind that only the code has."""
    page = (DOCS / "alerts.md").read_text()
    for kind, keys in KINDS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{kind}` |")]
        assert all(f"`{key}`" in row for key in keys), row


def test_the_files_on_the_page_are_taken_as_they_stand(tmp_path):
    """Planted: a key of the page that the code does not have."""
    blocks = re.findall(r"^```(toml|csv)\n(.*?)^```", (DOCS / "alerts.md").read_text(), re.MULTILINE | re.DOTALL)
    assert {kind for kind, _ in blocks} == {"toml", "csv"}
    for name, wanted in (("alerts.toml", "toml"), ("groups.csv", "csv")):
        parts = [block for kind, block in blocks if kind == wanted]
        # Keys at the top of the file are shown apart from its tables, and come before them.
        heads = [block.partition("\n[[")[0] for block in parts]
        rest = [block.removeprefix(head) for block, head in zip(parts, heads, strict=True)]
        (tmp_path / name).write_text("\n".join(heads + rest))
    config = load(tmp_path / "alerts.toml")
    names = [rule.name for rule in config.rules.rules]
    assert {"offline", "too warm", "battery"} <= set(names) and "memory_falling" not in names
    assert [one.name for one in config.destinations] == ["operations", "web hook", "panel"] and config.silences
