"""Programs run against a scripted peer, on both interpreters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, device_search_path, micropython_command
from umqtt_testkit.peer import ScriptedPeer
from umqtt_testkit.waiting import WAIT_LIMIT_S


@pytest.fixture(params=["cpython", "micropython"])
def run_program(request: pytest.FixtureRequest, peer: ScriptedPeer) -> Callable[..., list[str]]:
    """Provide run_program(program, script): the lines printed while the peer plays the script; PORT is its port."""
    if request.param == "cpython":
        command = [sys.executable]
    else:
        try:
            command = micropython_command("1M")
        except MicroPythonMissing as missing:
            pytest.skip(str(missing))
    port = int(peer.url.rpartition(":")[2])
    head = f"import sys; sys.path[:0] = {device_search_path()!r}; PORT = {port}\n"

    def play(program: str, script: Callable[[ScriptedPeer], None]) -> list[str]:
        peer.run(script)
        done = subprocess.run(
            [*command, "-c", head + program], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
        )
        peer.join()
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return play
