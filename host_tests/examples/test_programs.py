"""Every program of the folder examples does what its docstring says; host_tests/spark has those that need Spark.

The programs run unchanged except for the constants at their top.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from example_programs import EXAMPLES, Peer, finished, running, with_constants
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.waiting import WAIT_LIMIT_S


@pytest.fixture(params=["cpython", "micropython"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the interpreter that runs the example."""
    if request.param == "micropython":
        try:
            micropython_command()
        except MicroPythonMissing as missing:
            pytest.skip(str(missing))
    return request.param


def test_the_table_of_examples_names_every_file() -> None:
    table = set(re.findall(r"\]\(([^)#:]+)\)", (EXAMPLES / "README.md").read_text()))
    here = {path.name for path in EXAMPLES.iterdir() if path.name not in ("README.md", "__pycache__")}
    assert {name.split("/")[0] for name in table if not name.startswith("..")} == here


def test_a_gateway_that_is_killed_forwards_every_message(kind: str, tmp_path: Path) -> None:
    """Planted: a message is acknowledged before it is stored; a message that finds no room is dropped."""
    readings = {b"%d" % number for number in range(40)}
    slots = 8  # less room than messages, so most of them wait at the broker on site
    far_away = Mosquitto(tmp_path, "allow_anonymous true")
    with Mosquitto(tmp_path, "allow_anonymous true", "log_type all") as on_site:
        addresses = {"ON_SITE": f"mqtt://127.0.0.1:{on_site.port}", "FAR_AWAY": f"mqtt://127.0.0.1:{far_away.port}"}
        with running("gateway.py", tmp_path, kind, SLOTS=slots, **addresses), Peer(on_site.port) as sensor:
            on_site.wait_for_log("Sending SUBACK to gateway-1")
            for reading in sorted(readings):
                sensor.publish("sensors/level", reading)
            for _ in range(slots):
                on_site.wait_for_log("Received PUBACK from gateway-1")
        with (
            far_away,
            Peer(far_away.port, "#") as table,
            running("gateway.py", tmp_path, kind, SLOTS=slots, **addresses),
        ):
            arrived = table.wait_for(lambda received: {payload for _, payload in received} == readings)
    assert {topic for topic, _ in arrived} == {"site-1/sensors/level"}


def test_commands_are_answered_also_those_that_came_while_the_device_was_away(kind: str, tmp_path: Path) -> None:
    """Planted: clean_session=True; a handler that raises for a wrong value."""

    def replies(received: list[tuple[str, bytes]]) -> dict[str, dict]:
        # The first reply to each command: a power cut during a command repeats it.
        found = [json.loads(payload) for topic, payload in received if topic == "pumps/pump-7/reply"]
        return {str(reply["id"]): reply for reply in reversed(found)}

    def says(status: bytes) -> Callable[[list[tuple[str, bytes]]], bool]:
        return lambda received: [payload for topic, payload in received if topic.endswith("status")][-1:] == [status]

    with Mosquitto(tmp_path, "allow_anonymous true", "log_type all") as broker, Peer(broker.port, "pumps/#") as owner:
        constants = {"BROKER": f"mqtt://127.0.0.1:{broker.port}"}

        def order(identifier: str, cmd: object, value: object = None) -> None:
            owner.publish("pumps/pump-7/cmd", json.dumps({"id": identifier, "cmd": cmd, "value": value}), 2)

        with running("command_handler.py", tmp_path, kind, **constants):
            broker.wait_for_log("Sending SUBACK to pump-7")
            order("1", "set_speed", 1200)
            order("2", "get_speed")
            owner.wait_for(lambda received: replies(received).keys() >= {"1", "2"})
        owner.wait_for(says(b"offline"))
        for number, (cmd, value) in enumerate([("get_speed", None), ("set_speed", "fast"), ("explode", None), ([], 1)]):
            order(f"away-{number}", cmd, value)
        owner.publish("pumps/pump-7/cmd", b"\xff no JSON", 2)
        with running("command_handler.py", tmp_path, kind, **constants):
            answers = replies(owner.wait_for(lambda received: {"away-3", "None"} <= replies(received).keys()))
    assert (answers["1"]["result"], answers["2"]["result"]) == (1200, 1200)
    assert [answers[f"away-{number}"]["ok"] for number in range(4)] == [True, False, False, False]
    assert "whole number" in answers["away-1"]["error"] and "unknown command" in answers["away-2"]["error"]


def test_a_client_with_its_own_certificate_delivers_over_tls(kind: str, tmp_path: Path, certificates: Path) -> None:
    """Planted: the client shows no certificate."""
    lines = [
        f"cafile {certificates}/ca.pem",
        f"certfile {certificates}/broker.pem",
        f"keyfile {certificates}/broker.key",
    ]
    constants = {name: f"{certificates}/{file}" for name, file in
                 [("CA", "ca.pem"), ("CERTIFICATE", "client.pem"), ("KEY", "client.key")]}  # fmt: skip
    with Mosquitto(tmp_path, "require_certificate true", "use_identity_as_username true", *lines) as broker:
        url = f"mqtts://localhost:{broker.port}"
        assert finished("tls_client.py", tmp_path, kind, BROKER=url, **constants) == ["delivered over TLS"]


def test_tasks_of_asyncio_share_a_client(kind: str, tmp_path: Path) -> None:
    """Planted: the state is not published after a command."""
    with (
        Mosquitto(tmp_path, "allow_anonymous true", "log_type all") as broker,
        Peer(broker.port, "lamps/#") as owner,
        running("asyncio_tasks.py", tmp_path, kind, BROKER=f"mqtt://127.0.0.1:{broker.port}", INTERVAL_S=0.05),
    ):
        broker.wait_for_log("Sending SUBACK to lamp-2")
        owner.wait_for(lambda received: ("lamps/lamp-2/power", b"0.0") in received)
        owner.publish("lamps/lamp-2/cmd", b"\xff")
        owner.publish("lamps/lamp-2/cmd", b"on")
        owner.wait_for(lambda received: ("lamps/lamp-2/state", b"on") in received)
        owner.wait_for(lambda received: received[-1] == ("lamps/lamp-2/power", b"7.5"))


@pytest.mark.tier(2)
def test_a_board_that_sleeps_delivers_what_it_measured_without_a_network(tmp_path: Path) -> None:
    """Planted: QoS 0; a store in memory."""
    try:
        board = VirtualBoard(tmp_path / "flash.img", deepsleep_s=0.1)
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    with board, Mosquitto(tmp_path, "allow_anonymous true") as broker, Peer(broker.port, "meters/#") as owner:
        program = with_constants("deep_sleep.py", BROKER=f"mqtt://127.0.0.1:{broker.port}", LONGEST_AWAKE_MS=1000)
        board.install({"/main.py": program.encode(), "/lib/umqtt_robust": EXAMPLES.parent / "umqtt_robust"})
        board.hooks(wifi=False)
        board.start()
        board.wait_for_life(3)
        board.hooks(wifi=True)
        received = owner.wait_for(lambda received: len({payload for _, payload in received}) >= 5)
    wakes = [json.loads(payload)["wake"] for _, payload in received]
    assert list(dict.fromkeys(wakes)) == sorted(set(wakes)) == list(range(1, 1 + len(set(wakes))))


def test_a_project_tests_its_device_code_on_both_interpreters(tmp_path: Path) -> None:
    """Planted: the thermostat compares ticks without ticks_diff()."""
    project = shutil.copytree(
        EXAMPLES / "device_tests", tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache")
    )
    # -p: an installation finds the plugin by its entry point, which a checkout's environment may lack.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=WAIT_LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    assert "4 passed" in done.stdout, done.stdout
