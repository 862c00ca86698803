"""Acts: the command that is shown is the one that is run, who ordered it is written down, and a stop stops it."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from live_device import PlayedDevice
from served_console import Serve, ServedConsole
from umqtt_console.acts import KINDS
from umqtt_kit.processes import module_command
from umqtt_testkit.waiting import eventually

# Prints its arguments, the content of a file among them, and runs until a signal if it is told so.
ECHO = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
for one in sys.argv[1:]:
    print(open(one).read() if one.endswith(".toml") else one, flush=True)
print(os.environ.get("UMQTT_PASSWORD"), flush=True)
if "reboot" in sys.argv: signal.pause()
sys.exit(5 if "crash" in sys.argv else 0)
"""
PING = {"kind": "command", "args": {"device": "pump-7", "command": "ping"}}


@pytest.fixture
def console(serve: Serve, fleet_of_forty: Path, tmp_path: Path) -> ServedConsole:
    program = [sys.executable, "-c", ECHO]
    secret = {"UMQTT_PASSWORD": "of the broker"}
    return serve(fleet_of_forty, program=program, broker_flags=(), environment=secret, audit=tmp_path / "audit.jsonl")


def ended(console: ServedConsole, act_id: str) -> dict[str, Any]:
    return eventually(
        lambda: next((one for one in console.get("acts")["acts"] if one["id"] == act_id and one["ended"]), None)
    )


def begun(console: ServedConsole, order: dict[str, Any]) -> dict[str, Any]:
    reply = console.post("acts", order)
    assert reply.status == 200, reply.body
    return reply.json


def test_an_act_is_planned_run_and_written_down(console: ServedConsole, tmp_path: Path) -> None:
    plan = console.post("acts/plan", PING).json
    assert plan["command"] == "umqtt cmd -- pump-7 ping" and plan["role"] == "operate"
    assert console.get("acts")["acts"] == [], "a plan does nothing"
    act = ended(console, begun(console, PING)["id"])
    assert act["command"] == plan["command"] and act["text"] == plan["text"]
    assert (act["state"], act["exit_code"]) == ("done", 0)
    assert act["lines"] == ["cmd", "--", "pump-7", "ping", "of the broker"]
    first, last = eventually(lambda: len(lines := _log(tmp_path)) == 2 and lines)
    assert (first["who"], first["command"], first["args"]) == (console.get("me")["name"], act["command"], PING["args"])
    assert (last["id"], last["state"], last["exit_code"]) == (act["id"], "done", 0)
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o077 == 0


def test_what_fails_and_what_is_stopped_is_said(console: ServedConsole) -> None:
    failed = ended(console, begun(console, {"kind": "command", "args": {"device": "a", "command": "crash"}})["id"])
    assert (failed["state"], failed["exit_code"]) == ("failed", 5)
    running = begun(console, {"kind": "command", "args": {"device": "a", "command": "reboot"}})
    eventually(lambda: "of the broker" in console.get("acts")["acts"][0]["lines"])
    assert console.post("acts/stop", {"id": running["id"]}).status == 200
    stopped = ended(console, running["id"])
    assert (stopped["state"], stopped["exit_code"]) == ("stopped", 130)
    assert console.post("acts/stop", {"id": running["id"]}).status == 422


def test_settings_go_through_a_file_that_is_shown(console: ServedConsole, tmp_path: Path) -> None:
    args = {
        "devices": ["pump-*", "-x"],
        "settings": {"interval_ms": 500, "name": 'a"b\nc', "led": {"pin": 3, "on": True}},
    }
    plan = console.post("acts/plan", {"kind": "settings", "args": args}).json
    group = tomllib.loads(plan["file"])["group"]["console"]
    assert group == {"devices": args["devices"], "settings": args["settings"]}
    act = ended(console, begun(console, {"kind": "settings", "args": args})["id"])
    assert "\n".join(act["lines"][2:-1]).strip() == plan["file"].strip()
    assert not list(tmp_path.glob(".*.toml"))


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("nothing", {}),
        ("command", {}),
        ("command", {"device": "a/b", "command": "ping"}),
        ("command", {"device": "#", "command": "ping"}),
        ("command", {"device": "a\x00", "command": "ping"}),
        ("command", {"device": "a" * 65, "command": "ping"}),
        ("command", {"device": "a", "command": "rm"}),
        ("command", {"device": "a", "command": "get", "arguments": "key"}),
        ("command", {"device": "a", "command": "get", "arguments": ["a"] * 4}),
        ("settings", {"devices": [], "settings": {"a": 1}}),
        ("settings", {"devices": ["a"], "settings": {}}),
        ("settings", {"devices": ["a"], "settings": {"a": None}}),
        ("update", {"fleet": "a", "stages": "all"}),
        ("update", {"fleet": "a", "wait_healthy": "soon"}),
        ("rotate", {"device": 7}),
    ],
)
def test_an_impossible_act_is_refused_and_nothing_is_run(
    console: ServedConsole, kind: str, args: dict[str, Any]
) -> None:
    for path in ("acts/plan", "acts"):
        reply = console.post(path, {"kind": kind, "args": args})
        assert reply.status == 422 and reply.message
    assert console.get("acts")["acts"] == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_text_becomes_an_option(console: ServedConsole, kind: str) -> None:
    """Planted: a device called --help was taken for the option."""
    args = {"device": "--help", "command": "ping", "fleet": "--help", "devices": ["--help"], "settings": {"a": 1}}
    for one in (args, {**args, "device": ""}) if kind == "update" else (args,):
        command = console.post("acts/plan", {"kind": kind, "args": one}).json["command"]
        assert "-- --help" in command or "=--help" in command or "FILE" in command


def test_without_a_log_nothing_is_done(serve: Serve, fleet_of_forty: Path, tmp_path: Path) -> None:
    console = serve(fleet_of_forty, program=[sys.executable, "-c", ECHO], audit=tmp_path / "none" / "audit.jsonl")
    refused = console.post("acts", PING)
    assert refused.status == 422 and "nothing was done" in refused.message and console.get("acts")["acts"] == []


def test_the_log_is_read_again_after_a_kill(serve: Serve, fleet_of_forty: Path, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    begun_ = {"id": "a", "who": "ann", "at": 1, "kind": "command", "args": {}, "command": "umqtt cmd x", "text": "x"}
    lines = [begun_, {**begun_, "id": "b"}, {"id": "b", "ended": 2, "state": "done", "exit_code": 0, "lines": ["yes"]}]
    audit.write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"id": "c", "wh')
    acts = serve(fleet_of_forty, audit=audit).get("acts")["acts"]
    assert [(one["id"], one["state"], one["lines"]) for one in acts] == [
        ("b", "done", ["yes"]),
        ("a", "interrupted", []),
    ]


@pytest.mark.tier(2)
def test_a_command_reaches_a_device_and_its_reply_is_shown(serve: Serve, fleet_of_forty: Path, broker: int) -> None:
    PlayedDevice(broker, "pump-7", lambda asked: [{"id": asked["id"], "ok": True, "result": {"fw": "0.2.0"}}])
    flags = [f"--broker=mqtt://127.0.0.1:{broker}"]
    console = serve(fleet_of_forty, program=module_command("umqtt_cli"), broker_flags=flags)
    act = ended(console, begun(console, PING)["id"])
    assert act["state"] == "done" and "0.2.0" in "\n".join(act["lines"]), act


def _log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
