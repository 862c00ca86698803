"""kill -9 at any moment: everything acknowledged is there, in order, at QoS 2 once; planted mistakes are caught."""

from pathlib import Path

import broker_mistakes
import kill_law
import pytest

CYCLES = 5


@pytest.mark.parametrize("seed", [1])
def test_everything_acknowledged_survives_kill_9_in_order_and_at_qos_2_once(tmp_path: Path, seed: int) -> None:
    tally = kill_law.run(tmp_path, CYCLES, seed)
    assert tally.failures == [], f"seed {seed}"
    assert tally.runs == CYCLES
    assert tally.messages > 500


@pytest.mark.parametrize(
    ("mistake", "law"),
    [
        (broker_mistakes.ACKNOWLEDGES_EARLY, "lost"),
        (broker_mistakes.LOSES_THE_WINDOW, "out_of_order"),
        (broker_mistakes.FORGETS_INCOMING_IDENTIFIERS, "duplicated"),
    ],
    ids=["acknowledges before the commit", "loses the window", "forgets incoming identifiers"],
)
def test_the_count_catches_a_broker_that(tmp_path: Path, mistake: str, law: str) -> None:
    for seed in (1, 2, 3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        if getattr(kill_law.run(folder, 3, seed, mistake), law):
            return
    pytest.fail("no law was seen broken")
