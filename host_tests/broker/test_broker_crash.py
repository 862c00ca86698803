"""kill -9 at any moment: everything acknowledged is there, in order, at QoS 2 once; planted mistakes are caught.

Both with MQTT 3.1.1 and with MQTT 5, whose messages must come back with their properties. UMQTT_FULL_SWEEPS=1 kills
more often and plants every mistake of MISTAKES, as `make prove-broker` does.
"""

import os
from pathlib import Path

import broker_mistakes
import kill_law
import pytest

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
CYCLES = {4: 10, 5: 10} if FULL else {4: 3, 5: 2}


@pytest.mark.parametrize("protocol_level", CYCLES)
@pytest.mark.parametrize("seed", [1])
def test_everything_acknowledged_survives_kill_9_in_order_and_at_qos_2_once(
    tmp_path: Path, seed: int, protocol_level: int
) -> None:
    tally = kill_law.run(tmp_path, CYCLES[protocol_level], seed, protocol_level=protocol_level)
    assert tally.failures == [], f"seed {seed}"
    assert tally.runs == CYCLES[protocol_level]
    assert tally.messages > 500


# By name: the mistake, the law that it breaks, the members of the group in the load.
MISTAKES = {
    "acknowledges before the commit": (broker_mistakes.ACKNOWLEDGES_EARLY, "lost", 0),
    "stores no properties": (broker_mistakes.FORGETS_PROPERTIES, "other", 0),
    "loses the window": (broker_mistakes.LOSES_THE_WINDOW, "out_of_order", 0),
    "forgets incoming identifiers": (broker_mistakes.FORGETS_INCOMING_IDENTIFIERS, "duplicated", 0),
    "drops what a departed member of a group had": (broker_mistakes.DROPS_WHAT_THE_DEPARTED_HAD, "lost", 3),
    "forgets the queues of groups": (broker_mistakes.FORGETS_SHARED_QUEUES, "lost", 3),
    "gives another member what is in flight at QoS 2": (broker_mistakes.HANDS_ON_QOS_2, "duplicated", 3),
}


@pytest.mark.parametrize("mistake", MISTAKES if FULL else list(MISTAKES)[:2])
@pytest.mark.tier(3)  # a control
def test_the_count_catches_a_broker_that(tmp_path: Path, mistake: str) -> None:
    program, law, crew = MISTAKES[mistake]
    for seed in range(1, 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        protocol_level, kills = (5, 1) if program == broker_mistakes.FORGETS_PROPERTIES else (4, 3)
        if getattr(kill_law.run(folder, kills, seed, program, crew=crew, protocol_level=protocol_level), law):
            return
    pytest.fail("no law was seen broken")
