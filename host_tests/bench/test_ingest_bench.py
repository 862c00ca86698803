"""The ingestion's bench runs and prints what it promises; a missing figure never counts as a goal reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_rows import Row
from ingest_lab import Blocks, Commits
from ingest_load import packets, readings
from ingest_plan import BACKFILL, COLLECTOR, READ

from spark_ingest.spool.writer import Spool


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).with_name("ingest.py")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.timeout(300)
def test_each_row_is_a_line_of_json_with_the_promised_keys():
    ended = _bench("--minimal", "--json", "--case", "collector", "--case", "spark")
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert all(one.keys() == Row("", None).as_dict().keys() and one["ours"] > 0 for one in found)
    assert {one["case"] for one in found} >= {COLLECTOR, READ, BACKFILL}


def test_what_lies_in_a_spool_is_counted_by_the_byte(tmp_path: Path):
    sent = packets(readings(10, 3))
    with Spool(tmp_path) as spool:
        spool.append(b"".join(sent[:4]), 4, 1_000)
        spool.append(b"".join(sent[4:]), 6, 2_000)
    blocks = Blocks(tmp_path.glob("*.seg"))
    assert (blocks.messages, blocks.wire, blocks.first) == (10, sum(map(len, sent)), (1.0, 4))
    assert blocks.size == sum(path.stat().st_size for path in tmp_path.glob("*.seg"))


def test_the_rows_of_a_table_are_told_by_its_log(tmp_path: Path):
    import pyarrow as pa
    from deltalake import write_deltalake

    commits = Commits(tmp_path)
    assert commits.look() == 0
    for count in (3, 5):
        write_deltalake(str(tmp_path), pa.table({"x": list(range(count))}), mode="append")
    assert commits.look() == 8
    assert [len(paths) for _, paths in commits.commits] == [1, 1]
