"""What the tests of bridges share: mosquitto and our broker as processes, and a broker with bridges in a thread."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
from broker_peer import BrokerThread
from patience import PATIENCE
from umqtt_broker import BrokerConfig
from umqtt_broker.bridge import BridgeStatus
from umqtt_broker.bridge_config import BridgeConfig, parse_topic
from umqtt_testkit.ports import reserved_port

HERE = Path(__file__).parent

needs_mosquitto = pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")


class Mosquitto:
    """A mosquitto with `lines` in its configuration; start() and kill() may be called again, on the same port."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.port = reserved_port()
        self._config = folder / f"mosquitto-{self.port}.conf"
        self._config.write_text(
            "\n".join((f"listener {self.port} 127.0.0.1", "allow_anonymous true", "max_queued_messages 0", *lines, ""))
        )
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Mosquitto":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it listens."""
        self._process = subprocess.Popen(
            ["mosquitto", "-c", str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if " running" in line:
                return
        raise AssertionError("mosquitto does not run")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.communicate(timeout=PATIENCE)


def bridge_config(port: int, *topics: str, name: str = "bridge", **settings: Any) -> BridgeConfig:
    """Return the configuration of a bridge to 127.0.0.1 that connects again at once."""
    settings.setdefault("restart_timeout", (0.02, 0.1))
    settings.setdefault("remote_client_id", name.encode())
    addresses = settings.pop("addresses", (("127.0.0.1", port),))
    return BridgeConfig(name, addresses, tuple(map(parse_topic, topics)), **settings)


class BridgedBroker(BrokerThread):
    """A broker in a thread, and its bridges."""

    def __init__(self, *bridges: BridgeConfig, **settings: Any) -> None:
        super().__init__(BrokerConfig(port=0, bridges=bridges, **settings))

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def status(self, index: int = 0) -> BridgeStatus:
        """Return what a bridge says of itself."""
        return self.call(lambda: self.broker.bridges.status[index])

    def wait_connected(self, connects: int = 1) -> None:
        """Wait until every bridge is connected, for the nth time at least, and its subscriptions are answered."""

        def ready() -> bool:
            return all(status.subscribed and status.connects >= connects for status in self.broker.bridges.status)

        try:
            self.wait_until(ready)
        except AssertionError as error:
            raise AssertionError(f"no bridge is up: {self.call(lambda: self.broker.bridges.status)}") from error


class BridgeProcess:
    """bridge_process.py: a broker with bridges, to be killed."""

    def __init__(self, store: Path, config: Path, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "bridge_process.py"), str(store), str(config), str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), line
        self.port = int(line.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
