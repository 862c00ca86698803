"""The processes of the chain, and the status that they report."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from umqtt_testkit.machine import Machine
from umqtt_testkit.ports import reserved_port

from umqtt_cli.errors import EXIT_LOST, KitError
from umqtt_kit.demo.plan import RunFolder
from umqtt_kit.processes import Child, Children, module_command
from umqtt_kit.prove.brokers import BROKERS, Broker, Command

_LISTENS_WITHIN_S = 20.0
# RabbitMQ takes this long where the machine is busy.
_OTHERS_LISTEN_WITHIN_S = 120.0
_LOOK_AGAIN_S = 0.05
_COLLECTOR = "demo"


class Network:
    """The network between devices and broker: a proxy with faults. url: what the devices connect to."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.url = "mqtt://" + _listening(child)

    def tell(self, command: str) -> str:
        """Give the proxy a command (see umqtt_testkit.proxy); return what follows `ok`. Raises KitError."""
        answer = self._child.ask(command)
        if not answer.startswith("ok"):
            raise KitError(f"the network between devices and broker: {command}: {answer}", EXIT_LOST)
        return answer.removeprefix("ok").strip()


class Chain:
    """The processes of the chain. Each can be started again, with the same port and folders, after it has ended.

    machines: below a part, by its name. broker, collector, spark, fleet: the newest process of each part, None before
    its first start; helpers: programs that the broker needs, by name. url: of the broker.
    """

    def __init__(
        self,
        children: Children,
        folder: RunFolder,
        broker: Broker = BROKERS["paired"],
        machines: Mapping[str, Machine] | None = None,
    ) -> None:
        self.children = children
        self.folder = folder
        self.kind = broker
        self.machines = machines or {}
        self.broker: Child | None = None
        self.helpers: dict[str, Child] = {}
        self.collector: Child | None = None
        self.spark: Child | None = None
        self.fleet: Child | None = None
        self._port = reserved_port()
        self.url = f"mqtt://127.0.0.1:{self._port}"
        # Where devices and collector connect: a cloud's rules stand before its broker.
        self._front = self.url
        self._helpers = broker.helpers(folder.store)

    def start_broker(self) -> Child:
        """Start the broker, and what it needs; the first time, wait until it listens."""
        for name, (command, port) in self._helpers.items():
            if name not in self.helpers or self.helpers[name].returncode is not None:
                self.helpers[name] = self._start(name, command, "broker")
                _await_port(self.helpers[name], port)
        is_first = self.broker is None
        self.broker = self._start("broker", self.kind.command(self.folder.store, str(self._port)), "broker")
        if is_first and self.kind.says:
            self.broker.wait_for_line(self.kind.says, _LISTENS_WITHIN_S)
        elif is_first:
            _await_port(self.broker, self._port)
        return self.broker

    def start_cloud(self) -> None:
        """Put the rules of the cloud before the broker, if it is to be one."""
        if self.kind.cloud:
            upstream = ("--upstream", str(self._port))
            command = module_command("umqtt_testkit.cloud_broker", self.kind.cloud, *upstream)
            self._front = "mqtt://" + _listening(self.children.start("cloud", command))

    def start_network(self, seed: int = 0) -> Network:
        """Start the network in front of the broker. seed: of its random splits."""
        upstream = self._front.removeprefix("mqtt://")
        command = module_command("umqtt_testkit.proxy", "--upstream", upstream, "--seed", str(seed))
        return Network(self.children.start("network", command, asked=True))

    def start_collector(self) -> Child:
        """Start the collector. It prints `subscribed` after its SUBACK; what is published before reaches no table."""
        arguments = ["--broker", self._front, "--spool", str(self.folder.spool), "--name", _COLLECTOR]
        arguments += ["--status", str(self.folder.status / "collector.json")]
        self.collector = self._start("collector", (module_command("spark_ingest.collector", *arguments), {}))
        return self.collector

    def start_spark(self) -> Child:
        """Start the Spark pipeline. It prints `ready` when the query runs."""
        arguments = ["--spool", str(self.folder.spool), "--tables", str(self.folder.tables)]
        arguments += ["--checkpoint", str(self.folder.checkpoint)]
        arguments += ["--status", str(self.folder.status / "spark.json")]
        # The scratch files of Spark and its Python are in the run's folder, so they go with it even after a kill.
        folder = str(self.folder.scratch)
        scratch = {"SPARK_LOCAL_DIRS": folder, "TMPDIR": folder}
        self.spark = self._start("spark", (module_command("spark_ingest.pipeline", *arguments), scratch))
        return self.spark

    def start_console(self) -> str:
        """Start the console on what the chain writes; return its address."""
        arguments = ["console", "--tables", str(self.folder.tables), "--spool", str(self.folder.spool)]
        arguments += ["--broker", self.url, "--listen", "127.0.0.1:0"]
        arguments += ["--audit", str(self.folder.logs / "console-audit.jsonl")]
        return _listening(self.children.start("console", module_command("umqtt_cli", *arguments)))

    def start_fleet(self, broker: str, devices: int, interval_ms: int) -> Child:
        """Start the simulated devices. They print `connected N devices` when all have a link."""
        arguments = ["--devices", str(devices), "--interval-ms", str(interval_ms), "--broker", broker]
        arguments += ["--ground-truth", str(self.folder.ground_truth)]
        arguments += ["--status", str(self.folder.status / "fleet.json")]
        self.fleet = self.children.start("fleet", module_command("umqtt_kit.fleet", *arguments))
        return self.fleet

    def _start(self, name: str, command: Command, machine: str | None = None) -> Child:
        below = self.machines.get(machine or name)
        return self.children.start(name, command[0], {**command[1], **(below.environment if below else {})})


def _await_port(child: Child, port: int) -> None:
    deadline = time.monotonic() + _OTHERS_LISTEN_WITHIN_S
    while child.returncode is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(_LOOK_AGAIN_S)
    if child.returncode is not None:
        raise child.death()
    raise KitError(f"{child.name} does not listen after {_OTHERS_LISTEN_WITHIN_S:g} s — see {child.log}", EXIT_LOST)


def read_status(path: Path) -> dict[str, object]:
    """Return the object of a status file, empty if there is none.

    The parts replace their files whole, so none is read in part.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}


def _listening(child: Child) -> str:
    return child.wait_for_line("listening on ", _LISTENS_WITHIN_S).removeprefix("listening on ")
