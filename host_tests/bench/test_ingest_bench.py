"""The ingestion's bench runs and prints what it promises; a missing figure never counts as a goal reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_rows import Row
from ingest_plan import BACKFILL, COLLECTOR, READ


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
