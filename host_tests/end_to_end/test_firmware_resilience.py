"""A board that fails again and again can still be reached; a command survives a restart of the board."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cable import broker as guarded
from kit_command import umqtt_here
from paho_subscriber import Subscriber
from umqtt_kit.data import firmware_folder
from umqtt_kit.deploy.build import deployed_files
from umqtt_testkit.board import BoardError, VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing

_ID = "pump-7"


@pytest.fixture
def board(tmp_path: Path, broker: int) -> Iterator[VirtualBoard]:
    try:
        board = VirtualBoard(tmp_path / "flash.img")
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    postmortem = (firmware_folder() / "postmortem.py").read_text()
    assert "_PAUSE_S = 10" in postmortem
    with board:
        impatient = postmortem.replace("_PAUSE_S = 10", "_PAUSE_S = 0").encode()
        board.install({**deployed_files(), "/postmortem.py": impatient, **_settings(broker)})
        yield board


def _settings(broker: int, **settings: object) -> dict[str, bytes]:
    values = {"device_id": _ID, "brokers": [f"mqtt://127.0.0.1:{broker}"], "interval_ms": 50, "ntp_host": "",
              "unsigned_commands": True, **settings}  # fmt: skip
    return {"/settings.json": json.dumps(values).encode()}


def _broken(line: str) -> dict[str, bytes]:
    """Return a telemetry.py that runs this line at every reading, until it is replaced."""
    source = (firmware_folder() / "app/telemetry.py").read_text()
    before, after = source.split("    def _take(self, now):\n")
    broken = f"{before}    def _take(self, now):\n        {line}\n{after}"
    return {"/app/telemetry.py": broken.encode()}


def _safe_status(subscriber: Subscriber) -> Callable[[], bool]:
    return lambda: any(status["reason"] == "safe mode" for status in subscriber.payloads("status"))


def _command(subscriber: Subscriber, command_id: str, name: str, **args: object) -> dict:
    subscriber.publish(f"fleet/{_ID}/cmd", json.dumps({"id": command_id, "cmd": name, "args": args}))

    def reply() -> dict | None:
        return next((one for one in subscriber.payloads("reply") if one["id"] == command_id), None)

    assert subscriber.wait_for(lambda: reply() is not None)
    return reply() or {}


@pytest.mark.parametrize(
    ("line", "watchdog_ms"),
    [
        ("raise KeyError('pressure')", 0),
        ("if __import__('startup').now.state() == 'c': raise KeyError('pressure')", 0),
        ("import time; time.sleep(60)", 1000),
        ("import machine; machine.reset()", 0),
    ],
    ids=["crash", "crash after confirmation", "hang", "reset"],
)
@pytest.mark.sample(2)
def test_three_failed_boots_lead_to_safe_mode_which_still_obeys(
    board: VirtualBoard, broker: int, subscriber: Subscriber, line: str, watchdog_ms: int
):
    """Planted: safe mode needs four failed boots; a crash after the boot was confirmed does not count."""
    board.install({**_broken(line), **_settings(broker, watchdog_ms=watchdog_ms)})
    board.start()
    assert subscriber.wait_for(_safe_status(subscriber))
    assert board.lives == 4
    assert bool(subscriber.records) == line.startswith("if")
    assert _command(subscriber, "1", "ping")["ok"]
    crash = _command(subscriber, "2", "crash")["result"]
    assert crash["n"] == (3 if "raise" in line else 0)
    if "raise" in line:
        assert "KeyError: pressure" in crash["traceback"]
    assert not _command(subscriber, "3", "pause")["ok"]
    # The file is repaired; the command leaves safe mode.
    board.stop()
    board.install({"/app/telemetry.py": deployed_files()["/app/telemetry.py"]})
    board.start()
    assert subscriber.wait_for(lambda: len(subscriber.payloads("status")) > 1)
    assert _command(subscriber, "4", "reboot")["ok"]
    assert subscriber.wait_for(lambda: len(subscriber.records) > 3)


def test_reboot_happens_once_though_it_is_sent_again_and_again(board: VirtualBoard, subscriber: Subscriber):
    """Planted: commands that were carried out are forgotten at a restart."""
    board.start()
    assert subscriber.wait_for(lambda: len(subscriber.records) > 3)
    before = subscriber.records[0]["boot"]
    reply = _command(subscriber, "1", "reboot")
    assert reply["ok"] and reply["result"]["boot"] != before, reply
    for _ in range(3):
        replies = len(subscriber.payloads("reply"))
        subscriber.publish(f"fleet/{_ID}/cmd", '{"id": "1", "cmd": "reboot"}')
        assert subscriber.wait_for(lambda replies=replies: len(subscriber.payloads("reply")) > replies)
        assert subscriber.payloads("reply")[-1] == reply
    assert board.lives == 2
    board.kill()
    board.start()
    boot = _command(subscriber, "2", "ping")["result"]["boot"]
    assert boot not in (before, reply["result"]["boot"])
    # The command arrived before the first reading.
    assert subscriber.wait_for(lambda: subscriber.records[-1]["boot"] == boot)
    subscriber.publish(f"fleet/{_ID}/cmd", '{"id": "1", "cmd": "reboot"}')
    assert _command(subscriber, "3", "ping")["ok"]
    assert board.lives == 1
    # It said goodbye: only the power cut published the will of a lost connection.
    assert [status["reason"] for status in subscriber.payloads("status")].count("restarting") == 1


def test_the_console_says_why_there_is_no_link_and_the_log_topic_when_there_is_one(
    board: VirtualBoard, subscriber: Subscriber, broker: int, tmp_path: Path
):
    """Planted: the client's errors are not reported."""
    passwords = tmp_path / "passwords"
    assert umqtt_here(tmp_path, "passwd", str(passwords), _ID, "--stdin", given="right").code == 0
    with guarded(tmp_path, "allow_anonymous false", f"password_file {passwords}") as port:
        secrets = {"mqtt": {"username": _ID, "password": "wrong"}}
        board.install({"/secrets.json": json.dumps(secrets).encode(), **_settings(port)})
        board.start()
        board.wait_for("warning broker: wrong user name or password")
    board.stop()
    brokers = ["mqtt://127.0.0.1:1", "mqtt://no-such-name.invalid", f"mqtt://127.0.0.1:{broker}"]
    board.install(_settings(broker, brokers=brokers))
    board.start()
    board.wait_for("warning broker: nobody listens")
    board.wait_for("warning broker: its name cannot be looked up")
    # Not those of the run before: its power was cut as soon as the console had shown the reason.
    for told in ("nobody listens", "cannot be looked up"):
        assert subscriber.wait_for(lambda told=told: any(told in one["text"] for one in subscriber.payloads("log")))
    assert "Traceback" not in board.output


def test_ctrl_c_leads_to_the_prompt_and_counts_as_no_failure(board: VirtualBoard, broker: int):
    """Planted: Ctrl-C is not recorded as an interruption."""
    # Without a broker, no boot is confirmed in so short a time.
    board.install(_settings(broker, watchdog_ms=1500, brokers=["mqtt://127.0.0.1:1"], wifi=["workshop"]))
    for _ in range(4):
        board.start()
        board.wait_for("joined workshop")
        board.type("\x03")
        board.wait_for(">>> ")
        board.type("import startup; print('failures', startup.now.failures, startup.now.state())\r")
        board.wait_for("failures 0 i")
        board.stop()


# At most so many files of one size fit into the room that larger ones have left.
_OF_A_SIZE = 3


def _fill(board: VirtualBoard) -> None:
    """Fill the flash until there is no room for one more block."""
    sizes = [1 << power for power in range(20, 9, -1) for _ in range(_OF_A_SIZE)]
    with pytest.raises(BoardError):
        board.install({f"/filled/{number}": b"x" * size for number, size in enumerate(sizes)})


def test_a_board_whose_flash_is_full_is_online_measures_and_answers(board: VirtualBoard, subscriber: Subscriber):
    """Planted: a command that cannot be kept in flash is carried out anyway."""
    _fill(board)
    board.start()
    assert subscriber.wait_for(lambda: len(subscriber.records) >= 10), board.output
    assert subscriber.wait_for(lambda: any(status["online"] for status in subscriber.payloads("status")))
    assert "cannot be kept in flash" in _command(subscriber, "1", "ping")["result"]
    assert subscriber.wait_for(
        lambda: any("readings are not kept in flash" in record["text"] for record in subscriber.payloads("log"))
    )
