"""The broker's bench runs each of its cases, and prints what it promises."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_rows import Row
from broker_lab import Lab
from broker_plan import (
    CASES,
    CPU,
    FLASHMQ,
    RATE,
    Case,
    faults,
)
from umqtt_testkit.waiting import WAIT_LIMIT_S

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"), reason="the load generator needs Linux and a C compiler (cc)"
)

# The patience covers a busy machine that holds a broker up; it does not excuse a slow broker.
_TINY = {"seconds": 0.02, "warm": 0.01, "patience": WAIT_LIMIT_S}
# Makes a load small enough for a test without changing its kind.
_SMALLER = {"connections": 200, "messages": 200}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(None) as lab:
        yield lab


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_tiny_run_of_each_case_delivers_everything_in_order(lab: Lab, case: Case):
    options = {name: min(value, _SMALLER.get(name, value)) for name, value in case.options.items()} | _TINY
    result = lab.run(lab.broker(case.ours), case.mode, options)
    assert not faults(result)
    assert result["counted"] > 0 and result["seconds"] > 0 and result["cpu_us"] > 0


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).with_name("broker.py")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=4 * WAIT_LIMIT_S, check=False)


@pytest.mark.smoke
def test_each_row_is_a_line_of_json_with_the_promised_keys_and_what_is_missing_is_said():
    ended = _bench("--quick", "--json", "--case", "QoS 1 window 100")
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {row["case"] for row in found} >= {f"QoS 1 window 100: {RATE}", f"QoS 1 window 100: {CPU}"}
    assert all(row.keys() == Row("", None).as_dict().keys() and row["ours"] > 0 for row in found)
    assert f"{FLASHMQ} is not measured" in ended.stderr
