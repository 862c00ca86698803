"""Commands on a terminal: a board's prompt, a virtual board in the foreground, colours, progress, questions."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cable import Cable
from kit_command import umqtt_command
from terminals import terminal
from umqtt_kit.device import Board
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from umqtt_cli.__main__ import run


def test_the_shell_is_the_boards_prompt_and_ctrl_bracket_leaves_it(cable: Cable):
    with cable.board(files={"main.py": b"while True: pass"}), terminal("shell", "--device", "bench") as shell:
        shell.until("Ctrl-] leaves")
        shell.until("Use Ctrl-] or Ctrl-x")
        shell.until_raw()
        shell.type("\x03")
        shell.until(">>> ")
        shell.type("print(6 * 7, 'is it')\r")
        shell.until("42 is it")
        shell.type("\x1d")
        assert shell.end() == 0


def test_every_line_of_the_shell_begins_at_the_left(cable: Cable):
    """Planted: a virtual board ends its lines with LF alone, and mpremote makes the terminal show that as it is."""
    with cable.board(), terminal("shell", "--device", "bench") as shell:
        shell.until("Use Ctrl-] or Ctrl-x")
        shell.until_raw()
        shell.type("for word in ('first', 'second'): print(word)\r\r")
        shell.until("second")
        shell.until(">>> ")
        shell.type("1/0\r")
        shell.until("ZeroDivisionError: divide by zero")
        shell.until(">>> ")
        shell.type("\x1d")
        assert shell.end() == 0
        assert "\nfirst\r\nsecond\r\n" in shell.shown
        assert not re.search("[^\r]\n", shell.shown), shell.shown


def test_the_shell_needs_a_terminal_and_one_board(cable: Cable):
    assert "no board is connected" in _refusal(cable, 3)
    with cable.board("cellar"):
        assert "there is no terminal here" in _refusal(cable, 2)
        with cable.board("roof"):
            assert "there are 2 boards: cellar, roof — say which: --device" in _refusal(cable, 2)


def _refusal(cable: Cable, code: int) -> str:
    answer = cable.umqtt("shell")
    assert (answer.code, answer.stdout, answer.stderr.count("\n")) == (code, "", 1)
    return answer.stderr


def test_the_shell_does_not_take_a_port_from_another_command(cable: Cable):
    with cable.board(), terminal("shell", "--device", "bench") as first:
        first.until("Use Ctrl-]")
        with terminal("shell", "--device", "bench") as second:
            second.until("has this port open")
            assert second.end() == 3
            assert f"pid {first.process.pid}" in second.shown or "mpremote" in second.shown


@contextlib.contextmanager
def board(*arguments: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `umqtt board`; yield the process and its first line."""
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    pipe = subprocess.PIPE
    # Killed processes leave temporary files behind.
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    process = subprocess.Popen(
        umqtt_command("board", *arguments), stdout=pipe, stderr=pipe, text=True, cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def test_a_virtual_board_is_found_keeps_its_flash_and_ends_with_ctrl_c(cable: Cable, tmp_path: Path):
    for life in range(2):
        with board("bench.img", "--json", folder=tmp_path) as (process, ready):
            values = json.loads(ready)
            assert (values["name"], values["image"]) == ("bench", str(tmp_path / "bench.img"))
            assert cable.umqtt("provision", "--set", "device_id=pump-7", "--set",
                               "brokers=mqtt://127.0.0.1").code == 0  # fmt: skip
            written = cable.umqtt("provision", "--set", "device_id=pump-7", "--json").json["boards"][0]
            assert written.pop("room").startswith("room for "), life
            assert written == {
                "port": "bench",
                "device_id": "pump-7",
                "changed": [],
                "deploy": False,
                "open": [],
                "sensors": [],
            }, life
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_LIMIT_S) == 0
        assert "no board is connected" in cable.umqtt("provision", "--show").stderr


def test_what_is_connected_is_there_from_the_first_boot_and_goes_up_and_down(cable: Cable, tmp_path: Path):
    connected = ("--device", "adc@34:v=1..3", "--device", "bme280@0x76")
    with (
        board("bench.img", "--json", *connected, folder=tmp_path) as (_, ready),
        Board(json.loads(ready)["port"]) as bench,
    ):
        bench.exec("from machine import ADC, I2C, Pin\nadc = ADC(Pin(34), atten=ADC.ATTN_11DB)\n")
        assert bench.eval("I2C(0, scl=Pin(5), sda=Pin(4)).scan()") == [0x76]
        first = bench.eval("adc.read_uv()")
        assert first >= 900_000
        eventually(lambda: bench.eval("adc.read_uv()") > first)
    answer = cable.umqtt("board", "other.img", "--device", "adc@A0")
    assert answer.code == 2 and "adc is on a pin from 0 to 63" in answer.stderr and answer.stderr.count("\n") == 1
    assert not (tmp_path / "other.img").exists()


def test_a_flash_image_is_that_of_one_board_at_a_time(cable: Cable, tmp_path: Path):
    image = tmp_path / "bench.img"
    with board(str(image), "--name", "first", folder=tmp_path) as (process, ready):
        assert ready.startswith("first runs")
        (tmp_path / "link.img").symlink_to(image)
        for name in ("bench.img", "link.img"):
            answer = cable.umqtt("board", str(tmp_path / name), "--name", "second")
            assert (answer.code, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
            assert f"{image} is the flash of a virtual board that runs — stop" in answer.stderr
        process.kill()
        process.wait(WAIT_LIMIT_S)
        with board(str(image), "--name", "second", folder=tmp_path) as (_, ready):
            assert ready.startswith("second runs"), "the lock went with the process that held it"


def test_a_virtual_board_plays_the_board_that_it_is_told(cable: Cable, tmp_path: Path):
    with board("pico.img", "--board", "RPI_PICO_W", folder=tmp_path) as (_, ready):
        assert ready.startswith("pico runs at /dev/")
        (found,) = cable.umqtt("devices", "--json").json["boards"]
        assert (found["name"], found["board"], found["info"]["platform"]) == ("pico", "RPI_PICO_W", "rp2")


def test_a_virtual_board_that_cannot_be_is_one_line(cable: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Planted: a heap of 32K, with which the board was "gone"; a missing folder of --link named the flash file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("no flash")
    with cable.board():
        for arguments, named in (
            ("x.img --board PDP_11", "PDP_11"),
            ("x.img --heap much", "much"),
            ("x.img --heap 32K", "at least 48K"),
            ("x.img --link there", "there"),
            ("x.img --link no/ttyBoard", "there is no folder no"),
            ("x.img --name a/b", "a/b"),
            ("x.img --name bench", "runs already"),
            ("/dev/null/x.img", "/dev/null/x.img"),
            ("there", "there"),
        ):
            answer = cable.umqtt("board", *arguments.split())
            assert (answer.code, answer.stdout, answer.stderr.count("\n")) == (2, "", 1), arguments
            assert named in answer.stderr and "—" in answer.stderr
    assert (tmp_path / "there").read_text() == "no flash"


def test_colours_and_progress_are_for_a_terminal_that_wants_them(cable: Cable):
    with cable.board():
        for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
            with terminal("doctor", "--device", "bench", **environment) as doctor:
                assert doctor.end() == 5
                colour = re.search(r"\x1b\[3\d", doctor.shown) is not None
                assert colour == coloured, doctor.shown
        with terminal("deploy", "--device", "bench", "--no-wait") as deploy:
            assert deploy.end() == 0
            assert "\r" in deploy.shown and "━" in deploy.shown
        answer = cable.umqtt("deploy", "--no-wait")
        assert "━" not in answer.stdout + answer.stderr


_FOREIGN = b"import time\nprint('mine')\nwhile True: time.sleep_ms(20)\n"


def test_a_program_is_interrupted_after_a_yes_on_the_terminal_only(cable: Cable):
    """Planted: no question, so that the program is left alone; any answer interrupts it."""
    files = {"main.py": _FOREIGN}
    with (
        cable.board("cellar", files=files) as left, cable.board("roof", files=files) as interrupted,
        terminal("doctor", "--device", "cellar") as no, terminal("doctor", "--device", "roof") as yes,
    ):  # fmt: skip
        for asked, answer in ((no, "n\r"), (yes, "y\r")):
            asked.until("Interrupt it, and restart the board at the end? [y/N]")
            asked.type(answer)
        assert no.end() == 5 and "--interrupt interrupts it" in no.shown
        assert yes.end() == 5 and "/dev/" in yes.shown and "micropython" in yes.shown, "no application is deployed"
        interrupted.wait_for_life(2)
        assert left.lives == 1 and "KeyboardInterrupt" not in left.output


def test_a_question_that_nobody_answers_ends_with_ctrl_c_and_nothing_is_written(cable: Cable):
    with cable.board() as virtual:
        with terminal("provision", "--device", "bench") as provision:
            provision.until("Device id")
            provision.type("pump-7\r")
            provision.until("Wi-Fi network 1")
            # The second signal may come while the first ends it.
            assert provision.interrupt() in (130, -signal.SIGINT)
        virtual.stop()
        assert "/settings.json" not in virtual.files()
    assert run(["devices", "--passive"]) == 3
