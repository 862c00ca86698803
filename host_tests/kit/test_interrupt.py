"""A demo that is interrupted, terminated or killed at any step leaves no process behind.

`make test` interrupts it at the last step, UMQTT_FULL_SWEEPS=1 at every one.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from kit_command import umqtt_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

# A demo has reached a step when a process started there has this word in its command line. The last one is Spark's
# Java, which the demo did not start itself.
_STEPS = ["umqtt_broker", "umqtt_kit.fleet", "SparkSubmit"]


def _start(family, out: Path):
    return family.start(umqtt_command("demo", "--boards", "2", "--devices", "5", "--out", str(out)))


def _wait_for_step(family, step: str) -> None:
    family.wait_for(lambda alive: any(step in process for process in alive))


@pytest.mark.parametrize("step", _STEPS if os.environ.get("UMQTT_FULL_SWEEPS") else _STEPS[-1:])
def test_ctrl_c_leaves_nothing_and_exits_with_130(family, tmp_path, step):
    demo = _start(family, tmp_path / "out")
    _wait_for_step(family, step)
    demo.send_signal(signal.SIGINT)
    out, error = demo.communicate(timeout=WAIT_LIMIT_S)
    assert demo.returncode == 130
    assert (out, error.strip()) == ("", "umqtt: interrupted")
    family.wait_for(lambda alive: not alive)


def test_sigterm_is_as_good_as_ctrl_c(family, tmp_path):
    demo = _start(family, tmp_path / "out")
    _wait_for_step(family, "umqtt_broker")
    demo.terminate()
    _, error = demo.communicate(timeout=WAIT_LIMIT_S)
    assert demo.returncode == 128 + signal.SIGTERM
    assert error == "umqtt: terminated\n"
    family.wait_for(lambda alive: not alive)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux kills children at their parent's death")
def test_kill_9_of_the_demo_takes_everything_with_it(family, tmp_path):
    demo = _start(family, tmp_path / "out")
    _wait_for_step(family, "SparkSubmit")
    demo.kill()
    demo.communicate(timeout=WAIT_LIMIT_S)
    family.wait_for(lambda alive: not alive)


def test_a_part_that_dies_ends_the_demo_and_is_named(family, tmp_path):
    demo = _start(family, tmp_path / "out")
    _wait_for_step(family, "umqtt_kit.fleet")
    broker = next(process for process in family.alive() if "umqtt_broker" in process)
    os.kill(int(broker.split()[0]), signal.SIGKILL)
    _, error = demo.communicate(timeout=WAIT_LIMIT_S)
    assert demo.returncode == 1
    assert "broker was killed by SIGKILL" in error and str(tmp_path / "out" / "logs" / "broker.log") in error
    family.wait_for(lambda alive: not alive)
