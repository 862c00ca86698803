"""What the API says of a fleet: against the tables, and against its own description."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as paho
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from gold_tables import END_US, US, empty, fleet, ingest, outage
from served_console import Serve, ServedConsole
from story_tables import END, START
from umqtt_console.routes import ROLE_OF, SCHEMAS, description
from umqtt_testkit.waiting import eventually

from spark_ingest.tables.schemas import SCHEMAS as TABLES
from spark_ingest.tables.schemas import TIMESTAMP

FROM_MS, TO_MS = START // 1000, END // 1000


def rows(console: ServedConsole, **query: Any) -> list[dict[str, Any]]:
    page = console.get("devices", **query)
    return [dict(zip(page["columns"], row, strict=True)) for row in page["rows"]]


def names(console: ServedConsole, **query: Any) -> list[str]:
    return [row["device"] for row in rows(console, **query)]


def held(tables: Path, name: str = "devices") -> list[dict[str, Any]]:
    return DeltaTable(str(tables / "gold" / name)).to_pyarrow_table().sort_by("device_id").to_pylist()


def test_devices_are_searched_filtered_sorted_and_paged(serve: Serve, fleet_of_forty: Path) -> None:
    console, all_ = serve(fleet_of_forty), held(fleet_of_forty)
    assert console.get("devices")["matched"] == 40
    worst = rows(console)
    assert worst[0]["health"] == "offline" and worst[-1]["health"] == "ok"
    for words, found in (
        ("pump", [one["device_id"] for one in all_ if "pump" in one["device_id"]]),
        ("GATE 0.0.9", [one["device_id"] for one in all_ if "gate" in one["device_id"] and one["fw"] == "0.0.9"]),
        ("%", []),
        ("'; DROP TABLE fleet", []),
    ):
        assert sorted(names(console, search=words)) == found
    chosen = {"health": ["offline", "late"], "fw": ["0.1.0"]}
    wanted = [one["device_id"] for one in all_ if one["health"] in chosen["health"] and one["fw"] == "0.1.0"]
    assert wanted and sorted(names(console, filter=chosen)) == wanted
    up = [one["readings"] for one in rows(console, sort="readings")]
    assert up == sorted(up)
    # Unknown values come last, whichever way.
    for order, reverse in (("up", False), ("down", True)):
        rssi = [one["rssi"] for one in rows(console, sort="rssi", order=order)]
        known = [value for value in rssi if value is not None]
        assert rssi == sorted(known, reverse=reverse) + [None] * (40 - len(known)) and len(known) < 40
    paged = [name for offset in (0, 15, 30) for name in names(console, sort="device", offset=offset, limit=15)]
    assert paged == sorted(one["device_id"] for one in all_)


def test_totals_and_filters_say_what_the_table_holds(serve: Serve, fleet_of_forty: Path) -> None:
    console, all_ = serve(fleet_of_forty), held(fleet_of_forty)
    summary = console.get("fleet")
    totals = summary["totals"]
    assert totals["devices"] == 40 and totals["missing"] == sum(one["missing"] for one in all_)
    assert totals["readings"] == sum(one["readings"] for one in all_)
    assert totals["alerts"] == sum(one["until"] is None for one in held(fleet_of_forty, "alerts"))
    counted = dict(summary["facets"]["health"])
    assert counted == {health: sum(one["health"] == health for one in all_) for health in counted}
    assert next(iter(counted)) == "offline"
    assert set(summary["metrics"]) == {"supply_v", "temp_c", "mem_free", "rssi"}


def test_own_metrics_are_columns_that_sort_with_lines(serve: Serve, fleet_of_forty: Path) -> None:
    console = serve(fleet_of_forty)
    windows = held(fleet_of_forty, "windows")
    newest: dict[str, tuple[Any, float]] = {}
    for one in windows:
        if one["metric"] == "temp_c":
            newest[one["device_id"]] = max(
                newest.get(one["device_id"], (one["window_start"], 0.0)), (one["window_start"], one["last"])
            )
    found = rows(console, metrics=["temp_c", "no such'metric"], sort="m:temp_c", order="down")
    values = [one["m:temp_c"] for one in found]
    assert values == sorted(values, reverse=True) and found[0]["m:no such'metric"] is None
    assert {one["device"]: one["m:temp_c"] for one in found} == {name: value for name, (_, value) in newest.items()}
    lines = console.get("sparks", devices=[found[0]["device"], "nobody"], metrics=["temp_c"])["lines"]["temp_c"]
    assert list(lines) == [found[0]["device"]] and len(lines[found[0]["device"]]) == 48
    assert sum(value is not None for value in lines[found[0]["device"]]) > 40


@pytest.mark.tier(3)
def test_a_hundred_thousand_devices_are_filtered_in_a_fifth_of_a_second(serve: Serve, tmp_path: Path) -> None:
    count = 100_000
    empty(tmp_path)
    schema = TABLES["gold/devices"]
    columns: dict[str, pa.Array] = {field.name: pa.nulls(count, field.type) for field in schema}
    columns["device_id"] = pa.array([f"pump-{at:06d}" for at in range(count)])
    columns["health"] = pa.array(["ok", "late", "offline", "gaps"]).take(pa.array(np.arange(count) % 4))
    columns["last_seen"] = pa.array(END_US - np.arange(count) * US).cast(TIMESTAMP)
    for name in ("readings", "missing", "boots", "reboots_24h"):
        columns[name] = pa.array(np.arange(count) * 7 % 1000)
    write_deltalake(str(tmp_path / "gold" / "devices"), pa.table(columns, schema=schema), mode="overwrite")
    console = serve(tmp_path)
    assert console.get("fleet")["totals"]["devices"] == count
    took = []
    for query in (
        {"search": "pump-09999"},
        {"filter": {"health": ["late", "gaps"]}, "sort": "missing", "order": "down"},
        {"sort": "seen", "offset": 99_900},
        {"search": "99", "filter": {"health": ["offline"]}, "sort": "readings"},
    ):
        began = time.process_time()
        page = console.get("devices", **query)
        took.append(time.process_time() - began)
        assert page["rows"] and page["matched"] < count + 1
    # Of this process's processors, which serve and ask, whatever else the machine does.
    print([round(one, 3) for one in took])
    assert min(took) < 0.2 and sorted(took)[1] < 0.3, took


def test_a_device_with_its_boots_gaps_and_alerts(serve: Serve, story_of_four: Path) -> None:
    console = serve(story_of_four)
    pump, well, gate = (console.get("device", device=name) for name in ("pump-7", "well-1", "gate-3"))
    assert [(one["number"], one["cause"]) for one in pump["boots"]] == [(5, "watchdog"), (4, "power on")]
    assert pump["device"]["boots"] == 2 and pump["metrics"] == ["mem_free", "supply_v", "temp_c"]
    assert [(one["first"], one["last"], one["missing"], one["state"]) for one in well["gaps"]] == [
        (100, 119, 20, "missing")
    ]
    assert gate["device"]["health"] == "offline" and gate["alerts"][0]["until"] is None
    stranger = console.get("device", device="<img src=x>")
    assert stranger["device"] is None and stranger["boots"] == [] and stranger["last"] == 0


def test_a_line_is_of_the_readings_with_holes_where_there_are_none(serve: Serve, story_of_four: Path) -> None:
    console = serve(story_of_four)
    fine = console.get("series", device="pump-7", name="temp_c", start=FROM_MS, end=TO_MS)
    assert fine["from"] == "readings" and len(fine["x"]) == 360 and fine["y"][0] == 10 and fine["y"][-1] == 15
    long = console.get("series", device="pump-7", name="temp_c", start=FROM_MS - 86_400_000, end=TO_MS)
    assert long["from"] == "windows" and len(long["x"]) == 72 and long["low"][0] <= long["y"][0] <= long["high"][0]
    # Twenty of its readings are missing: the line has one hole, in the middle of them.
    well = console.get("series", device="well-1", name="temp_c", start=FROM_MS, end=TO_MS)
    (hole,) = [x for x, y in zip(well["x"], well["y"], strict=True) if y is None]
    assert FROM_MS + 100 * 60_000 <= hole <= FROM_MS + 120 * 60_000
    assert console.get("series", device="nobody", name="temp_c", start=FROM_MS, end=TO_MS)["x"] == []
    assert console.call("GET", "/api/series?device=a&name=b&start=5&end=5").status == 400


def test_an_outage_shows_as_delay_and_as_a_backlog_that_drains(serve: Serve, story_of_four: Path) -> None:
    console = serve(story_of_four)
    waiting = console.get("series", device="pump-8", name="own:waiting", start=FROM_MS, end=TO_MS)
    level = dict(zip(waiting["x"], waiting["y"], strict=True))
    at = [value for x, value in level.items() if x < FROM_MS + 60 * 60_000]
    assert set(at) <= {0, 1}
    assert 110 < max(level.values()) <= 121 and waiting["y"][-1] <= 1
    delay = console.get("series", device="pump-8", name="own:delay", start=FROM_MS, end=TO_MS)
    assert max(y for y in delay["y"] if y is not None) > 3600


@pytest.mark.parametrize(
    ("device", "seq", "states"),
    [
        ("pump-7", 5, {"Device": "passed", "Broker": "passed", "Bronze": "there", "Silver": "there"}),
        ("well-1", 110, {"Device": "likely", "Broker": "unknown", "Silver": "absent"}),
        ("well-1", 4000, {"Device": "likely", "Silver": "absent"}),
        ("nobody", 1, {"Device": "unknown", "Silver": "absent"}),
    ],
)
def test_a_reading_is_traced(serve: Serve, story_of_four: Path, device: str, seq: int, states: dict[str, str]) -> None:
    console = serve(story_of_four)
    boots = console.get("device", device=device)["boots"]
    boot = boots[-1]["boot"] if boots else "4-x"
    steps = {one["place"]: one for one in console.get("trace", device=device, boot=boot, seq=seq)["steps"]}
    assert {place: steps[place]["state"] for place in states} == states
    if states["Silver"] == "there":
        assert steps["Silver"]["at"] == FROM_MS + seq * 60_000 and "fleet/pump-7/telemetry" in steps["Bronze"]["text"]


def test_crashes_are_grouped_by_cause_and_quarantine_by_reason(serve: Serve, tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "app/x.py", line {}, in y\n{}: boom'
    sent = []
    for at, (device, line, kind) in enumerate(
        [("a", 1, "OSError"), ("b", 1, "OSError"), ("a", 1, "OSError"), ("c", 2, "MemoryError")]
    ):
        crash = {"n": at, "boot": 1, "traceback": trace.format(line, kind)}
        log = {"level": "error", "text": f"{kind}: boom", "boot": "1-x", "crash": crash}
        sent.append((f"fleet/{device}/log", log, END_US + at * US))
    sent += [
        (f"fleet/{name}/telemetry", {"v": 1, "id": name, "boot": "1-x", "seq": -at}, END_US + at * US)
        for at, name in enumerate("pqr", 1)
    ]
    ingest(tmp_path, sent)
    console = serve(tmp_path)
    crashes = console.get("crashes")["crashes"]
    assert [(one["cause"], one["n"], one["device_count"]) for one in crashes] == [
        ("OSError: boom", 3, 2),
        ("MemoryError: boom", 1, 1),
    ]
    assert (
        crashes[0]["devices"][0] == ["a", 2]
        and "line 1" in crashes[0]["where"]
        and "Traceback" in crashes[0]["traceback"]
    )
    lines = console.get("logs", device="a", level="error")["lines"]
    assert len(lines) == 2 and lines[0]["crash"]["n"] == 2
    refused = console.get("refused")
    assert sum(one["n"] for one in refused["reasons"]) == 3 and len(refused["samples"]) == 3
    assert json.loads(refused["samples"][0]["payload"]["text"])["id"] == "r"


def test_new_versions_show_at_once_and_are_told_to_viewers(serve: Serve, tmp_path: Path) -> None:
    fleet(tmp_path, devices=5, days=0.1)
    console = serve(tmp_path)
    assert console.get("fleet")["totals"]["devices"] == 5
    fleet(tmp_path, devices=8, days=0.1)
    assert console.get("fleet")["totals"]["devices"] == 8


def test_tables_that_are_away_or_newer_are_said_and_come_back(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    console = serve(folder, audit=tmp_path / "audit.jsonl")
    gone = console.call("GET", "/api/fleet")
    assert gone.status == 503 and str(folder) in gone.message
    assert console.call("GET", "/api/me").status == 200 and console.call("GET", "/api/topics").status == 200
    fleet(folder, devices=3, days=0.1)
    assert console.get("fleet")["totals"]["devices"] == 3
    # A table that only a newer reader understands.
    log = folder / "gold" / "devices" / "_delta_log"
    protocol = {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}
    newest = max(int(one.stem) for one in log.glob("*.json"))
    (log / f"{newest + 1:020d}.json").write_text(json.dumps(protocol) + "\n")
    newer = serve(folder).call("GET", "/api/fleet")
    assert newer.status == 503 and "gold/devices" in newer.message
    assert serve(folder).call("GET", "/api/alerts").status == 200, "the other tables can be read"


def test_a_fleet_without_a_device_is_no_error(serve: Serve, tmp_path: Path) -> None:
    console = serve(empty(tmp_path))
    assert console.get("fleet")["totals"]["devices"] == 0 and rows(console) == []
    assert console.get("path")["traffic"]["at"] == [] and console.get("alerts")["alerts"] == []


def test_the_path_says_where_it_backs_up(serve: Serve, tmp_path: Path, broker: int) -> None:
    outage(tmp_path, devices=3, seconds=20)
    console = serve(tmp_path, broker=broker)
    eventually(lambda: console.get("me")["brokers"][0]["connected"])
    stages = {one["name"]: one for one in console.get("path")["stages"]}
    assert stages[f"mqtt://127.0.0.1:{broker}"]["state"] == "ok"
    assert [stages[name]["figures"]["rows"] for name in ("bronze", "silver", "gold")] == [243, 240, 3]
    assert all(stages[name]["state"] == "ok" for name in ("bronze", "silver", "gold"))
    lonely = serve(tmp_path, broker=1)
    state = eventually(lambda: (one := lonely.get("me")["brokers"][0])["problem"] != "not connected yet" and one)
    assert not state["connected"] and lonely.get("fleet")["totals"]["devices"] == 3


def test_topics_are_kept_with_their_newest_message(serve: Serve, fleet_of_forty: Path, broker: int) -> None:
    console = serve(fleet_of_forty, broker=broker, explain=lambda topic, *_: {"topic": topic})
    eventually(lambda: console.get("me")["brokers"][0]["connected"])
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", broker)
    client.loop_start()
    client.publish("house/attic/lamp", b"on", 1, retain=True).wait_for_publish(60)
    # Nobody watches: nothing is asked of the broker.
    assert not [one for one in console.get("topics")["names"] if one["name"] == "house"]
    # Named, since a context that nobody holds ends at once.
    watching = console.parts.hub.viewing("#")
    console.loop.call_soon_threadsafe(watching.__enter__)
    lamp = eventually(lambda: console.get("newest", filter="house/#")["messages"])[0]
    assert lamp["payload"] == {"encoding": "text", "text": "on"} and lamp["retained"]
    client.publish("house/attic/lamp", b"\xff\x00", 1).wait_for_publish(60)
    client.publish("house/cellar", b"x" * 10_000, 1).wait_for_publish(60)
    client.loop_stop()
    eventually(lambda: len(console.get("newest", filter="house/#")["messages"]) == 2)
    (lamp,) = eventually(
        lambda: [one for one in console.get("newest", filter="house/attic/+")["messages"] if one["count"] == 2]
    )
    assert lamp["payload"] == {"encoding": "hex", "text": "ff 00"}
    level = console.get("topics", prefix="house/")["names"]
    assert [(one["name"], one["topics"], one["messages"]) for one in level] == [("attic", 1, 2), ("cellar", 0, 1)]
    assert console.get("topics", search="cellar")["names"][0]["topics"] == 1
    assert console.get("explain", topic="house/attic/lamp")["explained"] == {"topic": "house/attic/lamp"}
    assert "first 4,096 bytes" in console.get("explain", topic="house/cellar")["problem"]


def test_the_description_is_of_what_is_served(serve: Serve, story_of_four: Path) -> None:
    """Every answer has just the fields that its description names; openapi is valid by its own references."""
    console = serve(story_of_four)
    text = json.dumps(console.get("openapi.json"))
    assert text == json.dumps(description())
    schemas = json.loads(text)["components"]["schemas"]
    assert all(name.rpartition("/")[2] in schemas for name in _references(json.loads(text)))
    given: dict[str, dict[str, Any]] = {
        "/api/device": {"device": "pump-7"},
        "/api/series": {"device": "pump-7", "name": "temp_c", "start": FROM_MS, "end": TO_MS},
        "/api/logs": {"device": "pump-7"},
        "/api/trace": {"device": "pump-7", "boot": "4-x", "seq": 1},
        "/api/newest": {"filter": "#"},
        "/api/explain": {"topic": "a"},
    }
    for route, _ in ROLE_OF:
        assert route.summary and (route.answer in SCHEMAS)
        if route.method == "GET" and route.answer != "OfBroker":
            answer = console.get(route.path.removeprefix("/api/"), **given.get(route.path, {}))
            assert answer.keys() == SCHEMAS[route.answer].keys(), route.path


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["$ref"]] if "$ref" in value else [one for inner in value.values() for one in _references(inner)]
    return [one for inner in value for one in _references(inner)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    "path",
    ["devices?limit=0", "devices?limit=x", "devices?filter=x", "devices?metrics={}", "device", "fleet?x=1",
     "logs?device=a&level=b", "devices?filter={%22health%22:1}", "devices?search=%ff%00", "device?device=%ed%a0%80"],
)  # fmt: skip
def test_a_wrong_request_is_answered_in_one_line(serve: Serve, story_of_four: Path, path: str) -> None:
    reply = serve(story_of_four).call("GET", f"/api/{path}")
    assert reply.status in (200, 400)
    if reply.status == 400:
        assert reply.message and "\n" not in reply.message
