"""Power cuts at flash operations lose nothing; planted mistakes are found.

`make test` samples every scenario, with one mistake of each family. UMQTT_FULL_SWEEPS=1 makes 20,000 cuts, including
all of the fixed scenarios, with every mistake; `make prove-flash` makes fifty times as many.
"""

import os

import flash_plan
import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
CUTS = 20_000 if FULL else 600
CUTS_OF_EACH_SCENARIO = 0 if FULL else 5
SEED = 1
if FULL:
    # flash_workers detects a worker that hangs long before.
    pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(autouse=True)
def micropython() -> None:
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))


def test_no_power_cut_at_a_flash_operation_breaks_a_law():
    """Planted: each mistake of sweep_controls.py, in the next test."""
    tally = flash_plan.sweep(CUTS, SEED, most=CUTS_OF_EACH_SCENARIO)
    print(f"{tally.cuts} cuts, seed {SEED}")
    assert tally.failures == []
    assert tally.cuts >= CUTS


@pytest.mark.tier(3)  # a control
def test_the_sweep_catches_planted_mistakes():
    caught = flash_plan.catch_controls(SEED) if FULL else flash_plan.catch_families(SEED)
    for control, how in caught.items():
        print(f"{control}: {how[:200]}")
    assert len(caught) == (2 * len(flash_plan.CONTROLS) if FULL else len(flash_plan.ONE_A_FAMILY))
    assert [control for control, how in caught.items() if not how] == []
