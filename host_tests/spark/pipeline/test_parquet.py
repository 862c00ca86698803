"""Plain Parquet tables: exactly once over several files of a micro-batch, and readable by engines without help."""

import os
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from spark_helpers import record
from test_record import messages

from spark_ingest import durable
from spark_ingest.errors import UsageError
from spark_ingest.pipeline.change.delete_device import delete_device
from spark_ingest.pipeline.change.rebuild import rebuild, recount
from spark_ingest.pipeline.process import require_format
from spark_ingest.pipeline.write import data_files
from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, BatchWriter
from spark_ingest.tables import parquet, summary
from spark_ingest.tables.parquet import MARK, Parquet
from spark_ingest.tables.schemas import PARTITIONED_BY, SCHEMAS
from spark_ingest.tables.upkeep import listed

QUERY = "0b7e"
FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
MADE = 30
EVENINGS = [datetime(2026, 11, day, 23, 59, 59, tzinfo=UTC) for day in (20, 21, 22)]


class PowerCut(BaseException):
    """The process ends here."""


def over_midnight(first: int = 0) -> pa.Table:
    """Return MADE readings received on three days, a tenth of them twice, and three corrupt messages."""
    payloads = [record("pump", "1-a", first + i) for i in range(MADE)]
    payloads += [payloads[i] for i in range(0, MADE, 10)] + [b"corrupt %d" % (first + i) for i in range(3)]
    rows = messages(payloads).select(MESSAGE_COLUMNS).to_pylist()
    for i, row in enumerate(rows):
        row["received_ts"] = EVENINGS[i % 3]
        row["position"] += 100_000 * first
    return pa.Table.from_pylist(rows, schema=messages([]).select(MESSAGE_COLUMNS).schema)


def writer(folder: Path) -> BatchWriter:
    return BatchWriter(folder, folder / "state", format="parquet", report=lambda _line: None)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.parquet"))


class Cuts:
    """Counts the steps that change a file, and cuts the power at one of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        self.at: int | None = None
        for target, name in (
            (durable, "replace_file"),
            (parquet, "replace_checked"),
            (data_files._OpenFile, "close"),
            (Path, "rename"),
        ):
            patch.setattr(target, name, self._counted(getattr(target, name)))

    def _counted(self, step):
        def counted(*arguments, **options):
            self.steps += 1
            if self.steps == self.at:
                raise PowerCut
            return step(*arguments, **options)

        return counted


def test_a_power_cut_at_any_step_of_a_micro_batch_loses_and_duplicates_nothing(tmp_path, monkeypatch):
    """Planted: renames that nobody finishes; a commit noted only after the renames. In full sweeps at every step."""
    cuts = Cuts(monkeypatch)
    writer(tmp_path / "whole").write(over_midnight(), 0, QUERY)
    made = len(files(tmp_path / "whole"))
    assert made == 3 + 3 + 1 + 1, "bronze and silver a day, quarantine, duplicates"
    steps = cuts.steps
    assert steps > 6 + 4 + 2 * made, "marks, commits, and each file's end and rename"
    for point in range(1, steps + 1, 1 if FULL else 3):
        folder, cuts.steps, cuts.at = tmp_path / str(point), 0, point
        with pytest.raises(PowerCut):
            writer(folder).write(over_midnight(), 0, QUERY)
        cuts.at = None
        for batch_id in (0, 1):
            writer(folder).write(over_midnight(batch_id * MADE), batch_id, QUERY)
        assert summary(folder) == (2 * MADE, 2 * MADE, 6), f"cut at step {point}"
        writer(folder)
        hidden = [path for name in SCHEMAS for path in (folder / name).glob("**/.*.parquet")]
        assert not hidden, "removed at the start"


def test_engines_read_the_folder_as_it_stands(tmp_path):
    writer(tmp_path).write(over_midnight(), 0, QUERY)
    pattern = f"{tmp_path}/silver/*/*.parquet"
    assert pl.scan_parquet(pattern, hive_partitioning=True).select(pl.len()).collect().item() == MADE
    counted = f"SELECT count(DISTINCT seq), count(DISTINCT received_date) FROM '{pattern}'"
    assert duckdb.sql(counted).fetchall() == [(MADE, 3)]
    frame = pd.read_parquet(tmp_path / "silver")
    assert sorted(frame["seq"]) == list(range(MADE))


@pytest.mark.tier(2)
def test_spark_reads_the_folder_as_it_stands(tmp_path, spark):
    writer(tmp_path).write(over_midnight(), 0, QUERY)
    silver = spark.read.parquet(str(tmp_path / "silver"))
    assert silver.count() == MADE and silver.select("received_date").distinct().count() == 3
    assert silver.schema["event_ts"].dataType.typeName() == "timestamp"


def test_of_files_whose_statistics_exclude_a_filter_only_these_are_read(tmp_path):
    made = writer(tmp_path)
    for batch_id in range(3):
        made.write(over_midnight(batch_id * MADE), batch_id, QUERY)
    table = Parquet(tmp_path / "silver", SCHEMAS["silver"], PARTITIONED_BY["silver"])
    near = parquet.pa_dataset.field("seq") >= 2 * MADE
    assert table.scan(["seq"], near).num_rows == MADE
    assert sum(1 for one in table.dataset().get_fragments(near) if list(one.split_by_row_group(near))) == 3


def test_tables_of_one_format_are_not_taken_for_the_other(tmp_path):
    writer(tmp_path / "p").write(over_midnight(), 0, QUERY)
    BatchWriter(tmp_path / "d", tmp_path / "d" / "state").write(over_midnight(), 0, QUERY)
    require_format(tmp_path / "p", "parquet")
    require_format(tmp_path / "d", "delta")
    require_format(tmp_path / "new", "parquet")
    for folder, other, found in (("p", "delta", "parquet"), ("d", "parquet", "delta")):
        with pytest.raises(UsageError, match=f"give --format {found} or other --tables"):
            require_format(tmp_path / folder, other)


def test_who_upkeeps_delta_says_that_these_are_plain_parquet(tmp_path):
    writer(tmp_path)
    with pytest.raises(UsageError, match="are plain Parquet"):
        listed(tmp_path)


@pytest.mark.parametrize("change", [rebuild, recount, lambda folder: delete_device(folder, "pump")])
def test_what_changes_delta_leaves_plain_parquet_as_it_is(tmp_path, change):
    writer(tmp_path).write(over_midnight(), 0, QUERY)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="are plain Parquet"):
        change(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_mark_is_named(tmp_path):
    writer(tmp_path)
    (tmp_path / "silver" / MARK).write_text("{")
    with pytest.raises(UsageError, match=f"{MARK} is damaged; choose another --tables"):
        writer(tmp_path)
