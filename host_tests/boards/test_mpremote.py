"""The real mpremote works on a virtual board's port, without patches."""

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from umqtt_kit.device import Board
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.waiting import WAIT_LIMIT_S

SEED = 12
MAIN = b"""
import machine
print("main", machine.reset_cause())
while True: pass
"""


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualBoard]:
    try:
        with VirtualBoard(tmp_path_factory.mktemp("mpremote") / "flash.img") as running:
            running.install({"main.py": MAIN})
            running.start()
            running.wait_for("main 1")
            yield running
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))


def mpremote(port: str, *arguments: str, expect: int = 0) -> str:
    command = [sys.executable, "-m", "mpremote", "connect", port, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WAIT_LIMIT_S)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_exec_interrupts_main_and_shows_output_and_errors(board: VirtualBoard):
    assert mpremote(board.port, "exec", "print(6 * 7)") == "42\n"
    assert "ZeroDivisionError" in mpremote(board.port, "exec", "1/0", expect=1)


def test_files_go_there_and_back_unharmed(board: VirtualBoard, tmp_path: Path):
    print("seed", SEED)
    data = random.Random(SEED).randbytes(20_000)
    (tmp_path / "there").write_bytes(data)
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "small").write_bytes(b"\x03\x04\x01\x02\x05")
    mpremote(
        board.port, "fs", "cp", str(tmp_path / "there"), ":there", "+", "fs", "cp", "-r", str(tmp_path / "folder"), ":"
    )
    assert hashlib.sha256(data).hexdigest() in mpremote(board.port, "fs", "sha256sum", ":there")
    mpremote(board.port, "fs", "cp", ":there", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data
    listing = mpremote(board.port, "fs", "ls", ":folder/inner")
    assert "5 small" in listing


def test_soft_reset_skips_main_and_reset_runs_it(board: VirtualBoard):
    lives = board.lives
    mpremote(board.port, "soft-reset", "exec", "print('still here')")
    board.wait_for("MPY: soft reboot")
    assert "main" not in board.wait_for("still here")
    mpremote(board.port, "reset")
    board.wait_for("main 2")
    assert board.lives == lives + 3, "soft-reset, exec's own soft reset, reset"


def test_run_and_mount(board: VirtualBoard, tmp_path: Path):
    (tmp_path / "host_module.py").write_text("answer = 42")
    (tmp_path / "script.py").write_text("import host_module\nprint('answer', host_module.answer)")
    assert "answer 42" in mpremote(board.port, "mount", str(tmp_path), "run", str(tmp_path / "script.py"))


def test_ctrl_c_among_the_bytes_of_a_mounted_folder_is_data(board: VirtualBoard, tmp_path: Path):
    module = tmp_path / "host_module_3.py"
    module.write_text("answer = 42 #\x03\x03\x03".ljust(0x0303))
    os.utime(module, (0x03030303, 0x03030303))  # mpremote sends size and times unchanged
    (tmp_path / "script.py").write_text(
        "import host_module_3\nprint('answer', host_module_3.answer, len(open('host_module_3.py').read()))"
    )
    assert "answer 42 771" in mpremote(board.port, "mount", str(tmp_path), "run", str(tmp_path / "script.py"))


def test_ctrl_c_interrupts_what_a_tool_that_has_gone_left_running(board: VirtualBoard):
    mpremote(board.port, "exec", "--no-follow", "print('left', 'alone')\nwhile True: pass")
    board.wait_for("left alone")
    lives = board.lives
    board.type("\x03\x03\x03")
    board.wait_for("KeyboardInterrupt")
    assert mpremote(board.port, "resume", "exec", "print(6 * 7)") == "42\n"
    assert board.lives == lives, "interrupted, not killed"


def test_ctrl_c_is_data_for_a_program_that_asked_for_it(board: VirtualBoard, tmp_path: Path):
    (tmp_path / "script.py").write_text(
        "import micropython, sys\n"
        "micropython.kbd_intr(-1)\n"
        "print('give', 3)\n"
        "got = b''\n"
        "while got[-1:] != b'a':\n"
        "    got += sys.stdin.buffer.read(1)\n"
        "micropython.kbd_intr(3)\n"
        "print(got)"
    )
    mpremote(board.port, "run", "--no-follow", str(tmp_path / "script.py"))
    board.wait_for("give 3")
    board.type("\x03\x03a")
    board.wait_for(r"\x03\x03a'")


def test_an_interpreter_that_waits_for_itself_is_given_up(board: VirtualBoard):
    # As the unix port does, once in thousands of times, when it ends after an interrupt.
    locked = "import _thread, micropython\nlock = _thread.allocate_lock()\nmicropython.kbd_intr(-1)\nprint('locked', 1)"
    mpremote(board.port, "exec", "--no-follow", locked + "\nlock.acquire()\nlock.acquire()")
    board.wait_for("locked 1")
    lives = board.lives
    assert mpremote(board.port, "exec", "print(6 * 7)").endswith("42\n")
    assert board.lives > lives


def test_the_command_line_board_is_reached_by_its_link(tmp_path: Path):
    link = tmp_path / "ttyBoard"
    command = [sys.executable, "-m", "umqtt_testkit.board", str(tmp_path / "new.img"), str(link)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        assert process.stdout.readline() == f"board at {link}\n"
        assert mpremote(str(link), "exec", "print(6 * 7)") == "42\n"
        process.terminate()
        assert process.wait(WAIT_LIMIT_S) == 0
    assert not link.is_symlink()


def test_a_mounted_folder_is_read_and_written_byte_for_byte(board: VirtualBoard, tmp_path: Path):
    """Planted: line feeds of binary output become CR LF, so that mpremote's requests never end."""
    data = bytes(range(256)) * 8 + b"\xff\xff\n\r\n"
    (tmp_path / "there").write_bytes(data)
    (tmp_path / "mounted.py").write_text("print('imported')\n")
    program = "import mounted\nopen('back', 'wb').write(open('there', 'rb').read())"
    assert "imported\n" in mpremote(board.port, "mount", str(tmp_path), "exec", program)
    assert (tmp_path / "back").read_bytes() == data


def test_binary_output_stays_as_it_is_and_text_gets_cr_lf(board: VirtualBoard):
    """Planted: as above."""
    with Board(board.port) as connected:
        written = bytearray()
        program = "import sys\nsys.stdout.buffer.write(b'\\n\\xff\\r\\n\\xff')\nprint('a')\nprint('b', file=sys.stdout)"
        connected.exec(program, on_output=written.extend)
        assert written == b"\n\xff\r\n\xffa\r\nb\r\n"
