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
    ("mistake", "law", "crew"),
    [
        (broker_mistakes.ACKNOWLEDGES_EARLY, "lost", 0),
        (broker_mistakes.LOSES_THE_WINDOW, "out_of_order", 0),
        (broker_mistakes.FORGETS_INCOMING_IDENTIFIERS, "duplicated", 0),
        (broker_mistakes.DROPS_WHAT_THE_DEPARTED_HAD, "lost", 3),
        (broker_mistakes.FORGETS_SHARED_QUEUES, "lost", 3),
        (broker_mistakes.HANDS_ON_QOS_2, "duplicated", 3),
    ],
    ids=[
        "acknowledges before the commit",
        "loses the window",
        "forgets incoming identifiers",
        "drops what a departed member of a group had",
        "forgets the queues of groups",
        "gives another member what is in flight at QoS 2",
    ],
)
def test_the_count_catches_a_broker_that(tmp_path: Path, mistake: str, law: str, crew: int) -> None:
    for seed in range(1, 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        if getattr(kill_law.run(folder, 3, seed, mistake, crew=crew), law):
            return
    pytest.fail("no law was seen broken")
