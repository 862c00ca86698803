"""The data of the page is right, checked against the tables by slower and simpler means."""

import json
import math
import random
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import umqtt_page
from deltalake import DeltaTable, write_deltalake
from gold_tables import DAY, END_US, HOUR, MADE_AT, MINUTE, OUTAGE_S, US, decoded, empty, fleet, outage, write_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st
from umqtt_testkit.waiting import WAIT_LIMIT_S

from spark_ingest.errors import IngestError, UsageError
from spark_ingest.report import data as report_data
from spark_ingest.report import write_report
from spark_ingest.report.data import Timeline, collect, encoded
from spark_ingest.report.tables import Tables
from spark_ingest.tables.schemas import HEALTH, SCHEMAS


def collected(tables: Path, days: float = 7) -> dict[str, Any]:
    return collect(Tables(tables), days)


def chart(data: dict[str, Any], title: str) -> tuple[dict[str, Any], dict[str, list]]:
    """Return a chart, and its series by name."""
    found = next(one for one in data["charts"] if one["title"] == title)
    return found, {one["name"]: one["values"] for one in found["series"]}


def rows(tables: Path, name: str) -> list[dict]:
    return DeltaTable(str(tables / "gold" / name)).to_pyarrow_table().to_pylist()


def umqtt(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "umqtt_cli", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False, cwd=cwd)


def test_the_page_knows_every_health_that_gold_may_say() -> None:
    """Planted: a health is added to the tables only."""
    tones = umqtt_page.read("dom.js").decode().partition("const TONES")[2].partition("}));")[0]
    assert [word for word in HEALTH if f"{word}: " not in tones] == []


def test_the_same_tables_give_the_same_page_byte_for_byte_at_the_same_time(
    tables: Path, page_file: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again.html"
    write_report(tables, again, made_at=MADE_AT)
    assert again.read_bytes() == page_file.read_bytes()


def test_lines_and_bands_are_the_means_and_percentiles_of_the_windows(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    fleet(tmp_path, devices=15, days=2, seed=seed)
    data = collected(tmp_path)
    assert [one["metric"] for one in data["metrics"]] == ["supply_v", "temp_c", "mem_free", "rssi"]
    cells: dict[tuple, list] = defaultdict(lambda: [0.0, 0])
    for row in rows(tmp_path, "windows"):
        metric = next(one for one in data["metrics"] if one["metric"] == row["metric"])
        step = int(row["window_start"].timestamp() - metric["start"]) // metric["step"]
        cell = cells[row["metric"], row["device_id"], step]
        cell[0] += row["sum"]
        cell[1] += row["n"]
    means = {key: total / n for key, (total, n) in cells.items()}
    ids = data["devices"]["id"]
    for metric in data["metrics"]:
        middles = metric["series"][0]["values"]
        assert metric["count"] <= 96 and len(middles) == metric["count"]
        for device, written in metric["lines"].items():
            fine = (written[1] - written[0]) / 0xFFFE + 1e-4 * max(abs(written[0]), abs(written[1]))
            for step, value in enumerate(decoded(written, metric["count"])):
                expected = means.get((metric["metric"], ids[int(device)], step))
                assert (value is None) == (expected is None)
                assert value is None or abs(value - expected) <= fine
        for step, middle in enumerate(middles):
            known = [means[key] for key in means if key[0] == metric["metric"] and key[2] == step]
            assert (middle is None) == (not known)
            if known:
                assert middle == pytest.approx(statistics.median(known), rel=1e-4)
                assert metric["band"]["low"][step] <= middle <= metric["band"]["high"][step]


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=1).filter(any))
@example([0.0, 5e-324])
@example([-1.7e308, 1.7e308, 0.0])
@settings(max_examples=200, deadline=None)
def test_any_line_reads_back_within_a_65534th_of_its_span(values: list[float | None]) -> None:
    known = [(at, value) for at, value in enumerate(values) if value is not None]
    low, high = min(value for _, value in known), max(value for _, value in known)
    written = encoded(known, len(values))
    assert written[:2] == [pytest.approx(low, rel=1e-4), pytest.approx(high, rel=1e-4)]
    # Exact arithmetic: the span of two floats may be larger than a float can be.
    for value, share in zip(values, decoded([0.0, 1.0, written[2]], len(values)), strict=True):
        assert (value is None) == (share is None)
        if value is not None and high > low and high / 2 > low / 2:
            expected = float((Fraction(value) - Fraction(low)) / (Fraction(high) - Fraction(low)))
            assert abs(share - expected) <= 1 / 0xFFFE or high - low < 1e-300


@given(st.integers(0, 4_000_000_000), st.floats(0, 60_000_000), st.sampled_from([60, 300]), st.integers(24, 240))
@settings(max_examples=300, deadline=None)
def test_a_timeline_reaches_from_start_to_end_in_whole_steps_and_is_never_too_long(
    start_s: int, length_s: float, finest_s: int, most: int
) -> None:
    start, end = start_s * US, round((start_s + length_s) * US)
    found = Timeline.between(start, end, finest_s, most)
    assert 1 <= found.count <= most and found.step >= finest_s and found.start % found.step == 0
    assert (max(start, end - 1) // US - found.start) // found.step == found.count - 1
    if length_s < most * 364 * 86_400 * 0.9:
        assert (start_s - found.start) // found.step == 0


def test_an_outage_of_five_seconds_its_backlog_and_its_end_are_seen(tmp_path: Path) -> None:
    """Planted: the charts of a short time are made from gold's minutes; a reading waits until the end of its step."""
    rows = outage(tmp_path)
    data = collected(tmp_path)
    rate, rates = chart(data, "Message rate")
    waiting = chart(data, "Waiting on the devices")[1]["taken and not yet received"]
    delays = chart(data, "Delay")[1]
    assert (rate["unit"], rate["step"], rate["count"]) == ("readings a second", 1, 100)
    first = rate["start"]
    for i in range(1, rate["count"] - 1):
        begin, end = (first + i) * US, (first + i + 1) * US
        came = [row for row in rows if begin <= row["received"] < end]
        assert rates["received"][i] == len(came)
        assert rates["taken on the devices"][i] == sum(begin <= row["taken"] < end for row in rows)
        assert waiting[i] == sum(row["taken"] < end <= row["received"] for row in rows)
        delay = [(row["received"] - row["taken"]) / 1000 for row in came]
        assert delays["p50"][i] == (pytest.approx(statistics.median(delay), rel=1e-4) if came else None)
    assert [at for at, value in enumerate(rates["received"]) if value == 0] == list(OUTAGE_S)
    assert waiting[54] == max(waiting) == 5 * 4 * 12 and waiting[48] == waiting[58] == 0
    temperature = next(one for one in data["metrics"] if one["metric"] == "temp_c")
    assert temperature["step"] < 60
    own = decoded(temperature["lines"]["0"], temperature["count"])
    assert None not in own[:-1], "by the readings' own time nothing is missing"


@pytest.mark.parametrize(("limit", "value"), [("LONGEST_US", 99 * US), ("MOST_READINGS", 100 * 4 * 4 - 1)])
def test_long_times_and_very_many_readings_are_read_from_gold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """Planted: silver is read for any length of time."""
    outage(tmp_path, devices=4)
    monkeypatch.setattr(report_data, limit, value)
    data = collected(tmp_path)
    rate, _ = chart(data, "Message rate")
    assert (rate["unit"], rate["step"]) == ("readings a minute", MINUTE // US)
    assert "Waiting on the devices" not in [one["title"] for one in data["charts"]]


def test_a_device_that_left_on_purpose_is_not_a_lost_one(tmp_path: Path) -> None:
    """Planted: whoever is not online counts as lost, or a device without a status counts as offline."""
    outage(tmp_path, devices=6)
    data = collected(tmp_path)
    assert data["devices"]["link"] == ["goodbye", "goodbye", "lost", None, "online", "online"]
    assert [data["totals"][name] for name in ("online", "goodbye", "lost")] == [2, 2, 1]


def test_days_cut_the_charts_but_not_the_totals(tables: Path) -> None:
    whole, part = collected(tables), collected(tables, 0.25)
    assert part["totals"] == whole["totals"] and part["as_of"] == whole["as_of"] == END_US // US
    assert part["from"] == END_US // US - 6 * 3600
    for one in (*part["charts"], *part["metrics"]):
        assert part["from"] - one["step"] < one["start"] <= part["from"]
        assert one["start"] + one["step"] * one["count"] >= part["as_of"]


def test_the_first_boot_is_no_reboot_and_a_wrong_clock_does_not_move_one(tmp_path: Path) -> None:
    empty(tmp_path)
    write_rows(tmp_path, "devices", [{"device_id": "d", "health": "ok", "last_seen": END_US}])
    seen = [END_US - 20 * HOUR, END_US - 10 * HOUR, END_US - 5 * HOUR, END_US - HOUR]
    anchors = [None, seen[1] - HOUR, 946_684_800 * US, seen[3] + 30 * DAY]
    boots = zip(seen, anchors, strict=True)
    write_rows(
        tmp_path,
        "boots",
        [{"device_id": "d", "boot": f"{i}", "first_seen": at, "anchor_ts_us": us} for i, (at, us) in enumerate(boots)],
    )
    reboots, series = chart(collected(tmp_path), "Reboots")
    placed = [reboots["start"] + reboots["step"] * step for step, n in enumerate(series["reboots"]) for _ in range(n)]
    for at, expected in zip(placed, (seen[1] - HOUR, seen[2], seen[3]), strict=True):
        assert at <= expected // US < at + reboots["step"]


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324])
def test_no_number_of_a_device_breaks_the_page(tmp_path: Path, odd: float) -> None:
    fleet(tmp_path, devices=3, days=0.1)
    rewritten = rows(tmp_path, "windows")
    for row in rewritten[::3]:
        row["sum"] = odd
    devices = rows(tmp_path, "devices")
    devices[0] |= {"delay_p95_ms": odd, "supply_v": odd}
    # Counts too large for doubles to tell apart.
    most = {"device_id": "d", "boot": "1-x", "last": 2**63 - 1, "missing": 2**63 - 2}
    most |= {"first": 2, "open": True, "since": END_US - DAY}
    write_rows(tmp_path, "gaps", [most | {"announced": announced} for announced in (False, True)])
    write_rows(tmp_path, "windows", rewritten)
    write_rows(tmp_path, "devices", devices)
    write_rows(tmp_path, "alerts", [{"device_id": "d", "kind": "offline", "since": END_US, "value": odd}])
    written = write_report(tmp_path, tmp_path / "report.html")
    assert written.bytes == len((tmp_path / "report.html").read_bytes())


def test_what_a_device_says_cannot_end_the_data_or_be_taken_for_a_part_of_the_page(tmp_path: Path) -> None:
    names = ["</script><script>alert(1)</script>", "<!--<script>", "<!--@style-->", "\u2028&amp;\\u003c"]
    fleet(tmp_path, devices=6, days=0.1, names=names)
    at = {"window_start": END_US - HOUR, "n": 1, "sum": 2.0}
    write_rows(tmp_path, "windows", [at | {"device_id": names[0], "metric": "it's ' a -- metric"}])
    write_report(tmp_path, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<script") == page.count("</script>") == 2 and page.count("<style") == 1
    data = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[0]
    assert not re.search("[<>&\u2028]", data)
    assert set(names) <= set(json.loads(data)["devices"]["id"])
    assert json.loads(data)["metrics"][0]["metric"] == "it's ' a -- metric"


def test_the_page_names_no_address_and_runs_its_own_script_and_style_alone(page_file: Path) -> None:
    page = page_file.read_text()
    # The names of a format, and of the library of charts in its notice; the policy below lets neither be asked.
    assert set(re.findall(r"\w+://[\w./]*", page)) == {"http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot"}
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert not re.search(r"<[^>]+ style=|<[^>]+ on\w+=|innerHTML|outerHTML|insertAdjacentHTML|document\.write", page)


def test_the_command_says_what_it_wrote(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "fleet.html"
    done = umqtt("--tables", tables, "--out", out, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["out"] == str(out) and said["bytes"] == out.stat().st_size and said["absent"] == []
    devices = rows(tables, "devices")
    assert said["totals"] == {
        "devices": 40,
        "online": sum(row["online"] is True for row in devices),
        "goodbye": 0,
        "lost": sum(row["online"] is False for row in devices),
        "readings": sum(row["readings"] for row in devices),
        "missing": sum(row["missing"] for row in devices),
        "dropped": sum(row["dropped_announced"] for row in devices),
        "duplicates": sum(row["duplicates"] for row in devices),
        "gaps": sum(row["open"] for row in rows(tables, "gaps")),
        "alerts": sum(row["until"] is None for row in rows(tables, "alerts")),
    }


@pytest.mark.parametrize(
    ("table", "lost"),
    [
        ("gold/windows", "*.parquet"),
        ("gold/boots", "*.parquet"),
        ("gold/gaps", "_delta_log/*.json"),
        ("silver", "*/*.parquet"),
    ],
)
def test_a_table_that_cannot_be_read_is_named_with_what_to_do_and_no_page_is_written(
    tmp_path: Path, table: str, lost: str
) -> None:
    if table == "silver":
        outage(tmp_path, devices=4, seconds=60)
    else:
        fleet(tmp_path, devices=4, days=0.1)
    damaged = list((tmp_path / table).glob(lost))
    assert damaged
    for file in damaged:
        file.write_text("{")
    said = rf"^cannot read .*/{table}: .*; if it is damaged, umqtt tables rebuild makes"
    with pytest.raises(IngestError, match=said) as failed:
        write_report(tmp_path, tmp_path / "report.html")
    assert "\n" not in str(failed.value) and not (tmp_path / "report.html").exists()


def test_the_documentation_shows_what_the_command_prints(tables: Path, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "report.md").read_text()
    command, printed = re.findall(r"^\$ umqtt report (.*)\n(.*)\n", page, re.M)[0]
    (tmp_path / "tables").symlink_to(tables)
    done = umqtt(*command.split(), cwd=tmp_path)
    assert re.fullmatch(re.escape(printed).replace("…", ".*"), done.stdout.strip()), done.stdout
    assert (tmp_path / "report.html").exists()


def test_what_is_not_there_is_said_in_one_line_with_what_to_do(tmp_path: Path) -> None:
    done = umqtt("--tables", tmp_path / "none", "--out", tmp_path / "r.html")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"no gold tables in {tmp_path / 'none' / 'gold'}: give the --tables of umqtt ingest" in done.stderr
    write_deltalake(str(tmp_path / "old" / "silver"), SCHEMAS["silver"].empty_table())
    with pytest.raises(UsageError, match=r"umqtt tables rebuild --tables .*old makes them"):
        write_report(tmp_path / "old", tmp_path / "r.html")
    write_rows(tmp_path / "part", "devices", [])
    absent = write_report(tmp_path / "part", tmp_path / "r.html").absent
    assert absent == ["windows", "boots", "gaps", "traffic", "alerts"]
    with pytest.raises(UsageError, match=r"cannot write .*: .*; choose another --out"):
        write_report(tmp_path / "part", tmp_path / "no such folder" / "r.html")


def test_a_fleet_that_is_silent_as_a_whole_has_been_so_until_gold_judged_it(tmp_path: Path) -> None:
    """Planted: now is when the newest message came."""
    alert = {"device_id": "a", "rule": "offline", "kind": "offline", "since": END_US, "value": 7200.0, "text": "silent"}
    empty(tmp_path)
    write_rows(tmp_path, "devices", [{"device_id": "a", "last_seen": END_US, "health": "offline"}])
    write_rows(tmp_path, "alerts", [alert])
    data = collected(tmp_path)
    assert data["now"] - data["as_of"] == 7200
