"""The command `umqtt`, run as a user runs it; and a check for processes that it left behind."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from umqtt_testkit.waiting import eventually

from umqtt_cli.__main__ import run

_MARK = "UMQTT_TEST_FAMILY"


@dataclass(frozen=True)
class Ended:
    """The result of a finished command."""

    code: int
    stdout: str
    stderr: str

    def only_error(self) -> str:
        """Return the one line of stderr. Fails if there is none or more, or something on stdout."""
        assert self.stdout == "", self.stdout
        lines = self.stderr.splitlines()
        assert len(lines) == 1, f"not one line but {len(lines)}:\n{self.stderr}"
        return lines[0]


def umqtt_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "umqtt_cli", *arguments]


def umqtt_here(folder: Path, *arguments: str, given: str = "") -> Ended:
    """Run a command in this process, in that folder, with `given` on its stdin."""
    out, error = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        code = run(arguments)
    return Ended(code, out.getvalue(), error.getvalue())


class Family:
    """A command and everything it starts, recognised by an environment variable that every descendant inherits."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._mark = f"{_MARK}={uuid.uuid4().hex}"

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        name, _, value = self._mark.partition("=")
        # Killed processes leave temporary files behind.
        temporary = self._cwd / "temporary"
        temporary.mkdir(exist_ok=True)
        return subprocess.Popen(
            command,
            cwd=self._cwd,
            env={**os.environ, name: value, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def alive(self) -> list[str]:
        """Return `PID COMMAND` of every process of the family that has not ended."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append(f"{folder.name} {command}")
            except OSError:
                continue  # it ended meanwhile, or is not ours
        return found

    def wait_for(self, condition: Callable[[list[str]], bool]) -> None:
        """Poll until a condition on the running processes holds; the kernel does not report grandchildren."""
        eventually(lambda: condition(self.alive()), lambda: [process[:120] for process in self.alive()])
