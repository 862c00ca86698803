"""An update of gold takes no more memory than is stated, whatever waits or comes late, and time in proportion to it."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from umqtt_testkit.portable import FULL

PROGRAM = Path(__file__).parents[1] / "proof" / "gold_memory.py"
MOST_BYTES = 1_000_000_000
"""Resident memory of the process, as docs/ingest.md says."""
# What the kernel lets the process add to its data: parts of it are reserved and never touched.
CAP_BYTES = 1_600_000_000
# Devices, metrics, hours of silver, late devices, hours that they deliver at once.
SMALL = [(40, 3, 30, 1, 26), (300, 12, 2, 30, 2)]
WHOLE = [
    *((devices, metrics, 10_000 // devices, late, hours)
      for devices, metrics, (late, hours) in itertools.product((50, 1000), (1, 20), ((1, 84), (100, 84), (1000, 1)))),
    (2500, 20, 96, 1, 84),
]  # fmt: skip


def measured(folder: Path, *numbers: int) -> dict[str, float]:
    command = [sys.executable, str(PROGRAM), str(folder), *map(str, numbers), str(CAP_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    print(numbers, done.stdout)
    return json.loads(done.stdout)


@pytest.mark.parametrize("numbers", WHOLE if FULL else SMALL)
def test_gold_takes_no_more_memory_than_is_stated_whatever_waits_or_returns(tmp_path, numbers):
    """Planted: a piece of unbounded size; the windows of a whole day in memory; an engine without a limit."""
    told = measured(tmp_path, *numbers)
    assert told["n"] == told["wanted"] and told["peak"] <= MOST_BYTES


def test_a_device_that_returns_with_days_of_readings_rewrites_nothing_of_the_others(tmp_path):
    """Planted: all windows of the hours for which something is late are written again."""
    told = measured(tmp_path, 40, 3, 30, 1, 26)
    # A window takes some 30 bytes; those of the other devices in these hours are 40 times as many.
    assert told["late_bytes"] < 26 * 12 * 3 * 300
