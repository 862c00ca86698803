"""One layer over mpremote: every operation on a board ends in time, completely, or with one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import grp
import hashlib
import os
import pty
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from umqtt_kit.device import Board, DeviceError, open_serial
from umqtt_kit.device import board as board_module
from umqtt_kit.device.board import TEMPORARY
from umqtt_kit.device.line import Late, Line, PortBusy, why_not_open
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.errors import KitError

SEED = 20
_CHUNK = 768
# A board that prints must do so in the second half of this, even if processes stand still for half a second.
_GIVEN_UP_AFTER_S = 1.5
MAIN = b"import time\nprint('main runs')\nwhile True: time.sleep(1)\n"
# Two kinds of programs that a Ctrl-C does not stop.
DEAF = b"""
import time
while True:
    try:
        # Twice: a Ctrl-C that follows at once would come while the first is being ignored. In there it says that it is
        # deaf, since whoever reads that presses Ctrl-C.
        try:
            print('deaf')
            while True: %s
        except KeyboardInterrupt:
            pass
    except KeyboardInterrupt:
        pass
"""


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualBoard]:
    try:
        with VirtualBoard(tmp_path_factory.mktemp("device") / "flash.img") as board:
            board.install({"main.py": MAIN})
            board.start()
            board.wait_for("main runs")
            yield board
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))


def test_a_program_on_the_board_is_interrupted_and_runs_again_afterwards(
    virtual: VirtualBoard, monkeypatch: pytest.MonkeyPatch
):
    # A board that answers late would be asked for the prompt again, and each time is a soft reset.
    monkeypatch.setattr(board_module, "_ATTEMPTS_WITHIN_S", (WAIT_LIMIT_S,))
    lives = virtual.lives
    with Board(virtual.port) as board:
        assert board.exec("print(6 * 7)") == "42\n"
        assert board.eval("[1, 'a', b'\\x04', None]") == [1, "a", b"\x04", None]
    virtual.wait_for("main runs")
    assert virtual.lives == lives + 2, "a soft reset for a clean heap, and the restart"


def test_a_failure_in_between_restarts_the_board_as_well(virtual: VirtualBoard):
    with pytest.raises(RuntimeError, match="of the test"), Board(virtual.port):
        raise RuntimeError("of the test")
    virtual.wait_for("main runs")


@pytest.mark.smoke
def test_what_a_program_raises_is_one_line_with_the_traceback_apart(virtual: VirtualBoard):
    with Board(virtual.port) as board:
        with pytest.raises(DeviceError, match="on the board: ZeroDivisionError") as caught:
            board.exec("print('before')\n1/0")
        assert caught.value.exit_code == 5
        assert "\n" not in str(caught.value)
        assert caught.value.traceback.startswith("Traceback")
        assert board.exec("print('goes on')") == "goes on\n"


def test_files_go_there_and_back_unharmed_whatever_their_size(virtual: VirtualBoard):
    print("seed", SEED)
    chance = random.Random(SEED)
    contents = {f"/deep/er/{size}": chance.randbytes(size) for size in (0, 1, _CHUNK - 1, _CHUNK, _CHUNK + 1, 20_000)}
    with Board(virtual.port) as board:
        for path, content in contents.items():
            board.put(path, content)
            assert board.get(path) == content
        paths = [*contents, *[f"/nothing-{number}" for number in range(20)]]
        hashes = board.hashes(paths)
        assert list(hashes) == paths
        assert [hashes[path] for path in contents] == [hashlib.sha256(data).hexdigest() for data in contents.values()]
        assert {hashes[path] for path in paths[len(contents) :]} == {None}
        listed = board.list_files("/deep")
        assert listed == {"/deep/er": -1, **{path: len(content) for path, content in sorted(contents.items())}}
        board.remove_empty(["/deep/er"])
        assert board.list_files("/deep"), "a folder with files in it stays"
        board.remove_tree("/deep")
        assert board.list_files("/deep") == {}
        assert board.get("/deep/er/1") is None
        board.mkdir("/a/b")
        board.mkdir("/a/b")
        assert board.list_files("/a") == {"/a/b": -1}
        board.remove_tree("/a")


def test_a_file_is_the_old_one_or_the_new_one_whenever_sending_stops(virtual: VirtualBoard):
    old, new = b"old" * 1000, b"new" * 1000
    chunks = -(-len(new) // _CHUNK)
    for stop_after in range(1, chunks + 1):
        sent = 0

        def stop(_size: int, limit: int = stop_after) -> None:
            nonlocal sent
            sent += 1
            if sent == limit:
                raise KeyboardInterrupt

        with Board(virtual.port, restart=False) as board:
            board.put("/file", old)
            with pytest.raises(KeyboardInterrupt):
                board.put("/file", new, stop)
        with Board(virtual.port) as board:
            assert board.get("/file") == old
            board.put("/file", new)
            assert board.get("/file") == new
            assert TEMPORARY not in board.list_files("/"), "what an interruption left is used up"
            board.remove(["/file", "/file"])


def test_info_is_what_the_board_says_of_itself(virtual: VirtualBoard):
    with Board(virtual.port) as board:
        info = board.info()
        assert info.unique_id == board.eval("__import__('machine').unique_id()").hex()
        assert info.device_id == info.unique_id
        assert info.version.startswith("1.")
        assert (info.mpy_version, info.app_version, info.provisioned, info.has_main) == (6, None, False, True)
        assert 0 < info.flash_free <= info.flash_size
        assert 0 < info.heap_free < info.heap_size
        board.put("/settings.json", b'{"device_id": "pump-7"}')
        board.put("/app/__init__.py", b"VERSION = '9.9'")
        info = board.info()
        assert (info.device_id, info.app_version, info.provisioned) == ("pump-7", "9.9", True)
        board.remove_tree("/app")
        board.remove(["/settings.json"])


@pytest.mark.parametrize("application", [b"1/0", b"raise RuntimeError", b"VERSION = [9]"])
def test_an_application_that_fails_or_is_none_leaves_a_board_that_can_be_asked(virtual: VirtualBoard, application):
    with Board(virtual.port) as board:
        board.put("/app/__init__.py", application)
        odd = b"[" * 3000 + b"]" * 3000
        board.put("/settings.json", b'{"device_id": [["pump-7"]], "watchdog_ms": %s}' % odd)
        info = board.info()
        assert (info.app_version, info.device_id, info.provisioned) == (None, info.unique_id, True)
        board.soft_reset()
        board.remove_tree("/app")
        board.remove(["/settings.json"])


@pytest.mark.parametrize(
    ("body", "said"), [("print('x' * 50)", "goes on printing"), ("time.sleep(1)", "does not answer")]
)
def test_a_program_that_never_ends_is_given_up_in_time(tmp_path: Path, body: str, said: str):
    # A separate board, because it is left in that program.
    with VirtualBoard(tmp_path / "flash.img") as virtual:
        virtual.start()
        board = Board(virtual.port, restart=False)
        with pytest.raises(KitError, match=said) as caught:
            board.exec(f"import time\nwhile True: {body}", _GIVEN_UP_AFTER_S)
        assert caught.value.exit_code == 5
        board.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [("print('x')", "ignores Ctrl-C"), ("time.sleep_ms(5)", "does not answer")],
    ids=["loud", "mute"],
)
def test_a_main_that_ignores_ctrl_c_is_told_from_one_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
):
    monkeypatch.setattr(board_module, "_ATTEMPTS_WITHIN_S", (_GIVEN_UP_AFTER_S,))
    with VirtualBoard(tmp_path / "flash.img") as virtual:
        virtual.install({"main.py": DEAF % body.encode()})
        virtual.start()
        virtual.wait_for("deaf")
        with pytest.raises(KitError, match=said) as caught:
            Board(virtual.port)
        assert caught.value.exit_code == 5
        assert "\n" not in str(caught.value)
        assert "reset button" in str(caught.value)


def test_a_board_that_printed_while_the_tool_was_stopped_is_one_that_talks():
    board, inner = pty.openpty()
    with contextlib.closing(open_serial(os.ttyname(inner))) as port:
        line = Line(port, "bench")
        os.write(board, b"x")
        assert select.select([port.fileno()], [], [], WAIT_LIMIT_S)[0]
        line.allow(0)  # over before the first check
        with pytest.raises(Late) as caught:
            line.read(2)
        assert caught.value.talking
        line.allow(0.01)
        with pytest.raises(Late) as caught:
            line.read(2)
        assert not caught.value.talking
    os.close(inner)
    os.close(board)


def test_a_cable_pulled_in_the_middle_is_one_line(tmp_path: Path):
    with VirtualBoard(tmp_path / "flash.img") as virtual:
        virtual.start()
        with pytest.raises(KitError, match="the board is gone") as caught, Board(virtual.port) as board:
            board.exec("print(1)\nimport time\ntime.sleep(20)", on_output=lambda data: virtual.close())
        assert caught.value.exit_code == 3


def test_a_port_that_is_not_there_or_not_free_says_so(virtual: VirtualBoard):
    with pytest.raises(KitError, match="there is no port /dev/no-such-port") as caught:
        Board("/dev/no-such-port")
    assert caught.value.exit_code == 3
    program = (
        "import serial, sys; port = serial.Serial(sys.argv[1], exclusive=True); print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, virtual.port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        for use in (Board, open_serial):
            with pytest.raises(KitError, match="has this port open — close it") as caught:
                use(virtual.port)
            assert caught.value.exit_code == 3
            if sys.platform == "linux":
                assert f"(pid {holder.pid})" in str(caught.value)
        holder.communicate("\n", timeout=WAIT_LIMIT_S)


def test_a_port_that_a_child_still_has_on_its_way_to_its_own_program_is_waited_for(
    virtual: VirtualBoard, monkeypatch: pytest.MonkeyPatch
):
    port = open_serial(virtual.port)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        # Wait until the parent has found the port taken.
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    port.close()
    opens = board_module.open_serial

    def open_and_tell(*arguments: Any, **options: Any) -> Any:
        nonlocal writer
        try:
            return opens(*arguments, **options)
        except PortBusy:
            if writer >= 0:
                os.close(writer)
                writer = -1
            raise

    monkeypatch.setattr(board_module, "open_serial", open_and_tell)
    with Board(virtual.port, restart=False) as board:
        assert board.exec("print(1)") == "1\n"
    assert writer == -1, "the port was taken"
    os.waitpid(child, 0)


def test_a_port_of_others_names_the_group_to_join(tmp_path: Path):
    # root may open every port, so the system's refusal is simulated.
    port = tmp_path / "ttyUSB0"
    port.touch()
    refusal = why_not_open(str(port), PermissionError(errno.EACCES, "Permission denied"))
    assert refusal.exit_code == 3
    assert f"sudo usermod -aG {grp.getgrgid(port.stat().st_gid).gr_name} $USER" in str(refusal)


def test_a_watchdog_of_the_interrupted_program_does_not_bite_a_tool_at_work(tmp_path: Path):
    with VirtualBoard(tmp_path / "flash.img") as virtual:
        virtual.install({"main.py": b"import machine, time\nprint('main runs')\nwhile True: time.sleep(1)\n"})
        virtual.install({"settings.json": b'{"watchdog_ms": 2000}'})
        virtual.start()
        virtual.wait_for("main runs")
        with Board(virtual.port, restart=False) as board:
            lives = virtual.lives
            for _ in range(4):
                board.exec("import time\ntime.sleep_ms(700)")
                board.put("/file", b"x")
            assert virtual.lives == lives
            # The watchdog was started: it bites if it is not fed.
            with pytest.raises(KitError):
                board.exec("import time\ntime.sleep_ms(60000)", 1)
            virtual.wait_for("main runs")
        assert virtual.lives > lives
