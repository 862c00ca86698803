"""The processes of the chain, and the status that they report."""

from __future__ import annotations

import json
from pathlib import Path

from umqtt_cli.errors import EXIT_LOST, KitError
from umqtt_kit.demo.plan import RunFolder
from umqtt_kit.processes import Child, Children, module_command

_LISTENS_WITHIN_S = 20.0
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

    broker, collector, spark, fleet: the newest process of each part, None before its first start.
    """

    def __init__(self, children: Children, folder: RunFolder) -> None:
        self.children = children
        self.folder = folder
        self.broker: Child | None = None
        self.collector: Child | None = None
        self.spark: Child | None = None
        self.fleet: Child | None = None
        self.url = ""
        self._port = "0"

    def start_broker(self) -> Child:
        """Start the broker. url says where it listens."""
        store = str(self.folder.store / "broker.db")
        self.broker = self.children.start("broker", module_command("umqtt_broker", "-p", self._port, "--store", store))
        self.url = "mqtt://" + _listening(self.broker)
        self._port = self.url.rpartition(":")[2]
        return self.broker

    def start_network(self, seed: int = 0) -> Network:
        """Start the network in front of the broker. seed: of its random splits."""
        upstream = self.url.removeprefix("mqtt://")
        command = module_command("umqtt_testkit.proxy", "--upstream", upstream, "--seed", str(seed))
        return Network(self.children.start("network", command, asked=True))

    def start_collector(self) -> Child:
        """Start the collector. It prints `subscribed` after its SUBACK; what is published before reaches no table."""
        arguments = ["--broker", self.url, "--spool", str(self.folder.spool), "--name", _COLLECTOR]
        arguments += ["--status", str(self.folder.status / "collector.json")]
        self.collector = self.children.start("collector", module_command("spark_ingest.collector", *arguments))
        return self.collector

    def start_spark(self) -> Child:
        """Start the Spark pipeline. It prints `ready` when the query runs."""
        arguments = ["--spool", str(self.folder.spool), "--tables", str(self.folder.tables)]
        arguments += ["--checkpoint", str(self.folder.checkpoint)]
        arguments += ["--status", str(self.folder.status / "spark.json")]
        # The scratch files of Spark and its Python are in the run's folder, so they go with it even after a kill.
        folder = str(self.folder.scratch)
        scratch = {"SPARK_LOCAL_DIRS": folder, "TMPDIR": folder}
        self.spark = self.children.start("spark", module_command("spark_ingest.pipeline", *arguments), scratch)
        return self.spark

    def start_fleet(self, broker: str, devices: int, interval_ms: int) -> Child:
        """Start the simulated devices. They print `connected N devices` when all have a link."""
        arguments = ["--devices", str(devices), "--interval-ms", str(interval_ms), "--broker", broker]
        arguments += ["--ground-truth", str(self.folder.ground_truth)]
        arguments += ["--status", str(self.folder.status / "fleet.json")]
        self.fleet = self.children.start("fleet", module_command("umqtt_kit.fleet", *arguments))
        return self.fleet


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
