"""Collects portable test files twice: `test_x[cpython]` and `test_x[micropython]`.

One MicroPython process runs a file's tests as pytest reaches them. A crash or a hang fails the test it
happened in; the next test gets a new process.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from linecache import getline
from pathlib import Path
from typing import Any

import pytest

from .interpreter import (
    DEVICE_FILES,
    MicroPythonMissing,
    device_search_path,
    micropython_command,
)
from .portable import Skip

_RECORD = b"\x1e"
_MOST_OUTPUT = 256 * 1024
_DEFAULT_TIMEOUT_S = 100.0
# Complete sweeps take longer than the samples of a normal run, and so does everything on a slowed machine.
LIMIT_FACTOR = 20 if os.environ.get("UMQTT_FULL_SWEEPS") else 5 if os.environ.get("UMQTT_DELAYS") else 1
_REPORTING_S = 20.0
_RUNNER = DEVICE_FILES / "both_runner.py"
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+).*\n', re.MULTILINE)


class DeviceFailure(Exception):
    """A test failed on MicroPython; str() is the report: the traceback with source lines, or how the process ended."""


class DeviceProcess:
    """One MicroPython that holds one imported test file."""

    def __init__(self, test_file: Path, search_path: list[str], heap: str | None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        command = [
            *micropython_command(heap),
            str(_RUNNER),
            test_file.stem,
            *search_path,
        ]
        # A session of its own: Ctrl-C is pytest's to handle, which then closes the process.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"TMPDIR": self._folder.name},
        )

    def run(self, test: str, timeout_s: float) -> tuple[dict[str, str], str]:
        """Run one test; return its outcome (keys outcome, detail) and what it printed. Raises DeviceFailure."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(test.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead: its last output, read below, says how
        return self.read_answer(timeout_s)

    def read_answer(self, timeout_s: float) -> tuple[dict[str, str], str]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        output = b""
        dropped = 0
        while True:
            printed, mark, record = output.partition(_RECORD)
            if mark and record.endswith(b"\n"):
                return json.loads(record), _as_text(printed, dropped)
            if not mark and len(output) > _MOST_OUTPUT:
                dropped += len(output) - _MOST_OUTPUT
                output = output[-_MOST_OUTPUT:]
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                self.close()
                raise DeviceFailure(f"MicroPython hung: no answer within {timeout_s:g} s", _as_text(output, dropped))
            chunk = os.read(descriptor, 65536)
            if not chunk:
                raise DeviceFailure(f"MicroPython {self._end()} in this test", _as_text(output, dropped))
            output += chunk

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(BrokenPipeError):  # a request that a dead process never read
                    pipe.close()
        self._folder.cleanup()

    def _end(self) -> str:
        code = self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _as_text(output: bytes, dropped: int) -> str:
    text = output.decode(errors="backslashreplace").replace("\r\n", "\n")
    return f"[{dropped} bytes of output dropped here]\n{text}" if dropped else text


def with_source_lines(traceback: str) -> str:
    """Add the source line under each frame, as CPython shows it; MicroPython keeps only file and line number."""

    def add(frame: re.Match[str]) -> str:
        if frame["file"] == str(_RUNNER):
            return ""
        source = getline(frame["file"], int(frame["line"])).strip()
        return frame.group() + (f"    {source}\n" if source else "")

    return _FRAME.sub(add, traceback)


class CPythonTest(pytest.Function):
    """A portable test on the interpreter that runs pytest."""

    def runtest(self) -> None:
        # Each test gets its own temporary folder, because portable tests cannot clear one away (see new_path()).
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", folder)
            try:
                super().runtest()
            except Skip as reason:
                pytest.skip(str(reason))


class MicroPythonTest(pytest.Item):
    """The same test inside MicroPython."""

    parent: BothModule  # pyrefly: ignore[bad-override-mutable-attribute] - from_parent() made it so

    def __init__(self, *, function: str, lineno: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._function = function
        self._lineno = lineno
        self.add_marker("micropython")

    def runtest(self) -> None:
        try:
            outcome, printed = self.parent.run_on_device(self._function)
        except MicroPythonMissing as missing:
            pytest.skip(str(missing))
        except DeviceFailure as failure:
            if len(failure.args) > 1:
                self.add_report_section("call", "stdout", failure.args[1])
            raise
        if printed:
            self.add_report_section("call", "stdout", printed)
        if outcome["outcome"] == "skipped":
            pytest.skip(outcome["detail"])
        if outcome["outcome"] == "failed":
            raise DeviceFailure(with_source_lines(outcome["detail"]))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, DeviceFailure):
            return str(excinfo.value.args[0]).rstrip()
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, self._lineno, self.name


class BothModule(pytest.Module):
    """A portable test file."""

    _device: DeviceProcess | None = None

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        for node in super().collect():
            function = node.name
            if not isinstance(node, pytest.Function) or inspect.signature(node.obj).parameters:
                raise self.CollectError(
                    f"{self.path}: {function} is not portable: tests in this folder run on MicroPython too "
                    "and are plain functions without arguments (see umqtt_testkit.portable)"
                )
            lineno = node.obj.__code__.co_firstlineno - 1
            for item in (
                CPythonTest.from_parent(self, name=f"{function}[cpython]", callobj=node.obj),
                MicroPythonTest.from_parent(self, name=f"{function}[micropython]", function=function, lineno=lineno),
            ):
                if hasattr(self.obj, "TIMEOUT_S") and self.config.pluginmanager.hasplugin("timeout"):
                    # Else pytest-timeout's own limit would end the test first, and a longer TIMEOUT_S of the file
                    # would have no effect.
                    item.add_marker(pytest.mark.timeout(self._limit_s + _REPORTING_S))
                yield item

    @property
    def _limit_s(self) -> float:
        return float(getattr(self.obj, "TIMEOUT_S", _DEFAULT_TIMEOUT_S)) * LIMIT_FACTOR

    def run_on_device(self, function: str) -> tuple[dict[str, str], str]:
        timeout_s = self._limit_s
        imported = ""
        if self._device is None or not self._device.alive:
            self._close_device()
            # The same folders as on CPython: the file's own, and those of the ini option `pythonpath`.
            folders = [self.path.parent, *self.config.getini("pythonpath")]
            self._device = DeviceProcess(self.path, device_search_path(*folders), getattr(self.obj, "HEAP", None))
            try:
                outcome, imported = self._device.read_answer(timeout_s)
            except BaseException:
                self._close_device()
                raise
            if outcome["outcome"] != "passed":
                self._close_device()
                return outcome, imported
        try:
            outcome, printed = self._device.run(function, timeout_s)
        except BaseException:  # also pytest-timeout's and Ctrl-C: the process is in the middle of a test
            self._close_device()
            raise
        return outcome, imported + printed

    def _close_device(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None

    def teardown(self) -> None:
        self._close_device()
        super().teardown()
