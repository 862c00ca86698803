"""A traced run: no PUBACK, PUBREC, PUBCOMP, SUBACK, PUBREL or CONNACK leaves before the fdatasync that covers it.

So it is with MQTT 3.1.1 and MQTT 5. One planted mistake of trace_load.MISTAKES is found in it, and one of MQTT 5; with
UMQTT_FULL_SWEEPS=1 every one.
"""

import os
import shutil
from pathlib import Path

import pytest
from law_peer import LEVELS
from trace_load import MISTAKES, MISTAKES_5, trace
from umqtt_testkit.encoder import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed — apt install strace")


@pytest.mark.parametrize("protocol_level", LEVELS)
def test_nothing_leaves_before_the_fdatasync_that_covers_it(tmp_path: Path, protocol_level: int) -> None:
    law = trace(tmp_path, 1, protocol_level=protocol_level)
    assert law.violations == []
    # Every part of the law was exercised.
    assert all(law.checked[kind] > 3 for kind in (CONNACK, PUBACK, PUBREC, PUBCOMP, SUBACK, PUBREL, PUBLISH)), (
        law.checked
    )
    assert law.checked[PUBACK] > law.needless > 0


@pytest.mark.parametrize(
    ("mistake", "protocol_level"),
    [*((one, 4) for one in (MISTAKES if FULL else list(MISTAKES)[:1])), *((one, 5) for one in MISTAKES_5)],
)
@pytest.mark.tier(3)  # a control
def test_the_trace_catches_a_store_that(tmp_path: Path, mistake: str, protocol_level: int) -> None:
    for seed in range(1, 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        if trace(folder, seed, {**MISTAKES, **MISTAKES_5}[mistake], protocol_level).violations:
            return
    pytest.fail("no trace shows it")
