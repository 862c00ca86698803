"""The processes of the chain, and the status that they report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from umqtt_kit.demo.plan import RunFolder
from umqtt_kit.errors import EXIT_LOST, KitError
from umqtt_kit.processes import Child, Children, module_command

_LISTENS_WITHIN_S = 20.0
_COLLECTOR = "demo"


class Network:
    """The network between devices and broker: a proxy that can be cut. url: what the devices connect to."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.url = "mqtt://" + _listening(child)

    def cut(self) -> None:
        """End every link with a reset, and accept no new one."""
        self._tell("refuse on")
        self._tell("cut rst")

    def restore(self) -> None:
        self._tell("refuse off")

    def _tell(self, command: str) -> None:
        answer = self._child.ask(command)
        if not answer.startswith("ok"):
            raise KitError(f"the demo's network: {command}: {answer}", EXIT_LOST)


@dataclass
class Chain:
    """The processes of the chain. The starting methods take the broker's URL as `broker`."""

    children: Children
    folder: RunFolder

    def start_broker(self) -> str:
        """Start the broker; return its URL."""
        store = str(self.folder.store / "broker.db")
        child = self.children.start("broker", module_command("umqtt_broker", "-p", "0", "--store", store))
        return "mqtt://" + _listening(child)

    def start_network(self, broker: str) -> Network:
        upstream = broker.removeprefix("mqtt://")
        command = module_command("umqtt_testkit.proxy", "--listen", "0", "--upstream", upstream)
        return Network(self.children.start("network", command, asked=True))

    def start_collector(self, broker: str) -> Child:
        """Start the collector. It prints `subscribed` after its SUBACK; what is published before reaches no table."""
        arguments = ["--broker", broker, "--spool", str(self.folder.spool), "--name", _COLLECTOR]
        arguments += ["--status", str(self.folder.status / "collector.json")]
        return self.children.start("collector", module_command("spark_ingest.collector", *arguments))

    def start_spark(self) -> Child:
        """Start the Spark pipeline. It prints `ready` when the query runs."""
        arguments = ["--spool", str(self.folder.spool), "--tables", str(self.folder.tables)]
        arguments += ["--checkpoint", str(self.folder.checkpoint)]
        arguments += ["--status", str(self.folder.status / "spark.json")]
        # The scratch files of Spark and its Python are in the run's folder, so they go with it even after a kill.
        folder = str(self.folder.scratch)
        scratch = {"SPARK_LOCAL_DIRS": folder, "TMPDIR": folder}
        return self.children.start("spark", module_command("spark_ingest.pipeline", *arguments), scratch)

    def start_fleet(self, broker: str, devices: int, interval_ms: int) -> Child:
        """Start the simulated devices. They print `connected N devices` when all have a link."""
        arguments = ["fleet", "--devices", str(devices), "--interval-ms", str(interval_ms), "--broker", broker]
        arguments += ["--ground-truth", str(self.folder.ground_truth)]
        arguments += ["--status", str(self.folder.status / "fleet.json")]
        return self.children.start("fleet", module_command("umqtt_kit", *arguments, "--drain-seconds", "60"))


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
