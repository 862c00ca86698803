"""Shared by the tests of bridges: mosquitto and our broker as processes, and a broker with bridges in a thread."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from broker_peer import BrokerThread, Packet, Peer
from umqtt_broker import BrokerConfig, Listener
from umqtt_broker.bridge.state import BridgeStatus
from umqtt_broker.conf.bridge import bridge_of, parse_topic
from umqtt_broker.conf.lines import Line, Problems
from umqtt_broker.settings.bridge import BridgeConfig
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNECT, PINGREQ, PUBREL, UNSUBACK, UNSUBSCRIBE
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.waiting import WAIT_LIMIT_S

HERE = Path(__file__).parent


def far_mosquitto(folder: Path) -> Mosquitto:
    """Return a mosquitto for the other end of a bridge. Skips the test if mosquitto is not installed."""
    return Mosquitto(folder, "allow_anonymous true", "max_queued_messages 0")


def far_broker(**settings: Any) -> BrokerThread:
    """Return a broker for the other end of a bridge, which accepts clients as bridges."""
    listener = Listener(port=settings.pop("port", 0), bridge_users=(b"*",))
    return BrokerThread(BrokerConfig(listeners=(listener,), **settings))


def read_bridge(section: str, file: str) -> BridgeConfig:
    """Read a `connection` section from the lines of `file`. Raises ConfigError with every problem in it."""
    lines: list[Line] = []
    for number, line in enumerate(section.strip().splitlines(), 1):
        key, _, value = line.partition(" ")
        lines.append(Line(file, number, key, value))
    problems = Problems()
    config = bridge_of(lines, problems)
    problems.raise_errors()
    assert config is not None  # it is None only together with an error
    return config


def bridge_config(port: int, *topics: str, name: str = "bridge", **settings: Any) -> BridgeConfig:
    """Return the configuration of a bridge to 127.0.0.1 that reconnects at once."""
    settings.setdefault("restart_timeout", (0.02, 0.1))
    settings.setdefault("remote_client_id", name.encode())
    addresses = settings.pop("addresses", (("127.0.0.1", port),))
    return BridgeConfig(name, addresses, tuple(map(parse_topic, topics)), **settings)


class RemoteScript:
    """The other end of a bridge, one link at a time, as the test decides. It listens at `port`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_LIMIT_S)
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def accept(self, *, session_present: bool) -> Peer:
        """Accept the next link of the bridge, and its CONNECT."""
        peer = Peer(connected=self._listener.accept()[0])
        peer.expect(CONNECT)
        peer.send(encoder.connack(session_present))
        return peer


def next_publish(peer: Peer) -> Packet:
    """Return the bridge's next PUBLISH above QoS 0 or PUBREL; its other requests are answered meanwhile."""
    while (packet := peer.receive()).kind != PUBREL and not packet.qos:
        if packet.kind == PINGREQ:
            peer.send(encoder.pingresp())
        elif packet.kind == UNSUBSCRIBE:
            peer.send(encoder.acknowledgement(UNSUBACK, packet.packet_id))
    return packet


class BridgedBroker(BrokerThread):
    """A broker in a thread, and its bridges."""

    def __init__(self, *bridges: BridgeConfig, **settings: Any) -> None:
        super().__init__(BrokerConfig(port=0, bridges=bridges, **settings))

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def status(self, index: int = 0) -> BridgeStatus:
        """Return the status that a bridge reports."""
        return self.call(lambda: self.broker.bridges.status[index])

    def wait_connected(self, connects: int = 1) -> None:
        """Wait until every bridge has connected at least `connects` times and its subscriptions are acknowledged."""

        def ready() -> bool:
            return all(status.subscribed and status.connects >= connects for status in self.broker.bridges.status)

        try:
            self.wait_until(ready)
        except AssertionError as error:
            raise AssertionError(f"no bridge is up: {self.call(lambda: self.broker.bridges.status)}") from error


class BridgeProcess:
    """A process of bridge_process.py: a broker with bridges that can be killed."""

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
        """Send SIGKILL."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(WAIT_LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
