"""A traced run: no PUBACK, PUBREC, PUBCOMP, SUBACK, PUBREL or CONNACK leaves before the fdatasync that covers it.

One planted mistake of trace_load.MISTAKES is found in it; with UMQTT_FULL_SWEEPS=1 every one.
"""

import os
import shutil
from pathlib import Path

import pytest
from trace_load import MISTAKES, trace
from umqtt_testkit.encoder import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed — apt install strace")


def test_nothing_leaves_before_the_fdatasync_that_covers_it(tmp_path: Path) -> None:
    law = trace(tmp_path, seed=1)
    assert law.violations == []
    # Every part of the law was exercised.
    assert all(law.checked[kind] > 3 for kind in (CONNACK, PUBACK, PUBREC, PUBCOMP, SUBACK, PUBREL, PUBLISH)), (
        law.checked
    )
    assert law.checked[PUBACK] > law.needless > 0


@pytest.mark.parametrize("mistake", MISTAKES if FULL else [next(iter(MISTAKES))])
def test_the_trace_catches_a_store_that(tmp_path: Path, mistake: str) -> None:
    for seed in range(1, 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        if trace(folder, seed, MISTAKES[mistake]).violations:
            return
    pytest.fail("no trace shows it")
