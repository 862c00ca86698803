"""umqtt cmd with a played device: answers on stdout or in one line, and commands sent once, answered late or never.

What the firmware makes of each command is in host_tests/unit/test_app_commands.py.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cable import broker
from kit_command import umqtt_command
from live_device import PlayedDevice
from umqtt_kit.device_commands import MOST_BYTES
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import run

pytestmark = pytest.mark.tier(1)

_ID = "pump-7"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with broker(tmp_path_factory.mktemp("broker")) as port:
        yield port


@pytest.fixture
def played(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PlayedDevice]]:
    """Provide played(result, ok=True), which plays a device that gives this answer to everything."""
    monkeypatch.setenv("UMQTT_BROKER", f"mqtt://127.0.0.1:{port}")
    devices: list[PlayedDevice] = []

    def play(result: object = None, *, ok: bool = True, answer: Callable[..., Any] | None = None) -> PlayedDevice:
        device = PlayedDevice(
            port, _ID, answer or (lambda command: [{"id": command["id"], "ok": ok, "result": result}])
        )
        devices.append(device)
        return device

    yield play
    for device in devices:
        device.sleep()


@contextlib.contextmanager
def killed_at_the_end(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kill the process in the end, so that a failing test does not wait for a command that waits for ever."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "sent", "result", "shown"),
    [
        (["ping"], {}, {"boot": "3-ab", "up": 9}, ["boot = 3-ab", "up = 9"]),
        (["get", "interval_ms"], {"key": "interval_ms"}, {"key": "interval_ms", "value": 500}, ["500"]),
        (["get"], {}, {"interval_ms": 500, "wifi": ["a"]}, ["interval_ms = 500", 'wifi = ["a"]']),
        (
            ["set", "interval_ms", "250"],
            {"key": "interval_ms", "value": 250},
            {"key": "interval_ms", "value": 250, "was": 500, "applies": "now"},
            ["interval_ms = 250 (now)"],
        ),
        (
            ["set", "hostname", "pump"],
            {"key": "hostname", "value": "pump"},
            {"key": "hostname", "value": "pump", "was": None, "applies": "after reboot"},
            ["hostname = pump (after reboot)"],
        ),
        (
            ["set", "sleep_s", "-1"],
            {"key": "sleep_s", "value": -1},
            {"key": "sleep_s", "value": -1, "was": 0, "applies": "now"},
            ["sleep_s = -1 (now)"],
        ),
        (["read", "/app"], {"path": "/app"}, {"entries": [["x.py", 9], ["s", None]]}, ["x.py  9 bytes", "s/"]),
        (["read", "/x", "7"], {"path": "/x", "offset": 7}, {"text": "a\n\x1bb"}, ["a", "\\x1bb"]),
        (["log"], {}, {"lines": ["1 info a", "2 info b\n"]}, ["1 info a", "2 info b\\n"]),
        (["crash"], {}, {"n": 0}, ["no crash"]),
        (["log"], {}, {"lines": 5}, ['{"lines": 5}']),
        (["read"], {}, {"entries": [1]}, ['{"entries": [1]}']),
        (["crash"], {}, {"n": 2, "traceback": "Traceback\n  x\n"}, ["n = 2", "Traceback", "  x"]),
    ],
)
def test_a_command_is_sent_once_and_its_result_shown(played, capsys, arguments, sent, result, shown):
    device = played(result)
    assert run(["cmd", _ID, *arguments]) == 0
    assert capsys.readouterr() == ("\n".join(shown) + "\n", "")
    assert run(["cmd", _ID, *arguments, "--json", "-V", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["cmd"], one["args"]) for one in device.until(2)] == [(arguments[0], sent)] * 2
    ids = [one["id"] for one in device.until(2)]
    assert ids[0] != ids[1]
    assert found == {"device": _ID, "cmd": arguments[0], "id": ids[1], "ok": True, "result": result}


def test_what_the_device_refuses_is_exit_code_5_with_its_words(played, capsys):
    played("interval_ms: must be a whole number", ok=False)
    assert run(["cmd", _ID, "set", "interval_ms", "soon"]) == 5
    assert capsys.readouterr() == ("", f"umqtt: {_ID}: set: interval_ms: must be a whole number\n")
    assert run(["cmd", _ID, "ping", "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_who_has_no_key_here_is_told_where_it_was_looked_for(played, capsys, monkeypatch, tmp_path):
    """Planted: a board that has a key was said to need one over the cable, when the command ran in another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UMQTT_KEYS", raising=False)
    played("reboot must be signed: give this board a key over the cable with umqtt keys make", ok=False)
    assert run(["cmd", _ID, "reboot"]) == 5
    error = capsys.readouterr().err
    assert f"reboot must be signed, and {tmp_path}/keys.json has no key of {_ID} — " in error and "UMQTT_KEYS" in error


def test_the_reply_to_another_command_is_not_taken_for_this_one(played, capsys):
    played(answer=lambda command: [
        {"id": "of somebody else", "ok": True, "result": "wrong"}, {"id": command["id"], "ok": True, "result": "right"}
    ])  # fmt: skip
    assert run(["cmd", _ID, "ping"]) == 0
    assert capsys.readouterr().out == "right\n"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"online": True, "reason": "boot"}, "umqtt logs"),
        ({"online": False, "reason": "connection lost"}, "it is offline (connection lost)"),
        ({"online": False, "reason": "sleeping"}, "--wait"),
    ],
)
def test_no_reply_in_time_is_exit_code_4_and_says_what_became_of_the_device(played, capsys, status, said):
    device = played(answer=lambda command: [])
    device.say("status", status, retain=True)
    assert run(["cmd", _ID, "ping", "--timeout", "0.3"]) == 4
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    assert said in error and f"--id {device.until(1)[0]['id']}" in error


def test_the_reply_to_an_earlier_command_is_asked_for_by_its_id(played, capsys):
    device = played("done before")
    assert run(["cmd", _ID, "reboot", "--id", "tuesday"]) == 0
    assert capsys.readouterr().out == "done before\n"
    assert device.until(1)[0]["id"] == "tuesday"


def test_a_name_nobody_has_is_exit_code_4_and_points_at_the_names(played, capsys):
    played()
    assert run(["cmd", "nobody", "ping", "--timeout", "0.3"]) == 4
    assert "fleet/+/status" in capsys.readouterr().err


def test_a_sleeping_device_is_waited_for_and_answers_at_its_wake(played):
    device = played({"boot": "3-ab"})
    device.say("status", {"online": False, "reason": "sleeping"}, retain=True)
    device.sleep()
    pipe = subprocess.PIPE
    command = umqtt_command("cmd", _ID, "ping", "--wait", "--timeout", "0.1")
    with killed_at_the_end(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"{_ID} sleeps; it answers at its next wake\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)  # longer than --timeout
        device.wake()
        assert process.communicate(timeout=WAIT_LIMIT_S) == ("boot = 3-ab\n", "")
        assert process.returncode == 0


def test_a_device_that_goes_to_sleep_while_it_is_waited_for_is_told_as_well(played):
    device = played(answer=lambda command: [])
    device.say("status", {"online": True, "reason": "boot"}, retain=True)
    pipe = subprocess.PIPE
    command = umqtt_command("cmd", _ID, "ping", "--wait")
    with killed_at_the_end(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)) as process:
        (sent,) = device.until(1)
        # The second time it is not reported as new.
        for _ in range(2):
            device.say("status", {"online": False, "reason": "sleeping"}, retain=True)
        device.say("reply", {"id": sent["id"], "ok": True, "result": "awake"})
        assert process.communicate(timeout=WAIT_LIMIT_S) == ("awake\n", f"{_ID} sleeps; it answers at its next wake\n")


def test_ctrl_c_ends_the_wait(played):
    device = played(answer=lambda command: [])
    device.say("status", {"online": False, "reason": "sleeping"}, retain=True)
    pipe = subprocess.PIPE
    command = umqtt_command("cmd", _ID, "ping", "--wait")
    with killed_at_the_end(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)) as process:
        assert process.stderr is not None
        assert "sleeps" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=WAIT_LIMIT_S)
        assert (out, error.strip()) == ("", "umqtt: interrupted")
        assert process.returncode == 130


def test_what_is_sent_is_no_longer_than_the_firmware_takes():
    file = Path(__file__).resolve().parents[2] / "firmware" / "app" / "commands.py"
    assert f"_MAX_COMMAND_BYTES = {MOST_BYTES}\n" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([_ID, "dance"], "dance"),
        ([_ID, "set", "interval_ms"], "KEY VALUE"),
        ([_ID, "ping", "x"], "ping"),
        ([_ID, "read", "/app", "x"], "OFFSET"),
        ([_ID, "read", "/app", "²"], "OFFSET"),
        ([_ID, "read", "/app", "9" * 5000], "OFFSET"),
        ([_ID, "set", "interval_ms", "NaN"], "VALUE NaN"),
        ([_ID, "set", "interval_ms", "[-1e999]"], "VALUE [-1e999]"),
        ([_ID, "set", "hostname", "x" * 900], "a device takes 900"),
        ([_ID, "set", "sensors", "[" * 20_000], "a device takes 900"),
        ([_ID, "read", "/" + "x" * 900], "a device takes 900"),
        ([_ID, "set", "hostname", "\udcff"], "no UTF-8"),
        (["x" * 70_000, "ping"], "no name of a device"),
        (["\udcff", "ping"], "no name of a device"),
        (["a/b", "ping"], "a/b"),
        ([_ID, "ping", "--id", ""], "--id"),
    ],
)
def test_bad_usage_is_exit_code_2_and_names_it(arguments, named, capsys):
    assert run(["cmd", *arguments]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1 and "—" in error
