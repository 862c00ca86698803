"""Commands that only look leave a running program alone; those that must restart it let it say goodbye first."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from cable import Cable, broker, deployed
from umqtt_kit.device import Board, DeviceError, Manner
from umqtt_kit.device import running as running_module
from umqtt_kit.device.line import Line
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.waiting import WAIT_LIMIT_S

_ID = "pump-7"
_LOOK = (("devices",), ("doctor",), ("outbox",), ("provision", "--show"), ("deploy", "--dry-run"))


class Heard:
    """Collects what a device publishes while the commands run, by the last part of its topic."""

    def __init__(self, port: int) -> None:
        self._said: list[tuple[str, dict]] = []
        self._changed = threading.Condition()
        subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._client.on_message = self._take
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._client.subscribe([(f"fleet/{_ID}/telemetry", 1), (f"fleet/{_ID}/status", 1)])
        assert subscribed.wait(WAIT_LIMIT_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _take(self, client: paho.Client, user_data: object, message: paho.MQTTMessage) -> None:
        with self._changed:
            self._said.append((message.topic.rpartition("/")[2], json.loads(message.payload)))
            self._changed.notify_all()

    def readings(self) -> list[tuple[str, int]]:
        return [(record["boot"], record["seq"]) for leaf, record in self._said if leaf == "telemetry"]

    def statuses(self) -> list[str]:
        return [record["reason"] for leaf, record in self._said if leaf == "status"]

    def wait_for_more(self) -> None:
        with self._changed:
            wanted = len(self.readings()) + 2
            assert self._changed.wait_for(lambda: len(self.readings()) >= wanted, WAIT_LIMIT_S), self._said[-3:]

    def wait_for_statuses(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.statuses()) >= count, WAIT_LIMIT_S), self._said[-3:]


@contextlib.contextmanager
def at_work(cable: Cable, folder: Path) -> Iterator[tuple[VirtualBoard, Heard]]:
    """Run a deployed board that publishes; yield it, and what it publishes."""
    with broker(folder) as port:
        settings = {"device_id": _ID, "brokers": [f"mqtt://127.0.0.1:{port}"], "interval_ms": 100, "wifi": ["hall"]}
        files = {
            "settings.json": json.dumps(settings).encode(),
            "secrets.json": b'{"wifi": {"hall": "correct horse"}}',
        }
        with contextlib.closing(Heard(port)) as heard, cable.board(files={**deployed(), **files}) as board:
            heard.wait_for_more()
            yield board, heard


def test_what_only_looks_restarts_nothing_and_costs_no_reading(cable: Cable, tmp_path: Path):
    """Planted: one of the commands interrupts the board, as all once did."""
    with at_work(cable, tmp_path) as (board, heard):
        lives = board.lives
        for command in _LOOK:
            answer = cable.umqtt(*command)
            assert answer.code == 0, (command, answer.stdout, answer.stderr)
        heard.wait_for_more()
        assert board.lives == lives
        readings = heard.readings()
        assert [seq for _, seq in readings] == list(range(len(readings))), "nothing was missed"
        assert len({boot for boot, _ in readings}) == 1
        assert set(heard.statuses()) == {"boot"}


def test_what_must_restart_lets_the_firmware_say_so(cable: Cable, tmp_path: Path):
    """Planted: the firmware is interrupted silently, and its will says that the connection was lost."""
    with at_work(cable, tmp_path) as (_, heard):
        answer = cable.umqtt("provision", "--set", "interval_ms=50")
        assert answer.code == 0, answer.stderr
        heard.wait_for_more()
        heard.wait_for_statuses(3)
        assert heard.statuses() == ["boot", "restarting", "boot"]
        assert len({boot for boot, _ in heard.readings()}) == 2


def test_a_program_beside_the_firmware_prints_fails_and_is_as_long_as_it_likes(cable: Cable, tmp_path: Path):
    with at_work(cable, tmp_path) as (virtual, heard):
        lives = virtual.lives
        with Board(virtual.port, manner=Manner.BESIDE) as board:
            assert board.beside
            assert board.exec("print(6 * 7)\nprint('a\\r')") == "42\na\n"
            for length in (0, 143, 144, 145, 1000, 3000):
                assert board.exec(f"x = {'a' * length!r}\nprint(len(x))") == f"{length}\n"
            with pytest.raises(DeviceError, match="ZeroDivisionError"):
                board.exec("print('before')\n1/0")
            with pytest.raises(DeviceError, match="a program of more than 4096 bytes"):
                board.exec("#" * 4097)
            assert board.eval("board.identity.device_id") == _ID
        heard.wait_for_more()
        assert virtual.lives == lives


_FOREIGN = b"import time\nprint('mine')\nwhile True: time.sleep_ms(20)\n"


def test_a_program_that_cannot_be_asked_is_left_alone_until_told(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    """Planted: a program that does not answer is interrupted."""
    # The program never answers, however long the tool waits.
    monkeypatch.setattr(running_module, "_ASKED", 1)
    monkeypatch.setattr(running_module, "_ASKED_AGAIN_AFTER_S", 0.1)
    with cable.board(files={"main.py": _FOREIGN}) as board:
        board.wait_for("mine")
        lives = board.lives
        for command in _LOOK:
            answer = cable.umqtt(*command)
            assert "--interrupt" in answer.stdout + answer.stderr and "restart" in answer.stdout + answer.stderr
            assert (board.lives, answer.code) == (lives, 0 if command == ("devices",) else 5)
        assert cable.umqtt("provision", "--show", "--interrupt").code == 0
        assert board.lives > lives
        board.wait_for("mine")


def test_a_question_that_a_restart_swallows_or_that_is_answered_late_is_asked_again(
    cable: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Planted: the question is asked only once; repeating it in the middle of a program ends the program; a board
    that takes longer than the pause between two questions to finish its answer is asked again.
    """
    monkeypatch.setattr(running_module, "_ASKED_AGAIN_AFTER_S", 0.1)
    monkeypatch.setattr(running_module, "_ASKED", 100)
    write, asked = Line.write, 0

    def lossy(self: Line, data: bytes) -> int | None:
        nonlocal asked
        if data == running_module._PROBE:
            asked += 1
            if asked == 1:
                return len(data)
            data *= 2  # as if one more had waited on the line
        return write(self, data)

    run = running_module.Running._run

    def slow(self: running_module.Running, source: str, show: Callable[[bytes], object]) -> bytes:
        time.sleep(0.2)
        return run(self, source, show)

    monkeypatch.setattr(Line, "write", lossy)
    monkeypatch.setattr(running_module.Running, "_run", slow)
    with at_work(cable, tmp_path) as (board, _):
        lives = board.lives
        asked = 0
        assert cable.umqtt("provision", "--show").code == 0
        assert asked > 1 and board.lives == lives


def test_whoever_is_at_the_prompt_finds_it_as_it_was(cable: Cable):
    """Planted: a watchdog from the settings is started there; the board is reset in the end."""
    with cable.board(files={"settings.json": b'{"brokers": ["mqtt://127.0.0.1:1"]}'}) as board:
        with Board(board.port, manner=Manner.BESIDE) as first:
            first.exec("mine = 42\nimport machine\nmachine.WDT = lambda timeout: print(started)")
        lives = board.lives
        for command in (("devices",), ("provision", "--show"), ("deploy", "--dry-run")):
            assert cable.umqtt(*command).code == 0
        assert board.lives == lives
        with Board(board.port, manner=Manner.BESIDE) as last:
            assert last.eval("mine") == 42


def test_a_board_that_waits_after_a_crash_is_asked_without_a_word_and_started_again(cable: Cable):
    """Planted: the firmware does not answer in the pause after a crash, so the board counts as one that cannot be
    asked.
    """
    files = {**deployed(), "settings.json": b'{"device_id": "x", "brokers": ["mqtt://127.0.0.1:1"]}'}
    del files["/app/start.mpy"]
    with cable.board(files=files) as board:
        board.wait_for("Ctrl-C for the prompt")
        answer = cable.umqtt("doctor", "--json")
        board.wait_for("Ctrl-C for the prompt")
        found = {check["name"]: check for check in answer.json["checks"]}
        assert (answer.code, found["start"]["state"]) == (5, "fail")
        assert "no module named 'app.start'" in found["start"]["text"]
        assert found["start"]["more"][0].startswith("Traceback")
