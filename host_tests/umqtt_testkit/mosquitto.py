"""The real mosquitto as a process: the peer of clients, brokers and bridges under test, and their reference."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from .ports import reserved_port
from .waiting import WAIT_LIMIT_S

_SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"


def find_mosquitto(program: str = "mosquitto") -> str | None:
    """Return the path of one of mosquitto's programs, or None if it is not installed."""
    return shutil.which(program) or shutil.which(program, path=_SYSTEM_FOLDERS)


def require_mosquitto(program: str = "mosquitto") -> str:
    """Return the path of one of mosquitto's programs, or skip the test."""
    path = find_mosquitto(program)
    if path is None:
        pytest.skip(f"{program} is not installed: apt install mosquitto mosquitto-clients")
    return path


class Mosquitto:
    """A mosquitto on a port of 127.0.0.1 that it keeps over stops and restarts.

    lines: lines of its configuration; without "allow_anonymous true" it refuses clients that have no password. As a
    context manager it starts and stops. Skips the test if mosquitto is not installed; raises AssertionError if it
    does not run.
    """

    def __init__(self, folder: Path, *lines: str) -> None:
        self._program = require_mosquitto()
        self.port = reserved_port()
        self._config = folder / f"mosquitto-{self.port}.conf"
        # Started as root, it would become the user mosquitto, who may not read a test's files.
        fixed = ("user root", f"listener {self.port} 127.0.0.1", "log_dest stderr", "set_tcp_nodelay true")
        self._config.write_text("\n".join((*fixed, *lines, "")))
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Mosquitto:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait for its log to say that it listens: something else might answer on the port."""
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._process = process = subprocess.Popen(
            [self._program, "-c", str(self._config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        # It logs a line for every client: if nobody read them, it would block for ever after some hundred.
        self._reader = threading.Thread(target=self._read_log, args=(process,), daemon=True)
        self._reader.start()
        try:
            self.wait_for_log(" running")
        except BaseException:
            self.stop()
            raise

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it with that signal, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.wait(WAIT_LIMIT_S)
        self._reader.join(WAIT_LIMIT_S)
        assert process.stderr is not None
        process.stderr.close()

    def reload(self) -> None:
        """Make it read its files again. Later requests are judged by the new ones."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)
        # It checks for signals when something happens on the network, or after 100 ms.
        with socket.create_connection(("127.0.0.1", self.port), WAIT_LIMIT_S):
            self.wait_for_log("Reloading config")

    def wait_for_log(self, text: str) -> None:
        """Wait for a log line that contains `text`, and discard everything up to it."""
        with self._changed:
            while True:
                for index, line in enumerate(self._lines):
                    if text in line:
                        del self._lines[: index + 1]
                        return
                    assert line != "the end", f"mosquitto ended before {text!r}: {self._lines}"
                assert self._changed.wait(WAIT_LIMIT_S), f"no {text!r} in {self._lines}"

    def log_about(self, text: str) -> list[str]:
        """Return the lines of its log that contain `text`, except those that wait_for_log() discarded."""
        with self._changed:
            return [line for line in self._lines if text in line]

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._note(line.rstrip())
        self._note("the end")

    def _note(self, line: str) -> None:
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()
