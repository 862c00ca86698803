"""Devices and an operator that use a cluster, with this project's client, in one thread, over TLS."""

from __future__ import annotations

import json
import random
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

from engines import PASSWORDS, Cluster, patiently
from umqtt_testkit.waiting import WAIT_LIMIT_S
from virtual_boards import Boards

from umqtt_robust import Client
from umqtt_robust.tls import TLS

_READINGS_A_SECOND = 20
_COMMANDS_A_SECOND = 4
_TO_A_DEVICE = 8  # for each command to a board, which takes 60 at once: those of eight minutes
_TS = 1_795_000_000_000

Identity = tuple[str, str, int]


class Party:
    """A client that reconnects quickly, and the errors and acknowledgements that it got."""

    def __init__(self, name: str, user: str, cluster: Cluster, rng: random.Random, servers: Any) -> None:
        self.name = name
        self.errors: list[object] = []
        self.sent: dict[int, int] = {}  # packet id: number of the message
        self.acknowledged: set[int] = set()
        self.made = 0
        self.client = Client(
            name,
            servers,
            keep_alive=10,
            clean_session=False,
            username=user,
            password=PASSWORDS[user],
            transports={"mqtts": TLS(str(cluster.ca))},
            ack_timeout=10_000,
            connect_timeout=5_000,
            random=lambda n: rng.randrange(min(n, 1000)),
            on_acknowledged=lambda packet_id: self.acknowledged.add(self.sent.pop(packet_id)),
            on_error=self.errors.append,
            on_disconnect=self.errors.append,
        )

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish the next message at QoS 1."""
        self.publish_as(self.made, topic, payload)
        self.made += 1

    def publish_as(self, number: int, topic: str, payload: bytes) -> None:
        """Publish at QoS 1 a message that counts as `number`."""
        packet_id = self.client.publish(topic, payload, qos=1)
        assert packet_id is not None
        self.sent[packet_id] = number


class Fleet:
    """`count` devices that publish readings, and an operator that sends commands to them and to boards.

    commands: the ids of the commands that a device received or a board answered. A context runs it, within that of
    `boards`.
    """

    def __init__(self, cluster: Cluster, count: int, seed: int, boards: Boards) -> None:
        rng = random.Random(seed)
        self.boot = f"1-{rng.randrange(1 << 64):016x}"
        self.devices = [
            Party(f"pump-{number}", "devices", cluster, rng, cluster.device_servers(number)) for number in range(count)
        ]
        self._operators = [Party("operator", "operator", cluster, rng, url) for url in cluster.operator_urls]
        self.commands: set[int] = set()
        self._boards = boards
        self._commanded = [*_TO_A_DEVICE * [device.name for device in self.devices], *boards.names]
        for device in self.devices:
            device.client.on(f"fleet/{device.name}/cmd", self._on_command)
            device.client.subscribe(f"fleet/{device.name}/cmd", qos=2)
        for operator in self._operators:
            operator.client.on("fleet/+/reply", self._on_command)
            operator.client.subscribe("fleet/+/reply", qos=1)
        self._parties = [*self.devices, *self._operators]
        self._makes = False
        self._greets = False
        self._greetings = [-1 - number for number in range(len(boards.names))]  # ids of the first commands to boards
        self._pauses = False
        self._ends = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fleet")

    def __enter__(self) -> Self:
        self._thread.start()
        patiently(lambda: self._alive and all(p.client.connected for p in self._parties), self.told)
        patiently(lambda: self._alive and all(p.client.subscribed for p in self._parties), self.told)
        # A command that an engine takes before a board has subscribed is nobody's.
        self._greets = True
        patiently(lambda: self._alive and set(self._greetings) <= self.commands, self.told)
        self._greets = False
        self._makes = True
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join(WAIT_LIMIT_S)

    @property
    def client_ids(self) -> list[str]:
        """The client ids of all that have a session."""
        return [*(party.name for party in self._parties), *self._boards.names]

    @property
    def _alive(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return True

    @property
    def acknowledged(self) -> set[Identity]:
        """The identities of the readings that the engine acknowledged."""
        return {(d.name, self.boot, number) for d in self.devices for number in list(d.acknowledged)}

    @property
    def acknowledged_commands(self) -> set[int]:
        """The numbers of the commands acknowledged at every broker to which they were published."""
        return set.intersection(*(set(operator.acknowledged) for operator in self._operators))

    def told(self) -> str:
        """Return the state and last errors of the clients, for a message."""
        parties = (f"{p.name}: {p.client.connected} {p.made} {p.errors[-3:]}" for p in self._parties)
        return "; ".join((*parties, self._boards.told()))

    def go_on(self, more: int, enough: Callable[[Iterable[bool]], bool] = all) -> None:
        """Wait until each device (with enough=any: one of them) has `more` readings acknowledged than now."""
        wanted = [(device, len(device.acknowledged) + more) for device in self.devices]
        patiently(lambda: self._alive and enough(len(d.acknowledged) >= n for d, n in wanted), self.told)

    def finish(self) -> None:
        """Stop making messages, and wait until all of them are acknowledged, also those of the boards."""
        self._makes = False
        self._pauses = True
        patiently(lambda: self._alive and not self._pauses, self.told)
        paused = self._operators[0].made
        wanted = set(range(paused - len(self._boards.names), paused))
        patiently(lambda: self._alive and not any(p.client.pending for p in self._parties), self.told)
        patiently(lambda: self._alive and wanted <= self.commands, self.told)

    def _run(self) -> None:
        try:
            last = greeted = time.monotonic()
            readings = commands = 0.0
            while not self._ends:
                now = time.monotonic()
                elapsed, last = now - last, now
                if self._makes:
                    readings += elapsed * _READINGS_A_SECOND
                    commands += elapsed * _COMMANDS_A_SECOND
                for device in self.devices:
                    while self._makes and device.client.pending < 8 and device.made < readings:
                        self._publish_reading(device)
                for operator in self._operators:
                    while self._makes and operator.client.pending < 8 and operator.made < commands:
                        self._command(operator, self._commanded[operator.made % len(self._commanded)], "ping")
                if self._greets and now - greeted > 1:
                    greeted = now
                    self._greet_boards()
                if self._pauses:
                    self._pause_boards()
                for party in self._parties:
                    party.client.tick()
                sockets = [p.client.socket for p in self._parties if p.client.socket is not None]
                select.select(sockets, [], [], 0.02)
            for party in self._parties:
                party.client.disconnect()
                party.client.tick()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._failure = error

    def _command(self, operator: Party, name: str, command: str) -> None:
        operator.publish(f"fleet/{name}/cmd", _payload(operator.made, command))

    def _on_command(self, _topic: bytes, payload: bytes) -> None:
        # A device takes the command itself, the operator the reply of a board. Both have its id.
        self.commands.add(int(json.loads(payload)["id"]))

    def _greet_boards(self) -> None:
        """Send the first command to each board that has not answered it yet; a repeated one is answered again."""
        for operator in self._operators:
            for number, name in zip(self._greetings, self._boards.names, strict=True):
                if number not in self.commands and operator.client.pending < 8:
                    operator.publish_as(number, f"fleet/{name}/cmd", _payload(number, "ping"))

    def _pause_boards(self) -> None:
        """Send the last commands: each board answers once all its readings are acknowledged."""
        number = max(operator.made for operator in self._operators)
        for operator in self._operators:
            operator.made = number
            for name in self._boards.names:
                self._command(operator, name, "pause")
        self._pauses = False

    def _publish_reading(self, device: Party) -> None:
        record = {"v": 1, "id": device.name, "boot": self.boot, "seq": device.made, "ts": _TS + device.made,
                  "up": 1000 + device.made, "m": {"t": 21.5}}  # fmt: skip
        device.publish(f"fleet/{device.name}/telemetry", json.dumps(record).encode())


def _payload(number: int, command: str) -> bytes:
    return json.dumps({"id": str(number), "cmd": command}).encode()
