"""Power cuts at every flash operation lose nothing; planted mistakes are found.

`make prove-flash` runs the same with fifty times as many cuts.
"""

import flash_plan
import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command

CUTS = 20_000
SEED = 1
# The cuts take about 70 s on a quiet core, which a busy machine has not. What hangs is found before: see flash_workers.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(autouse=True)
def micropython() -> None:
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))


def test_no_power_cut_at_a_flash_operation_breaks_a_law():
    tally = flash_plan.sweep(CUTS, SEED)
    print(f"{tally.cuts} cuts, seed {SEED}")
    assert tally.failures == []
    assert tally.cuts >= CUTS


def test_the_sweep_catches_every_planted_mistake():
    caught = flash_plan.catch_controls(SEED)
    for control, how in caught.items():
        print(f"{control}: {how[:200]}")
    assert len(caught) == 2 * len(flash_plan.CONTROLS)
    assert [control for control, how in caught.items() if not how] == []
