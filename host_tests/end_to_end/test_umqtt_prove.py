"""The adversary over the whole chain, for a short while; and what it finds in a chain with planted mistakes."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command

from umqtt_cli.__main__ import run

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java: apt install openjdk-17-jre-headless"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="stops and limits processes as Linux does"),
]


@pytest.fixture(autouse=True)
def _micropython():
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))


def test_nothing_is_lost_or_doubled_while_everything_breaks(tmp_path, capsys):
    """The same seed in every run of the tests, so that none of them fails by luck; `make prove` draws others."""
    command = ["prove", "--minutes", "0.4", "--seed", "7", "--boards", "2", "--devices", "5", "--json"]
    code = run([*command, "--keep", str(tmp_path / "kept")])
    stdout, stderr = capsys.readouterr()
    assert code == 0, stdout + stderr
    verdict = json.loads(stdout)
    assert (verdict["count"]["lost"], verdict["count"]["duplicated"], verdict["unanswered"]) == (0, 0, [])
    assert verdict["count"]["made"] > 200 and sum(verdict["seen"].values()) >= 10
    history = [json.loads(line) for line in (tmp_path / "kept" / "history.jsonl").read_text().splitlines()]
    assert {event["target"] for event in history if "target" in event} >= {"network", "broker", "spark", "board-01"}
