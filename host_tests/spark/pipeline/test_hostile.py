"""Laws of the tables about what no well-behaved device or collector sends: nothing stops, and nothing valid is lost."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from gold_fleet import QUERY, telemetry
from spark_helpers import RECEIVED_MS, publish_packet

from spark_ingest.pipeline.batch import MESSAGE_COLUMNS, BatchWriter
from spark_ingest.pipeline.gold import Gold
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
