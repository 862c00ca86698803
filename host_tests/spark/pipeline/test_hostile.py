"""Laws of the tables about what no well-behaved device or collector sends: nothing stops, and nothing valid is lost."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from gold_fleet import QUERY, SECOND, table_of, telemetry
from spark_helpers import RECEIVED_MS, publish_packet

from spark_ingest.alerts.messages import title_and_body
from spark_ingest.alerts.rules import rule_set
from spark_ingest.gold import Gold
from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, BatchWriter
from spark_ingest.report.build import write_report
from spark_ingest.source.rows import read_range
from spark_ingest.spool.blocks import Position
from spark_ingest.spool.view import SpoolView
from spark_ingest.spool.writer import Spool
from spark_ingest.tables import upkeep


def read_whole(folder: Path) -> pa.Table:
    """Return every message of a spool, as a micro-batch."""
    view = SpoolView(folder)
    place = view.durable()
    assert isinstance(place, Position)
    batches = list(read_range(view, place.spool, place.segment, 0, place.position))
    return pa.Table.from_batches(batches).select(MESSAGE_COLUMNS)


@pytest.mark.parametrize("received_ms", [0, 253_402_300_799_999, 253_402_300_800_000, (1 << 63) - 1, (1 << 64) - 1])
def test_a_collector_whose_clock_shows_a_time_that_no_table_holds_stops_nothing(tmp_path, received_ms):
    """Planted: the time of a block as it stands there; then Delta cannot write it, or the update of gold fails."""
    with Spool(tmp_path / "north") as spool:
        for seq, ms in enumerate([received_ms, RECEIVED_MS, received_ms]):
            topic, payload = telemetry("d", "1-a", seq, None, None, t=1.0)
            others = [("fleet/d/status", b'{"online":true}'), ("fleet/d/log", b"{}"), ("fleet/d/telemetry", b"bad")]
            packets = [publish_packet(*message) for message in [(topic, payload), *others]]
            spool.append(b"".join(packets), len(packets), ms)
    tables = tmp_path / "tables"
    BatchWriter(tables, tmp_path / "state").write(read_whole(tmp_path / "north"), 0, QUERY)
    Gold(tables).update()
    write_report(tables, tmp_path / "report.html")
    upkeep.retain(tables, 36_500)
    rows = {name: DeltaTable(str(tables / name)).count() for name in ("silver", "quarantine", "status", "logs")}
    assert rows == dict.fromkeys(rows, 3)


LARGEST = 1.7976931348623157e308
SMALLEST = 5e-324
ABOUT_METRICS = [
    {"name": "high", "kind": "threshold", "metric": "t", "above": 60},
    {"name": "quick", "kind": "rate", "metric": "t", "change": 5, "within": "2h"},
    {"name": "odd", "kind": "group_median", "metric": "t", "by": 5, "after": "0s"},
    {"name": "unusual", "kind": "own_week", "metric": "t", "by": 5},
    {"name": "empty", "kind": "battery", "metric": "t", "empty": 3.3},
]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_the_largest_and_the_smallest_doubles_leave_finite_figures_and_json_that_everybody_reads(tmp_path):
    """Planted: a sum beyond the doubles stays infinite; an alert's value is written as it is; numpy warns."""
    rules = rule_set(Path("alerts.toml"), ABOUT_METRICS, {})
    values = [LARGEST, LARGEST, -LARGEST, SMALLEST, -SMALLEST]
    sent: list[tuple[str, bytes, int]] = []
    for hour in range(72):
        at = RECEIVED_MS + hour * 3600 * SECOND
        for seq, value in enumerate(values[:2] if hour % 2 else values[::-1], 10 * hour):
            for device, sign in (("a", 1), ("b", -1), ("c", 1)):
                sent.append((*telemetry(device, "1-a", seq, at, 1, t=sign * value, mem_free=value), at))
    gold = Gold(tmp_path, rules=rules, recipients=lambda _alert: ("hook",))
    writer = BatchWriter(tmp_path, tmp_path / "state")
    for batch_id in range(3):
        size = len(sent) // 3
        writer.write(table_of(sent[batch_id * size :][:size], batch_id * size), batch_id, QUERY)
        gold.update()
    windows = DeltaTable(str(tmp_path / "gold" / "windows")).to_pyarrow_table()
    for row in windows.to_pylist():
        assert math.isfinite(row["sum"]) and row["min"] <= row["mean"] <= row["max"], row
    events = gold.journal.events()
    assert {event.alert.rule for event in events} >= {"high", "quick"}
    _title, body = title_and_body(events, as_json=True)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert len(json.loads(body, parse_constant=refuse)["alerts"]) == len(events)
    write_report(tmp_path, tmp_path / "report.html")
