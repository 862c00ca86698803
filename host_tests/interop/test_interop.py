"""The same suite against mosquitto and the paired broker, on CPython and on MicroPython."""

from __future__ import annotations

import subprocess
from pathlib import Path

import client_suite
import pytest

HERE = Path(__file__).resolve().parent


class Results:
    """What one interpreter printed about one broker."""

    def __init__(self, command: list[str], port: int, other: int) -> None:
        if "%s, %s" in command[-1]:
            command = [*command[:-1], command[-1] % (port, other)]
        else:
            command = [*command, str(HERE / "client_suite.py"), str(port), str(other)]
        self.text = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=110, check=False
        ).stdout.replace("\r\n", "\n")

    def of(self, check: str) -> str:
        """Empty when the check passed, else what was printed before its line."""
        before: list[str] = []
        for line in self.text.splitlines():
            if line == f"ok {check}":
                return ""
            if line == f"failed {check}":
                return "\n".join(before)
            before = [] if line.startswith(("ok check_", "failed check_")) else [*before, line]
        return "no result: " + self.text[-2000:]


@pytest.fixture(scope="module", params=["mosquitto", "paired_broker"])
def results(request: pytest.FixtureRequest, interpreter: list[str]) -> Results:
    ports = {name: request.getfixturevalue(name) for name in ("mosquitto", "paired_broker")}
    return Results(interpreter, ports.pop(request.param), next(iter(ports.values())))


@pytest.mark.parametrize("check", client_suite.CHECKS)
def test_interop(results: Results, check: str):
    failure = results.of(check)
    assert not failure, failure
