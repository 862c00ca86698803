"""What counts as missing: what was sent while a collector listened, and may still come; and how long it is news."""

import json

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from gold_fleet import QUERY, SECOND, assert_law, table_of, telemetry
from spark_helpers import RECEIVED_MS

from spark_ingest.gold import Gold
from spark_ingest.gold import update as gold_module
from spark_ingest.pipeline.write.batch import BatchWriter

HOUR = 3600 * SECOND


def reading(device: str, boot: str, seq: int, at: int, up: int | None, *, clock: bool = True) -> tuple[str, bytes, int]:
    """Return a reading taken and received `at` ms after the collector's first message, `up` ms after its boot."""
    ts = RECEIVED_MS + at if clock else None
    return (*telemetry(device, boot, seq, ts, up, t=1.0), RECEIVED_MS + at)


def write(folder, *batches: list[tuple[str, bytes, int]], collectors: str = "") -> None:
    """Write each batch, with a gold update after it, from the collector of that letter."""
    writer, gold, start = BatchWriter(folder, folder / "state"), Gold(folder), 0
    for batch_id, messages in enumerate(batches):
        rows = table_of(messages, start)
        if collectors:
            name = pa.array([collectors[batch_id]] * len(messages))
            rows = rows.set_column(rows.column_names.index("collector"), "collector", name)
        writer.write(rows, batch_id, QUERY)
        gold.update()
        start += len(messages)


def gaps(folder) -> list[tuple]:
    rows = DeltaTable(str(folder / "gold" / "gaps")).to_pyarrow_table().to_pylist()
    return [(row["device_id"], row["first"], row["last"], row["state"]) for row in rows]


def device(folder, name: str) -> dict:
    rows = DeltaTable(str(folder / "gold" / "devices")).to_pyarrow_table()
    (row,) = rows.filter(pc.call_function("equal", [rows["device_id"], pa.scalar(name)])).to_pylist()
    return {key: row[key] for key in ("health", "missing", "open_gaps")}


OK = {"health": "ok", "missing": 0, "open_gaps": 0}
FIRST = reading("first", "1-x", 0, 0, 5)


# Device -> uptime at its reading (ms), whether its clock was set, and whether the readings before it are earlier than
# the collector or missing.
BOOTED = {
    "a": (2 * HOUR, True, "earlier"),
    "b": (2 * HOUR, False, "earlier"),
    "c": (None, True, "earlier"),
    "d": (HOUR // 2, True, "missing"),
    "e": (HOUR // 2, False, "missing"),
}


def test_readings_of_before_the_collectors_first_message_are_not_missing(tmp_path):
    """Planted: a boot's seqs count from 0, whenever the collector came, or never."""
    write(
        tmp_path, [FIRST], [reading(name, "7-x", 500, HOUR, up, clock=clock) for name, (up, clock, _) in BOOTED.items()]
    )
    assert sorted(gaps(tmp_path)) == [(name, 0, 499, state) for name, (_, _, state) in BOOTED.items()]
    missing = {"health": "gaps", "missing": 500, "open_gaps": 1}
    alerts = DeltaTable(str(tmp_path / "gold" / "alerts")).to_pyarrow_table().to_pylist()
    for name, (_, _, state) in BOOTED.items():
        assert device(tmp_path, name) == (OK if state == "earlier" else missing), name
        kinds = [row["kind"] for row in alerts if row["device_id"] == name]
        assert ("gap" in kinds) == (state == "missing"), name
    assert_law(tmp_path, 0)


def test_what_a_boot_lacks_after_its_first_reading_is_missing_and_late_ones_still_come(tmp_path):
    """Planted: the whole boot is excused."""
    running = [reading("a", "7-x", seq, HOUR + seq, 2 * HOUR) for seq in (500, 502)]
    write(tmp_path, [FIRST], running, [reading("a", "7-x", 300, HOUR + 600, 2 * HOUR)])
    assert gaps(tmp_path) == [("a", 0, 299, "earlier"), ("a", 301, 499, "missing"), ("a", 501, 501, "missing")]
    assert_law(tmp_path, 0)


def test_each_collector_has_a_first_message_of_its_own(tmp_path):
    """Planted: the oldest message of all collectors decides since when each of them listened."""
    booted_between = [reading("a", "7-x", 500, 2 * HOUR, HOUR)]
    write(tmp_path / "two", [FIRST], booted_between, collectors="ns")
    write(tmp_path / "one", [FIRST], booted_between, collectors="nn")
    assert gaps(tmp_path / "two") == [("a", 0, 499, "earlier")]
    assert gaps(tmp_path / "one") == [("a", 0, 499, "missing")]
    assert_law(tmp_path / "two", 0)


def test_a_reading_that_came_and_could_not_be_read_is_not_missing(tmp_path):
    """Planted: another device can explain a gap, or what was dropped counts as quarantined."""

    def unreadable(topic: str, seq: int) -> tuple[str, bytes, int]:
        record = json.loads(reading("a", "1-x", seq, 0, 5)[1])
        return f"fleet/{topic}/telemetry", json.dumps(record | {"up": "5"}).encode(), RECEIVED_MS

    log = ("fleet/a/log", b'{"boot":"1-x","dropped_seq":[[4,4],[7,9]]}', RECEIVED_MS)
    sent = [FIRST, reading("a", "1-x", 0, 0, 5), reading("a", "1-x", 8, 0, 5)]
    write(tmp_path, sent, [unreadable("a", seq) for seq in (2, 4, 11)] + [unreadable("b", 6), log])
    assert gaps(tmp_path) == [
        ("a", 1, 1, "missing"),
        ("a", 2, 2, "quarantined"),
        ("a", 3, 3, "missing"),
        ("a", 4, 4, "dropped"),
        ("a", 5, 6, "missing"),
        ("a", 7, 7, "dropped"),
        ("a", 9, 9, "dropped"),
    ]
    assert device(tmp_path, "a") == {"health": "quarantined", "missing": 4, "open_gaps": 3}
    assert_law(tmp_path, 0)


def test_a_gap_is_news_for_a_week_and_stays_counted(tmp_path, monkeypatch):
    """Planted: health depends on the number of missing readings, or the alert lasts as long as the gap."""
    monkeypatch.setattr(gold_module, "_now_us", lambda: (RECEIVED_MS + 1000 * HOUR) * 1000)
    gap = [reading("a", "1-x", 0, 0, 5), reading("a", "1-x", 200, HOUR, HOUR + 5)]
    for days, health in ((6, "gaps"), (8, "ok")):
        folder, later = tmp_path / str(days), days * 24 * HOUR
        write(folder, gap, [reading("a", "1-x", 201, later, later)])
        assert device(folder, "a") == {"health": health, "missing": 199, "open_gaps": 1}
        alerts = DeltaTable(str(folder / "gold" / "alerts")).to_pyarrow_table().to_pylist()
        (until,) = [row["until"] for row in alerts if row["kind"] == "gap"]
        assert until is None if days == 6 else until.timestamp() * 1000 == RECEIVED_MS + HOUR + 7 * 24 * HOUR
        assert_law(folder, 0)
