"""The real redis-server as a process, on a port of its own, that keeps what it is given in a folder of the test."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType

import pytest

from .ports import reserved_port
from .waiting import WAIT_LIMIT_S, eventually


def find_redis() -> str | None:
    """Return the path of redis-server or valkey-server, None where neither is installed."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def require_redis() -> str:
    """Return the path of redis-server, or skip the test."""
    path = find_redis()
    if path is None:
        pytest.skip("redis-server is not installed: apt install redis-server")
    return path


class RedisServer:
    """A Redis on a port of 127.0.0.1 that stays its own, over ends and starts.

    options: of its command line, instead of those with which it loses nothing: `appendonly="no"`. A context starts and
    stops it. Skips the test where Redis is not installed.
    """

    def __init__(self, folder: Path, **options: str) -> None:
        self._program = require_redis()
        self.port = reserved_port()
        self._folder = folder / f"redis-{self.port}"
        self._folder.mkdir()
        self._options = {"appendonly": "yes", "appendfsync": "always", "save": "", **options}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it has read its file and answers."""
        fixed = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._folder)]
        options = [
            word
            for name, value in self._options.items()
            for word in (f"--{name.replace('_', '-')}", *(value.split() or [""]))
        ]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen([self._program, *fixed, *options], stdout=log, stderr=log)
        try:
            eventually(self._answers, lambda: (self._folder / "log").read_text(errors="replace"))
        except BaseException:
            self.stop()
            raise

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End it, where it runs, with that signal. What it has answered lies on disk."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            process.wait(WAIT_LIMIT_S)

    def pause(self, on: bool) -> None:
        """Stop it without a word, or let it go on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def command(self, *words: str) -> str:
        """Send a command and return the beginning of the answer as it comes."""
        with socket.create_connection(("127.0.0.1", self.port), WAIT_LIMIT_S) as connection:
            parts = [word.encode() for word in words]
            connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
            return connection.recv(65536).decode(errors="replace")

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self._folder / "log").read_text()
        try:
            return not self.command("PING").startswith("-LOADING")
        except OSError:
            return False
