"""Where the client's bench runs: mosquitto with set_tcp_nodelay, the source, a slow link, programs of device/."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from client_plan import PAYLOAD_BYTES, ROUND_TRIP_MS, WINDOW, Contender, Scenario
from client_source import Source
from umqtt_kit.bundle import Bundle, library_folder
from umqtt_testkit.interpreter import device_search_path, micropython_command
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import WAIT_LIMIT_S

_DEVICE = Path(__file__).resolve().parent / "device"
_STUBS = _DEVICE / "stubs"
_SAYS_WHY_WITHIN_S = 1.0
_PINGS = 21
# About what a Pico W leaves to a program. In a heap of megabytes, which no chip has without PSRAM, MicroPython's search
# for a free place takes longer than umqtt.simple does for a whole message, and every comparison flatters us.
_HEAP = "192K"
# Messages that the receive rows discard before they count: those that the kernel had buffered meanwhile.
_NOT_COUNTED = 10_000


class LabError(Exception):
    """The bench cannot continue; str() is one line that says what to do."""


class Program:
    """A running program of device/; each line that it prints is a JSON object."""

    def __init__(self, process: subprocess.Popen[str], what: str) -> None:
        self._process = process
        self._what = what

    def next(self, within_s: float = WAIT_LIMIT_S) -> dict[str, Any]:
        """Return its next line. If it ends instead or stays silent, kill it and raise LabError."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(within_s, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        if not line.startswith("{"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SAYS_WHY_WITHIN_S)
            self._process.kill()
            rest = self._process.stdout.read()  # through the same reader, which has read ahead
            _, errors = self._process.communicate()
            told = (line + rest + errors).strip().splitlines() or [f"nothing within {within_s:g} s"]
            raise LabError(f"{self._what} ended without a result and said: {told[-1]}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class Lab:
    """The broker, the links and the programs of one bench run.

    peers: the folder where the user installed umqtt and mqtt_as, or None. Raises LabError if something is missing.
    """

    def __init__(self, peers: Path | None) -> None:
        self._stack = ExitStack()
        self._peers = peers
        with self._stack:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="umqtt-bench-")))
            self.broker_port = self._start_mosquitto()
            self.source_port = self._stack.enter_context(Source()).port
            self._slow: FaultProxy | None = None
            # The form of the library that boards run.
            self._library = self._folder / "library"
            Bundle(library_folder()).compile(self._library)
            self._stack = self._stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has(self, contender: Contender) -> bool:
        """Return whether everything the contender needs is installed."""
        return contender.peer is None or (self._peers is not None and (self._peers / contender.peer).is_file())

    def peer_file(self, name: str) -> Path | None:
        """Return a file of --peers, or None."""
        file = self._peers / name if self._peers else None
        return file if file and file.is_file() else None

    @property
    def slow_port(self) -> int:
        """Return the port of a link to mosquitto with a round trip of ROUND_TRIP_MS."""
        if self._slow is None:
            self._slow = self._stack.enter_context(FaultProxy(("127.0.0.1", self.broker_port)))
            self._slow.delay(ROUND_TRIP_MS)
        return self._slow.port

    def rate(self, scenario: Scenario, contender: Contender, seconds: float) -> float:
        """Return the messages per second of one run."""
        port = self.slow_port if scenario.slow else self.broker_port
        if scenario.kind == "receive":
            port = self.source_port
        program = self.start(contender, scenario.kind, port=port, qos=scenario.qos, seconds=seconds, first=_NOT_COUNTED)
        with program:
            return program.next()["rate"]

    def start(self, contender: Contender, action: str, **parameters: object) -> Program:
        """Start a program; parameters become its `given`."""
        given = {"window": WINDOW, "size": PAYLOAD_BYTES, **dict(contender.options), **parameters}
        command = [sys.executable]
        search: list[Path] = []
        if contender.micropython:
            command = micropython_command(heap=_HEAP)
            peers = [self._peers] if self._peers else []
            search = [self._library, *peers, *map(Path, device_search_path(_DEVICE, _STUBS))]
        command += [str(_DEVICE / contender.program), json.dumps(given), action]
        return self._start(command, f"{contender.name}: {action}", search, self._folder)

    def start_compiled(self, module: str, *arguments: str, heap: int, search: Path) -> Program:
        """Start a module of the folder `search` in a MicroPython with `heap` bytes of heap."""
        command = [*micropython_command(heap=str(heap)), "-m", module, *arguments]
        # MicroPython looks in the working folder first, and a checkout contains the library's sources.
        return self._start(command, module, [search], search)

    @staticmethod
    def _start(command: list[str], what: str, search: list[Path], working_folder: Path) -> Program:
        path = ":".join([*map(str, search), ".frozen"])
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "MICROPYPATH": path},
            cwd=working_folder,
        )
        return Program(process, what)

    def round_trip_s(self) -> float:
        """Return the median time from PINGREQ to PINGRESP on the idle slow link: the physical bound of its rows."""
        times = []
        with socket.create_connection(("127.0.0.1", self.slow_port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(b"\x10\x12\x00\x04MQTT\x04\x02\x00\x3c\x00\x06bench-")
            connection.recv(4)
            for _ in range(_PINGS):
                begin = time.perf_counter()
                connection.sendall(b"\xc0\x00")
                connection.recv(2)
                times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def _start_mosquitto(self) -> int:
        command = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
        if command is None:
            raise LabError(
                "the bench needs the broker mosquitto - try: apt install mosquitto, or brew install mosquitto"
            )
        port = reserved_port()
        config = self._folder / "mosquitto.conf"
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\npersistence false\n"
            "max_queued_messages 0\nmax_inflight_messages 0\nlog_dest none\n"
        )
        process = subprocess.Popen([command, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        deadline = time.monotonic() + WAIT_LIMIT_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return port
            except OSError:
                time.sleep(0.01)  # mosquitto does not signal that it listens
        raise LabError(f"mosquitto does not listen on 127.0.0.1:{port} - try: {command} -c {config}")
