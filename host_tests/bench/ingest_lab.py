"""Where the ingestion's bench runs: brokers, collectors, a pipeline and the peers, each as its own process."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

_HERE = Path(__file__).resolve().parent
_PATIENCE_S = 120.0
_POLL_S = 0.005
_BLOCK = struct.Struct("<4sIIIQ")


class LabError(Exception):
    """The bench cannot continue; str() is one line that says what to do."""


class Process:
    """A child process; its standard output goes to a file that can be waited on, its standard error to another."""

    def __init__(self, name: str, command: Sequence[object], folder: Path) -> None:
        self.name = name
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._child = subprocess.Popen(
                [str(each) for each in command], stdout=out, stderr=err, cwd=folder, start_new_session=True
            )
        self.pid = self._child.pid

    def line(self, start: str) -> str:
        """Wait for a line of its output that begins with `start`."""
        found: list[str] = []

        def is_told() -> bool:
            nonlocal found
            found = [line for line in self._out.read_text().splitlines(True) if line.startswith(start)]
            if not found and self._child.poll() is not None:
                told = self._err.read_text().strip().splitlines() or ["nothing"]
                raise LabError(f"{self.name} ended with {self._child.returncode} and said: {told[-1]}")
            return bool(found) and found[0].endswith("\n")

        wait_for(is_told, f"{self.name} says {start!r}")
        return found[0].strip()

    def stop(self) -> None:
        """Terminate it, and kill it if that takes too long."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


def wait_for(condition: Callable[[], bool], what: str, patience_s: float = _PATIENCE_S) -> None:
    """Poll until a condition on another process's files holds. Raises LabError if that takes too long."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"not within {patience_s:g} s: {what}")
        time.sleep(_POLL_S)


class Lab:
    """The processes and folders of one bench run.

    peers: a folder whose DIR/venv has paho, or None for this environment's.
    """

    def __init__(self, peers: Path | None = None) -> None:
        self._stack = ExitStack()
        with self._stack:
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="umqtt-bench-")))
            self.peer_python = sys.executable
            if peers is not None:
                self.peer_python = str(peers / "venv" / "bin" / "python")
            self._stack = self._stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def new_folder(self, name: str) -> Path:
        """Return a new empty folder, removed with the lab."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))

    def start(self, name: str, command: Sequence[object]) -> Process:
        """Start a process that ends with the lab."""
        process = Process(name, command, self.new_folder(name))
        self._stack.callback(process.stop)
        return process

    def has(self, module: str) -> bool:
        """Return whether the peers' environment has a module."""
        command = [self.peer_python, "-c", f"import {module}"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def missing(self) -> str | None:
        """Return why the peers on paho cannot run, or None."""
        has_paho = self.has("paho.mqtt.client")
        return None if has_paho else f"{self.peer_python} has no paho: pip install 'paho-mqtt>=2' pyarrow mq-bridge"

    def broker(self) -> int:
        """Start a paired broker with unlimited queues in memory and the widest window; return its port."""
        conf = self.new_folder("conf") / "broker.conf"
        conf.write_text(
            "listener 0 127.0.0.1\nallow_anonymous true\npersistence false\nmax_inflight_messages 0\n"
            "max_queued_messages 0\nlog_dest none\n"
        )
        broker = self.start("broker", [sys.executable, "-m", "umqtt_broker", "-c", conf])
        return int(broker.line("listening on ").rpartition(":")[2])

    def collector(self, port: int, spool: Path, *more: object) -> Process:
        """Start a collector and wait until its session is subscribed."""
        command = [sys.executable, "-m", "spark_ingest.collector", "--broker", f"mqtt://127.0.0.1:{port}"]
        process = self.start("collector", [*command, "--spool", spool, "--name", "bench", *more])
        process.line("subscribed bench")
        return process

    def pipeline(self, spool: Path, tables: Path, checkpoint: Path) -> Process:
        """Start the pipeline with its defaults and wait until it is ready."""
        command = [sys.executable, "-m", "spark_ingest.pipeline", "--spool", spool, "--tables", tables]
        process = self.start("pipeline", [*command, "--checkpoint", checkpoint])
        process.line("ready")
        return process

    def peer(self, program: str, *arguments: object) -> Process:
        """Start a peer of ingest_peers/ and wait until it is subscribed."""
        process = self.start(program, [self.peer_python, _HERE / "ingest_peers" / f"{program}.py", *arguments])
        process.line("subscribed")
        return process


class Blocks:
    """The content of a spool's segments: `messages`, `wire` (bytes of their packets), `size` (of the segments).

    first: when the first block's group was received (Unix seconds), and the number of its messages.
    """

    def __init__(self, segments: Iterable[Path]) -> None:
        self.messages = self.wire = self.size = 0
        self.first: tuple[float, int] = (0.0, 0)
        for path in sorted(segments):
            data, at = path.read_bytes(), 0
            self.size += len(data)
            while at + _BLOCK.size <= len(data):
                _, length, count, _, received_ms = _BLOCK.unpack_from(data, at)
                if not self.messages:
                    self.first = received_ms / 1000, count
                self.messages, self.wire = self.messages + count, self.wire + length
                at += _BLOCK.size + length


def segments(folder: Path) -> set[Path]:
    """Return the segments of one spool."""
    return set(folder.glob("*.seg"))


class Commits:
    """The rows that each commit of a Delta table added, read from its log alone, which costs next to nothing."""

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self._version = -1
        self.rows = 0
        # (when the commit became visible, Unix seconds; the files it added)
        self.commits: list[tuple[float, list[str]]] = []

    def look(self) -> int:
        """Read the new commits; return the number of all rows so far."""
        while True:
            path = self._log / f"{self._version + 1:020d}.json"
            try:
                lines = path.read_text().splitlines()
                seen = path.stat().st_mtime_ns / 1e9
            except FileNotFoundError:
                return self.rows
            added = [json.loads(line)["add"] for line in lines if line.startswith('{"add"')]
            self.rows += sum(json.loads(each["stats"])["numRecords"] for each in added)
            self.commits.append((seen, [each["path"] for each in added]))
            self._version += 1


def halt(processes: Sequence[Process], *, on: bool) -> None:
    """Stop processes and all their descendants, so that a peer has the machine to itself, or let them continue."""
    for process in processes:
        for each in (process.pid, *_descendants(process.pid)):
            os.kill(each, signal.SIGSTOP if on else signal.SIGCONT)


def _descendants(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [each for child in map(int, found) for each in (child, *_descendants(child))]
