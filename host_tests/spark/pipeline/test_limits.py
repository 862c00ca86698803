"""Times and numbers at the borders of what a record may have: every promised reader shows and sums what is kept."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from own_session import run_pipeline
from proof.needs import needs_java
from spark_helpers import RECEIVED_MS, publish_packet, record

from spark_ingest.decoders.fast_decode import SEQ_END, TS_END
from spark_ingest.spool.blocks import LATEST_MS
from spark_ingest.spool.writer import Spool
from spark_ingest.sql import open_tables, spark_views

pytestmark = needs_java
duckdb = pytest.importorskip("duckdb")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

BOOTS = 100
YEAR_9999 = 253_402_300_799_999
KEPT_TIMES = (None, 0, RECEIVED_MS, TS_END - 1)
REFUSED_TIMES = (-1, TS_END, YEAR_9999, 10**18, (1 << 63) - 1)
REFUSED_SEQS = (SEQ_END, (1 << 63) - 1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SILVER = (
    "SELECT max(ts) AS ts, max(date_trunc('day', ts)) AS day, min(received_ts) AS first, max(received_ts) AS last, "
    "sum(seq) AS seq, sum(up_ms) AS up, count(*) AS n FROM silver"
)
GAPS = "SELECT sum(missing) AS missing FROM gaps"
EACH = "SELECT device_id, sum(missing) AS missing FROM gaps GROUP BY device_id ORDER BY missing DESC"


def at(unix_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=unix_ms)


def records() -> list[bytes]:
    """Return records of whose seqs, times and uptimes some are at a border, and some beyond it."""
    made = [record("long", f"{boot}-a", seq, up=None) for boot in range(BOOTS) for seq in (0, SEQ_END - 1)]
    made += [record("clock", "1-a", seq, ts=ts) for seq, ts in enumerate([*KEPT_TIMES, *REFUSED_TIMES])]
    made += [record("up", "1-a", seq, up=up) for seq, up in enumerate([SEQ_END - 1, SEQ_END, (1 << 63) - 1, -1])]
    return made + [record("far", "1-a", seq, up=None) for seq in (1, *REFUSED_SEQS)]


@pytest.fixture(scope="module")
def tables(spark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limits")
    packets = [publish_packet(f"fleet/{json.loads(one)['id']}/telemetry", one) for one in records()]
    logs = [{"dropped_seq": [[0, SEQ_END - 1]]}, {"dropped_seq": [[0, SEQ_END]]}]
    packets += [publish_packet("fleet/long/log", json.dumps(one).encode()) for one in logs]
    with Spool(folder / "spool" / "north") as spool:
        spool.append(b"".join(packets), len(packets), RECEIVED_MS)
        for seq, received_ms in enumerate((0, LATEST_MS, LATEST_MS + 1, YEAR_9999 + 1, (1 << 64) - 1)):
            spool.append(publish_packet("fleet/late/telemetry", record("late", "1-a", seq)), 1, received_ms)
    where = ["--spool", folder / "spool", "--tables", folder / "tables", "--checkpoint", folder / "checkpoint"]
    assert run_pipeline(spark, *where, "--once") == 0
    return folder / "tables"


def by_engine(spark, tables: Path) -> dict[str, Callable[[str], list[dict]]]:
    opened = open_tables(tables)
    connection, query = duckdb.connect(), QueryBuilder()
    connection.sql("SET TimeZone = 'UTC'")
    frames = polars.SQLContext()
    for name, table in opened.items():
        connection.register(name, table.to_pyarrow_dataset())
        query = query.register(name, table)
        frames.register(name, polars.from_arrow(table.to_pyarrow_table()))
    spark_views(spark, tables)
    return {
        "Spark": lambda text: spark.sql(text).toArrow().to_pylist(),
        "DuckDB": lambda text: connection.sql(text).to_arrow_table().to_pylist(),
        "DataFusion": lambda text: pa.table(query.execute(text).read_all()).to_pylist(),
        "polars": lambda text: frames.execute(text, eager=True).to_dicts(),
    }


def test_every_reader_shows_the_times_and_sums_the_numbers_of_the_whole_table(spark, tables: Path) -> None:
    """Planted: TS_END is the year 10000: toPandas() and date_trunc fail; SEQ_END is 2**63: sum(missing) is negative."""
    rows = DeltaTable(str(tables / "silver")).to_pyarrow_table().to_pylist()
    kept = [json.loads(one) for one in records() if json.loads(one)["seq"] < SEQ_END]
    assert len(rows) == len(kept) + 5
    whole = {
        "ts": at(TS_END - 1),
        "day": at(TS_END - 86_400_000),
        "first": EPOCH,
        "last": at(LATEST_MS),
        "seq": sum(row["seq"] for row in rows),
        "up": sum(row["up_ms"] or 0 for row in rows),
        "n": len(rows),
    }
    missing = BOOTS * (SEQ_END - 2)
    assert whole["seq"] >= BOOTS * (SEQ_END - 1)
    for name, ask in by_engine(spark, tables).items():
        text = SILVER
        if name == "polars":  # its SQL has no date_trunc
            text = text.replace("max(date_trunc('day', ts)) AS day, ", "")
        expected = whole if name != "polars" else {key: value for key, value in whole.items() if key != "day"}
        (found,) = ask(text)
        assert {key: int(v) if key in ("seq", "up", "n") else v for key, v in found.items()} == expected, name
        (total,) = ask(GAPS)
        each = ask(EACH)
        assert int(total["missing"]) == sum(int(row["missing"]) for row in each) >= missing, name
        assert (each[0]["device_id"], int(each[0]["missing"])) == ("long", missing), name


def test_data_frames_hold_the_whole_table_in_nanoseconds_too(spark, tables: Path) -> None:
    """Planted: as above."""
    spark_views(spark, tables)
    silver = DeltaTable(str(tables / "silver"))
    frame = silver.to_pandas()
    for name in ("ts", "event_ts", "received_ts"):
        assert frame[name].astype("datetime64[ns, UTC]").max().year in (2026, 2261)
        truncated = polars.from_arrow(silver.to_pyarrow_table())[name].dt.cast_time_unit("ns").dt.truncate("1d")
        assert truncated.drop_nulls().dt.year().is_between(1970, 2261).all()
        by_spark = spark.sql(f"SELECT {name} FROM silver").toPandas()
        assert by_spark[name].max() == frame[name].max().tz_localize(None)
    gaps = DeltaTable(str(tables / "gold" / "gaps")).to_pandas()
    assert gaps["missing"].sum() >= BOOTS * (SEQ_END - 2)


def test_what_no_reader_can_hold_is_in_quarantine_and_the_reading_is_kept_where_it_has_an_identity(
    tables: Path,
) -> None:
    """Planted: the time of a reading is dropped silently; the whole reading goes with it."""
    rows = DeltaTable(str(tables / "quarantine")).to_pyarrow_table().sort_by("position").to_pylist()
    told = [(row["device_id"], row["reason"].split(" is ")[0], row["kept"]) for row in rows]
    clock, up = [("clock", "ts", True)] * len(REFUSED_TIMES), [("up", "up", True)] * 3
    assert told == [*clock, *up, ("far", "seq", False), ("far", "seq", False), ("long", told[-1][1], False)]
    assert told[-1][1].startswith("log: dropped_seq holds a range")
    silver = DeltaTable(str(tables / "silver")).to_pyarrow_table().sort_by("seq").to_pylist()
    clocks = [row["ts"] for row in silver if row["device_id"] == "clock"]
    assert clocks == [None if ts is None else at(ts) for ts in KEPT_TIMES] + [None] * len(REFUSED_TIMES)
    assert [row["up_ms"] for row in silver if row["device_id"] == "up"] == [SEQ_END - 1, None, None, None]
