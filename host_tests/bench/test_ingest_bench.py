"""The ingestion's bench runs and prints what it promises; a missing figure never counts as a goal reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_BENCH = Path(__file__).resolve().parent
sys.path.insert(0, str(_BENCH))

from bench_rows import Row  # noqa: E402 - its folder is no package
from ingest_lab import Blocks, Commits  # noqa: E402
from ingest_load import packets, readings, record  # noqa: E402
from ingest_plan import (  # noqa: E402
    BACKFILL,
    COLLECTOR,
    COST,
    DECODE_MAPPED,
    DEDUP,
    FEW_DEVICES,
    FULL,
    GOLD_BYTES,
    LIVE,
    P50,
    P95,
    READ,
    SPARK_STREAM,
    START,
    TEXT_SOURCE,
    goal_of,
    row,
)

from spark_ingest.spool.writer import Spool  # noqa: E402


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(_BENCH / "ingest.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.timeout(300)
def test_each_row_is_a_line_of_json_with_the_promised_keys():
    ended = _bench(
        "--minimal",
        "--json",
        "--case",
        "collector",
        "--case",
        "spark",
        "--case",
        "state",
        "--case",
        "gold",
        "--case",
        "decoders",
    )
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert all(one.keys() == Row("", None).as_dict().keys() and one["ours"] > 0 for one in found)
    cases = {one["case"] for one in found}
    assert {COLLECTOR, READ, BACKFILL, DEDUP.format(devices=1000), COST.format(devices=1000)} <= cases
    assert GOLD_BYTES.format(devices=1000, share=0.01) in cases and DECODE_MAPPED in cases


def test_the_goals_are_those_that_were_asked_for():
    asked = {(P50, ""): 0.25, (P95, ""): 0.5, (START, ""): 5.0, (BACKFILL, SPARK_STREAM): 7.5, (READ, TEXT_SOURCE): 0.5}
    asked[COST.format(devices=100_000), FEW_DEVICES] = 1.1
    assert {row: goal.bound for row in asked if (goal := goal_of(*row))} == asked
    assert row(LIVE, 120.0, 100.0, "paho to Parquet, not durable").met is True
    assert row(LIVE, 119.0, 100.0, "paho to Parquet, not durable").met is False
    assert row(LIVE, 119.0, None, "paho to Parquet, not durable").met is None
    assert FULL.repetitions == 5


def test_what_lies_in_a_spool_is_counted_by_the_byte(tmp_path: Path):
    sent = packets(readings(10, 3))
    with Spool(tmp_path) as spool:
        spool.append(b"".join(sent[:4]), 4, 1_000)
        spool.append(b"".join(sent[4:]), 6, 2_000)
    blocks = Blocks(tmp_path.glob("*.seg"))
    assert (blocks.messages, blocks.wire, blocks.first) == (10, sum(map(len, sent)), (1.0, 4))
    assert blocks.size == sum(path.stat().st_size for path in tmp_path.glob("*.seg"))


def test_a_record_is_json():
    assert json.loads(record(1, 2, 3))["seq"] == 2


def test_the_rows_of_a_table_are_told_by_its_log(tmp_path: Path):
    import pyarrow as pa
    from deltalake import write_deltalake

    commits = Commits(tmp_path)
    assert commits.look() == 0
    for count in (3, 5):
        write_deltalake(str(tmp_path), pa.table({"x": list(range(count))}), mode="append")
    assert commits.look() == 8
    assert [len(paths) for _, paths in commits.commits] == [1, 1]


def test_a_folder_of_peers_that_is_none_is_answered_with_what_to_do(tmp_path: Path):
    ended = _bench("--peers", str(tmp_path))
    assert ended.returncode == 2
    assert "make it, or leave the option out" in ended.stderr
