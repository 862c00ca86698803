"""Programs that run on either interpreter, and how the tests start them."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from umqtt_testkit.interpreter import device_search_path, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

FOLDER = Path(__file__).resolve().parent


def command_of(interpreter: str) -> list[str]:
    """Return the command line for "cpython" or "micropython". Raises MicroPythonMissing."""
    return [sys.executable, "-u"] if interpreter == "cpython" else micropython_command("1M")


class Program:
    """A process of a program that prints one JSON object per line. peers: folders before those of the library."""

    def __init__(self, command: list[str], name: str, config: dict[str, Any], peers: str = "") -> None:
        path = peers + ":".join(device_search_path())
        self._process = subprocess.Popen(
            [*command, str(FOLDER / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PYTHONPATH": path, "MICROPYPATH": f"{path}:.frozen", "PATH": "/usr/bin:/bin"},
            text=True,
        )
        # Not an argument: MicroPython makes a qstr of each before it can catch anything, and dies ("uncaught NLR")
        # of one longer than 255 bytes (set_sys_argv() in ports/unix/main.c).
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(json.dumps({"limit_s": WAIT_LIMIT_S, **config}) + "\n")
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.printed: list[str] = []

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def line(self) -> str | None:
        """Return the next line that it prints; None if it has ended. Fails if it prints nothing for too long."""
        try:
            line = self._lines.get(timeout=WAIT_LIMIT_S)
        except queue.Empty:
            raise AssertionError(f"nothing printed for {WAIT_LIMIT_S:g} s, after {self.printed[-3:]}") from None
        if line is not None:
            self.printed.append(line)
        return line

    def next(self) -> dict[str, Any]:
        """Return the next object that it prints. Fails if it prints something else or ends."""
        line = self.line()
        if line is not None:
            try:
                return json.loads(line)
            except ValueError:
                pass
        self._process.wait(WAIT_LIMIT_S)
        while (line := self._lines.get(timeout=WAIT_LIMIT_S)) is not None:
            self.printed.append(line)
        raise AssertionError("the program failed:\n" + "".join(self.printed))

    def until(self, event: str) -> dict[str, Any]:
        """Read up to this event and return it."""
        while True:
            got = self.next()
            if got["event"] == event:
                return got
            assert got["event"] not in ("done", "stopped"), self.printed

    def finish(self) -> list[dict[str, Any]]:
        """Return all events until it ends."""
        events = [self.next()]
        while events[-1]["event"] not in ("done", "stopped"):
            events.append(self.next())
        assert self._process.wait(WAIT_LIMIT_S) == 0, self.printed
        return events

    def cpu_s(self) -> float:
        """Return the CPU time that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def kill_and_read(self) -> list[str]:
        """Kill it; return the lines that were printed but not read, without one that the kill truncated."""
        self._process.kill()
        self._process.wait()
        lines: list[str] = []
        while (line := self.line()) is not None:
            lines.append(line)
        self.kill()
        return [line for line in lines if line.endswith("\n")]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
