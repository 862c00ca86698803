"""The client's bench compares goals the right way, and prints the promised output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_rows import Row
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.mosquitto import require_mosquitto


@pytest.fixture
def tools() -> None:
    """Skip the test where the bench cannot run."""
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    require_mosquitto()


# Each program of the bench has its own limit; this is for a bench that hangs itself.
_HUNG_AFTER_S = 280


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).with_name("client.py")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_HUNG_AFTER_S, check=False)


@pytest.mark.usefixtures("tools")
def test_each_row_is_a_line_of_json_with_the_promised_keys():
    ended = _bench("--quick", "--json", "--only", "publish QoS 2, loopback")
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {row["case"] for row in rows} == {"publish QoS 2, loopback", "publish QoS 2, loopback (CPython)"}
    for row in rows:
        assert row.keys() == Row("", None).as_dict().keys()
        assert row["ours"] > 0
        assert row["peer"] > 0


@pytest.mark.usefixtures("tools")
def test_a_peer_that_fails_is_named_and_the_rest_is_measured(tmp_path: Path):
    (tmp_path / "umqtt").mkdir()
    (tmp_path / "umqtt" / "simple.py").write_text("raise ValueError('no good')\n")
    ended = _bench("--quick", "--json", "--only", "publish QoS 0", "--peers", str(tmp_path))
    assert ended.returncode == 0
    assert "umqtt.simple" in ended.stderr and "no good" in ended.stderr
    peers = {(row["case"], row["peer_name"]): row for row in map(json.loads, ended.stdout.splitlines())}
    failed = peers["publish QoS 0, loopback", "umqtt.simple"]
    assert failed["ours"] > 0 and failed["peer"] is None and failed["met"] is None
    assert peers["publish QoS 0, loopback (CPython)", "paho-mqtt"]["peer"] > 0
