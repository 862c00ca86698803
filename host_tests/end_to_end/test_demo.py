"""The whole chain, as `make demo` runs it, loses and duplicates no reading; a reading that is lost is found.

The command runs in this process, so a test can act at every step, and controls the clock by which the demo times out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import paho.mqtt.publish as publish
import pytest
from foreign_folder import Foreign
from umqtt_kit.demo.parts import Chain
from umqtt_kit.demo.view import State
from umqtt_kit.ground_truth import ground_truth_path
from umqtt_kit.processes import Child
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import run

_TAKING = "devices publish, Spark stores"
_DRAINING = "stopping the devices once their outboxes are empty"
_STORING = "waiting until Spark has stored everything"
# When the demo times out: if all that Spark has reported is stored, and if Spark may still be working.
_PATIENCE_S, _PATIENCE_AT_WORK_S = 30.0, 120.0
# By then every figure of the other devices is written.
_SETTLED_AFTER_STEPS = 12


class Watched:
    """A umqtt demo with a test's hook. step: called about ten times a second with the state that the demo shows."""

    def __init__(self, patch: pytest.MonkeyPatch, step: Callable[[State], None]) -> None:
        self._ahead_s = 0.0
        patch.setattr("umqtt_kit.commands.demo.live_display", lambda: contextlib.nullcontext(step))
        patch.setattr("umqtt_kit.demo.view.progress", lambda state: state)
        patch.setattr("umqtt_kit.demo.run.time", SimpleNamespace(monotonic=lambda: time.monotonic() + self._ahead_s))

    def pass_time(self, seconds: float) -> None:
        """Advance the demo's clock at once by this many seconds."""
        self._ahead_s += seconds


def _own_child(word: bytes) -> int:
    """Return the process id of this process's child with this word in its command line."""
    for process in Path("/proc").glob("[0-9]*"):
        # Other processes may end at any moment.
        with contextlib.suppress(OSError):
            is_child = f"\nPPid:\t{os.getpid()}\n" in (process / "status").read_text()
            if is_child and word in (process / "cmdline").read_bytes().split(b"\0"):
                return int(process.name)
    raise AssertionError(f"the demo has started no {word}")


@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java: apt install openjdk-17-jre-headless")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds a process of the demo by /proc: Linux only")
def test_nothing_is_lost_or_duplicated_and_the_table_opens_as_printed(tmp_path, monkeypatch, capsys):
    """None of its processes imports a file of the folder it stands in.

    Planted: a demo that gives up on Spark after a third of its time; Spark's processes without PYTHONSAFEPATH.
    """
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    out = tmp_path / "out"

    def publish_no_record() -> None:
        # A message that is no telemetry record goes to the quarantine, and everything else continues.
        port = int((out / "logs" / "broker.log").read_text().splitlines()[0].rpartition(":")[2])
        publish.single("fleet/stranger/telemetry", b"21.4 degrees", qos=1, hostname="127.0.0.1", port=port)

    def stop_spark() -> None:
        # What is stored late is not lost: Spark is stopped while readings wait for it.
        os.kill(_own_child(b"spark_ingest.pipeline"), signal.SIGSTOP)

    def go_on() -> None:
        # It was stopped for half of the time after which the demo continues without it.
        is_at_work = json.loads((out / "status" / "spark.json").read_text())["lag_bytes"] != 0
        watched.pass_time((_PATIENCE_AT_WORK_S if is_at_work else _PATIENCE_S) / 2)
        os.kill(_own_child(b"spark_ingest.pipeline"), signal.SIGCONT)

    actions = [(_TAKING, 1, publish_no_record), (_DRAINING, 1, stop_spark), (_STORING, _SETTLED_AFTER_STEPS, go_on)]
    steps: Counter[str] = Counter()

    def step(state: State) -> None:
        steps[state.phase] += 1
        if actions and (state.phase, steps[state.phase]) == actions[0][:2]:
            actions.pop(0)[2]()

    foreign = Foreign(tmp_path)
    monkeypatch.chdir(foreign.folder)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    watched = Watched(monkeypatch, step)
    code = run(["demo", "--out", str(out), "--seconds", "6", "--boards", "2", "--devices", "10"])
    stdout, stderr = capsys.readouterr()
    assert code == 0 and re.fullmatch(r"watch it while it runs: http://127\.0\.0\.1:\d+\n", stderr), stdout + stderr
    assert not actions and foreign.imported == set()
    result = json.loads((out / "result.json").read_text())
    assert (result["lost"], result["duplicated"], result["not_made"]) == (0, 0, 0)
    assert (result["boards"], result["devices"]) == (2, 10)
    assert result["made"] == result["stored"] > 150
    assert result["quarantined"] == 1
    # Every device and every board contributed, also after the outage.
    for device_id in ("board-01", "board-02", "sim-0001", "sim-0010"):
        assert ground_truth_path(out / "ground-truth", device_id).read_bytes().count(b"\n") > 10
    assert "exactly once" in stdout
    page = (out / "report.html").read_text()
    assert f"  {(out / 'report.html').as_uri()}\n" in stdout and result["report"] == str(out / "report.html")
    # Their last status: the boards are online, the simulated devices said goodbye, the stranger sent none.
    assert re.search(r'"online":2,"goodbye":10,"lost":0,', page) and "Waiting on the devices" in page
    command = next(line.strip() for line in stdout.splitlines() if "to_pandas" in line)
    shown = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
    )
    assert f"[{result['stored']} rows x " in shown.stdout, shown.stderr


def _start_stand_in(chain: Chain) -> Child:
    program = Path(__file__).with_name("store_without_spark.py")
    folder = chain.folder
    arguments = ["--spool", str(folder.spool), "--tables", str(folder.tables), "--checkpoint", str(folder.checkpoint)]
    arguments += ["--status", str(folder.status / "spark.json")]
    chain.spark = chain.children.start("spark", [sys.executable, "-u", str(program), *arguments])
    return chain.spark


def test_a_reading_that_never_arrives_is_counted_as_lost_and_exit_code_1(tmp_path, monkeypatch, capsys):
    """Planted: a device records a reading that it never gives to the client. Missing MicroPython is reported.

    The other test covers what Spark stores; here a small program replaces it, unless UMQTT_FULL_SWEEPS=1.
    """
    out = tmp_path / "out"
    monkeypatch.setenv("UMQTT_MICROPYTHON", "no-such-micropython")
    if not os.environ.get("UMQTT_FULL_SWEEPS"):
        monkeypatch.setattr(Chain, "start_spark", _start_stand_in)
    victim = ground_truth_path(out / "ground-truth", "sim-0002")
    planted = ""

    def step(state: State) -> None:
        nonlocal planted
        if not planted and victim.exists() and "\n" in (text := victim.read_text()):
            planted = f"{text.split()[0]} 99999"
            with victim.open("a") as ground_truth:
                ground_truth.write(planted + "\n")
        if state.phase == _STORING and state.stored == state.made - 1:
            watched.pass_time(_PATIENCE_S)

    watched = Watched(monkeypatch, step)
    code = run(["demo", "--out", str(out), "--seconds", "2", "--devices", "3", "--json"])
    stdout, stderr = capsys.readouterr()
    assert code == 1, stdout + stderr
    result = json.loads(stdout)
    assert (result["lost"], result["duplicated"], result["not_made"]) == (1, 0, 0)
    assert result["examples"] == {"lost": [f"sim-0002 {planted}"]}
    assert (result["boards"], result["devices"]) == (0, 3)
    assert {"made", "stored", "seconds", "readings_per_second"} <= result.keys()
    assert "simulated devices only" in stderr and "nothing was stored for 30 s" in stderr
    # Kept for the investigation.
    for kept in ("logs/spark.log", "ground-truth/sim-0002.readings", "tables/silver", "spool"):
        assert (out / kept).exists()
