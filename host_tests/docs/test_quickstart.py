"""The steps of the tutorials, unchanged but for the broker's port, print what their pages say."""

from __future__ import annotations

import codecs
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

pytestmark = pytest.mark.tier(2)
DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+) ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The port of the broker on the page.
_PORT = "1883"


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

    def __init__(self, commands: str, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "-ec", commands], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
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
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    programs, runtime = tmp_path / "bin", tmp_path / "runtime"
    programs.mkdir()
    runtime.mkdir(mode=0o700)
    umqtt = programs / "umqtt"
    umqtt.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m umqtt_kit "$@"\n')
    umqtt.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UMQTT_")}
    yield {**kept, "PATH": f"{programs}:{kept['PATH']}", "XDG_RUNTIME_DIR": str(runtime)}


def follow(page: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """Run the page's steps, and check that each prints what the page says."""
    all_steps, logs = steps((DOCS / page).read_text())
    # The broker chooses a port: one chosen in advance may be taken by somebody else when it starts.
    port, shown = "0", "…"
    folder = tmp_path / "here"
    folder.mkdir()
    running: list[Shell] = []
    try:
        for step in all_steps:
            if step.mark == "norun":
                continue
            shell = Shell(step.commands.replace(_PORT, port), folder, environment)
            if step.mark == "background":
                running.append(shell)
                prints = [line.replace(_PORT, shown) for line in step.prints]
                assert shell.until(printed(prints)), f"{step.commands}\n{shell.output}"
                if port == "0":
                    port = shown = re.findall(r"listening on .*:(\d+)\n", shell.output)[0]
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


@pytest.mark.tier(3)
def test_they_take_less_than_the_promised_minute(tmp_path: Path, environment: dict[str, str]):
    began = time.monotonic()
    follow("quickstart.md", tmp_path, environment)
    assert time.monotonic() - began < 60
