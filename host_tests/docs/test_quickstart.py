"""The steps of the tutorials, word for word, print what their pages say."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S

pytestmark = pytest.mark.tier(2)
DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+) ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The port of the broker on the pages.
_PORT = "8883"


@dataclass
class Step:
    """A step of a page.

    commands: for the shell. mark: "background": keeps running; "norun": not run here. prints: lines in this order.
    """

    commands: str
    mark: str
    prints: list[str]


def steps(page: str) -> tuple[list[Step], list[str]]:
    """Return the steps, and what the background step that shows logs prints at the end."""
    found: list[Step] = []
    logs: list[str] = []
    for kind, mark, text in _BLOCK.findall(page):
        if kind == "sh":
            found.append(Step(text, mark, []))
        elif mark == "logs":
            logs += text.splitlines()
        else:
            found[-1].prints += text.splitlines()
    return found, logs


def printed(lines: list[str]) -> re.Pattern[str]:
    """Return a pattern of these whole lines in this order, with others between them.

    A space stands for any space, an ellipsis for anything.
    """

    def line(text: str) -> str:
        return r"[^\n]*".join(r"[ \t]+".join(re.escape(word) for word in part.split()) + r"[ \t]*"
                              for part in text.split("…"))  # fmt: skip

    return re.compile(r"(.|\n)*".join(line(text) + r"\n" for text in lines))


class Shell:
    """A terminal: bash with `umqtt` on its path."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._stream = self._process.stdout
        self._text = codecs.getincrementaldecoder("utf-8")()
        self.output = ""

    def until(self, wanted: re.Pattern[str] | None) -> bool:
        """Read until this was printed, or until the end; return whether it was."""
        while wanted is None or not wanted.search(self.output):
            if not select.select([self._stream], [], [], WAIT_LIMIT_S)[0]:
                return False
            data = os.read(self._stream.fileno(), 65536)
            if not data:
                return wanted is None
            self.output += self._text.decode(data)
        return True

    def end(self) -> int:
        return self._process.wait(WAIT_LIMIT_S)

    def interrupt(self) -> int:
        """Send Ctrl-C to this terminal; return the exit code."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            return self.end()
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    programs, runtime = tmp_path / "bin", tmp_path / "runtime"
    programs.mkdir()
    runtime.mkdir(mode=0o700)
    umqtt = programs / "umqtt"
    umqtt.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m umqtt_cli "$@"\n')
    umqtt.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UMQTT_")}
    own = {"XDG_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": str(tmp_path / "state")}
    return {**kept, "PATH": f"{programs}:{kept['PATH']}", **own}


@contextlib.contextmanager
def network_with_a_board(environment: dict[str, str]) -> Iterator[list[str]]:
    """Yield the beginning of commands on a computer of a network, on which `umqtt board` has another address."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and ip: apt install iproute2")
    computer, board = f"umqtt-computer-{os.getpid()}", f"umqtt-board-{os.getpid()}"
    umqtt = Path(environment["PATH"].partition(":")[0]) / "umqtt"
    at_board = f'[ "$1" = board ] && exec ip netns exec {board} {shlex.quote(sys.executable)} -m umqtt_cli "$@"\n'
    umqtt.write_text(umqtt.read_text().replace("exec", f"{at_board}exec", 1))

    def ip(*words: str) -> bool:
        return not subprocess.run(["ip", *words], check=False, capture_output=True).returncode

    try:
        for name in (computer, board):
            if not ip("netns", "add", name):
                pytest.skip("this system gives no network namespaces")
            ip("-n", name, "link", "set", "lo", "up")
        assert ip("link", "add", "lan", "netns", computer, "type", "veth", "peer", "name", "lan", "netns", board)
        for name, own, other in ((computer, "198.51.100.1", "198.51.100.2"), (board, "198.51.100.2", "198.51.100.1")):
            assert ip("-n", name, "address", "add", f"{own}/24", "dev", "lan")
            assert ip("-n", name, "link", "set", "lan", "up")
            assert ip("-n", name, "route", "add", "default", "via", other)
        yield ["ip", "netns", "exec", computer]
    finally:
        for name in (computer, board):
            ip("netns", "delete", name)


def follow(page: str, tmp_path: Path, environment: dict[str, str], there: Sequence[str] = ()) -> None:
    """Run the page's steps, and check that each prints what the page says. there: the beginning of each command."""
    text = (DOCS / page).read_text()
    if not there:  # on this computer, where somebody else may have the page's port
        port = str(reserved_port())
        text = text.replace("umqtt broker --lan", f"umqtt broker --lan -p {port}").replace(_PORT, port)
    all_steps, logs = steps(text)
    folder = tmp_path / "here"
    folder.mkdir()
    running: list[Shell] = []
    try:
        for step in all_steps:
            if step.mark == "norun":
                continue
            shell = Shell([*there, "bash", "-ec", step.commands], folder, environment)
            if step.mark == "background":
                running.append(shell)
                assert shell.until(printed(step.prints)), f"{step.commands}\n{shell.output}"
                continue
            running.insert(0, shell)
            assert shell.until(None) and shell.end() == 0, f"{step.commands}\n{shell.output}"
            assert printed(step.prints).search(shell.output), f"{step.commands}\n{shell.output}"
        if logs:
            assert running[-1].until(printed(logs)), running[-1].output
    finally:
        # The last one started ends first, so that nothing complains about a missing broker.
        codes = [shell.interrupt() for shell in reversed(running)]
    assert set(codes) <= {0, 130}, codes


@pytest.mark.parametrize("page", ["quickstart.md", "first-sensor.md"])
def test_the_steps_work_word_for_word(page: str, tmp_path: Path, environment: dict[str, str]):
    """Planted: a sensor whose metric has another name than the page shows."""
    follow(page, tmp_path, environment)


@pytest.mark.parametrize("page", ["quickstart.md", "first-sensor.md"])
def test_the_steps_work_word_for_word_with_a_board_on_a_network(page: str, tmp_path: Path, environment: dict[str, str]):
    """Planted: the broker listens on this computer alone; its address on the board is 127.0.0.1."""
    with network_with_a_board(environment) as there:
        follow(page, tmp_path, environment, there)


@pytest.mark.tier(3)
def test_they_take_less_than_the_promised_minute(tmp_path: Path, environment: dict[str, str]):
    began = time.monotonic()
    follow("quickstart.md", tmp_path, environment)
    assert time.monotonic() - began < 60
