"""The whole chain, as `make demo` runs it: no reading is lost or stored twice, and a reading that is lost is found."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.publish as publish
import pytest
from umqtt_kit.witness import witness_path
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java: apt install openjdk-17-jre-headless"),
]
_ENDS_WITHIN_S = 300.0
_STILL_S = 15.0


def _demo(out: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "umqtt_kit", "demo", "--out", str(out), *arguments]


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _wait_for(demo: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Nobody is told when a file changes, so it is looked at again and again."""
    deadline = time.monotonic() + 150
    while not condition():
        assert demo.poll() is None, demo.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _child(parent: subprocess.Popen[str], word: bytes) -> int:
    """The process that the parent started with this word in its command line."""
    for process in Path("/proc").glob("[0-9]*"):
        # Others end at any moment.
        with contextlib.suppress(OSError):
            is_child = f"\nPPid:\t{parent.pid}\n" in (process / "status").read_text()
            if is_child and word in (process / "cmdline").read_bytes().split(b"\0"):
                return int(process.name)
    raise AssertionError(f"the demo has started no {word}")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds a process of the demo by /proc: Linux only")
def test_nothing_is_lost_or_duplicated_and_the_table_opens_as_printed(tmp_path):
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    out = tmp_path / "out"
    demo = subprocess.Popen(
        _demo(out, "--seconds", "6", "--boards", "2", "--devices", "10"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # What is no telemetry record goes to the quarantine, and nothing stops for it.
    _wait_for(demo, lambda: "subscribed" in _read(out / "logs" / "collector.log"))
    port = int(_read(out / "logs" / "broker.log").splitlines()[0].rpartition(":")[2])
    publish.single("fleet/stranger/telemetry", b"21.4 degrees", qos=1, hostname="127.0.0.1", port=port)
    # What is stored late is not lost: Spark stands still while readings wait for it.
    _wait_for(demo, lambda: "stopping the devices" in _read(out / "logs" / "demo.log"))
    spark = _child(demo, b"spark_ingest.pipeline")
    os.kill(spark, signal.SIGSTOP)
    time.sleep(_STILL_S)
    os.kill(spark, signal.SIGCONT)
    stdout, stderr = demo.communicate(timeout=_ENDS_WITHIN_S)
    assert demo.returncode == 0, stdout + stderr
    assert stderr == ""
    result = json.loads((out / "result.json").read_text())
    assert (result["lost"], result["duplicated"], result["unwitnessed"]) == (0, 0, 0)
    assert (result["boards"], result["devices"]) == (2, 10)
    assert result["made"] == result["stored"] > 150
    assert result["quarantined"] == 1
    # Every device and every board has its part in that, also after the outage.
    for device_id in ("board-01", "board-02", "sim-0001", "sim-0010"):
        assert witness_path(out / "witness", device_id).read_bytes().count(b"\n") > 10
    assert "exactly once" in stdout
    command = next(line.strip() for line in stdout.splitlines() if "to_pandas" in line)
    shown = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert f"[{result['stored']} rows x " in shown.stdout, shown.stderr


def test_a_reading_that_never_arrives_is_counted_as_lost_and_exit_code_1(tmp_path):
    """Planted: a device notes a reading that it never hands to the client. Without MicroPython, which is said."""
    out = tmp_path / "out"
    demo = subprocess.Popen(
        _demo(out, "--seconds", "2", "--devices", "3", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "UMQTT_MICROPYTHON": "no-such-micropython"},
    )
    victim = witness_path(out / "witness", "sim-0002")
    _wait_for(demo, lambda: "\n" in _read(victim))
    boot = victim.read_text().split()[0]
    with victim.open("a") as witness:
        witness.write(f"{boot} 99999\n")
    stdout, stderr = demo.communicate(timeout=_ENDS_WITHIN_S)
    assert demo.returncode == 1, stdout + stderr
    result = json.loads(stdout)
    assert (result["lost"], result["duplicated"], result["unwitnessed"]) == (1, 0, 0)
    assert result["examples"] == {"lost": [f"sim-0002 {boot} 99999"]}
    assert (result["boards"], result["devices"]) == (0, 3)
    assert {"made", "stored", "seconds", "readings_per_second"} <= result.keys()
    assert "simulated devices only" in stderr
    # Kept for whoever has to find out why.
    for kept in ("logs/spark.log", "witness/sim-0002.witness", "tables/silver", "spool"):
        assert (out / kept).exists()
