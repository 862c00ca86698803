"""One world: a server, devices and a network, made by a seed, in which everything fails and then works again."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from simulated_parts import Device, Mistakes, Server
from umqtt_testkit import encoder
from umqtt_testkit.simulation.clock import SECOND, Clock, Process
from umqtt_testkit.simulation.disk import Disk, mounted, path
from umqtt_testkit.simulation.model import Model, Party
from umqtt_testkit.simulation.network import Link, Network

from umqtt_robust import Client
from umqtt_robust.flash import FlashStore

_DRAIN_S = 400  # virtual s in which everything must have arrived after the last fault
# Files in memory: nothing is on a disk that could be slow.
_RAM = "/dev/shm" if os.path.isdir("/dev/shm") else None
_SILENCE_S = 5  # and in which nothing may come twice then


@dataclass(frozen=True)
class Scenario:
    """What a seed makes. seconds: of faults. kinds: of faults, None: all; faults: most of them."""

    seed: int
    devices: int = 4
    seconds: int = 20
    faults: int = 12
    kinds: tuple[str, ...] | None = None

    def command(self) -> str:
        """Return the command that repeats it."""
        kinds = "" if self.kinds is None else f" --kinds {','.join(self.kinds) or 'none'}"
        return (
            f"python host_tests/simulation/simulate.py --seed {self.seed} --seeds 1 --devices {self.devices}"
            f" --seconds {self.seconds} --faults {self.faults}{kinds}"
        )


class Outcome(NamedTuple):
    """What a world has come to. messages: PUBLISH packets that the broker took and sent. seen: faults by kind."""

    divergences: list[str]
    messages: int
    published: int
    received: int
    digest: str
    seconds: float
    seen: Counter[str]


class World:
    """A world. Its parts tell `model` what happens; `note` adds to the digest."""

    def __init__(self, scenario: Scenario, folder: Path, disks: list[Disk]) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.process = Process()
        self.random = random = Random(f"{scenario.seed} world")
        self.model = Model()
        self._digest = blake2b(digest_size=8)
        self.note = self._digest.update
        self.published = self.received = self.refused = 0
        self.seen: Counter[str] = Counter()
        self.network = Network(
            self.clock, Random(f"{scenario.seed} network"), random.choice((0.001, 0.01, 0.1)),
            random.choice((0.0, 0.005, 0.05)), random.choice((2048, 65536)), on_bytes=self.note,
        )  # fmt: skip
        self.longest_way = 60.0
        self.links: list[Link] = []
        self.disks = disks
        config = {
            "max_inflight_messages": random.choice((1, 3, 20, 1000)),
            "max_queued_in_memory": random.choice((3, 20, 10_000)),
            "max_queued_messages": random.choice((0, 0, 200)),
        }
        self.server = Server(self, folder, config, random.choice(((0.005,), (0.002, 0.01, 0.03), (0.01, 0.2))))
        self.devices: list[Device] = []
        for number in range(scenario.devices):
            self.devices.append(Device(self, number, **_plan_device(scenario, number)))

    def model_party(self, name: str, keeps_session: bool, keeps_messages: bool, groups: frozenset[str]) -> Party:
        """Enter a client into the model."""
        party = Party(name, keeps_session, keeps_messages, groups=groups)
        self.model.parties.append(party)
        return party

    def link(self, wake: Callable[[], None], name: str) -> Link:
        """Return a new link to the broker. Raises OSError."""
        self.links = [link for link in self.links if not _is_over(link)]
        link = Link(self.network, self.server.accept, wake, f"10.0.0.{name.removeprefix('device')}")
        self.links.append(link)
        return link

    # Faults

    def plan(self) -> None:
        """Plan the faults of the seed."""
        scenario = self.scenario
        for number in range(scenario.faults):
            random = Random(f"{scenario.seed} fault {number}")
            kind = random.choice(list(FAULTS))
            at = 1 + random.random() * (scenario.seconds - 1)
            if scenario.kinds is None or kind in scenario.kinds:
                self.clock.at(at * SECOND, self.process, self._fail, kind, random)

    def _fail(self, kind: str, random: Random) -> None:
        before = self.seen[kind]
        FAULTS[kind](self, random)
        if self.seen[kind] == before:
            self.seen[kind] += 1

    def after(self, seconds: float, function: Callable[..., object], *arguments: object) -> None:
        """Call a function later."""
        self.clock.at(self.clock.now + seconds * SECOND, self.process, function, *arguments)

    def a_link(self, random: Random) -> Link | None:
        """Return any link that is made."""
        found = [link for link in self.links if link.is_connected and not link.is_closed and not link.error]
        return random.choice(found) if found else None

    # Running

    def run(self) -> None:
        """Let everything happen, heal, and drain; then compare what is left."""
        scenario = self.scenario
        self.plan()
        self.clock.run(scenario.seconds * SECOND)
        self._heal()
        deadline = self.clock.now + _DRAIN_S * SECOND
        while not self._is_drained():
            if self.clock.now >= deadline:
                self.model.diverge("does not drain: " + self._what_waits())
                break
            self.clock.run(self.clock.now + SECOND)
        self.clock.run(self.clock.now + _SILENCE_S * SECOND)
        self.model.check_end(self._look_at_retained())
        self._check_stores()

    def _heal(self) -> None:
        self.network.refuses = False
        self.server.disk_is_full = False
        for device in self.devices:
            device.is_publishing = False
            if device.disk is not None:
                device.disk.is_full = False
                device.disk.cut_at = 0
        self._start_server()

    def _start_server(self) -> None:
        if reason := self.server.start():
            self.model.diverge(f"the broker does not start: {reason}")

    def _is_drained(self) -> bool:
        broker = self.server.broker
        if broker is None:
            self._start_server()
            return False
        return not broker.sessions.queued and all(
            (client := device.client) is not None and client.connected and client.subscribed and not client.pending
            for device in self.devices
        )

    def _what_waits(self) -> str:
        broker = self.server.broker
        waiting = [
            f"{device.party.name} {client and (client.connected, client.subscribed, client.pending)}"
            for device in self.devices
            for client in [device.client]
        ]
        return f"{broker and broker.sessions.queued} in the broker, " + ", ".join(waiting)

    def _look_at_retained(self) -> dict[str, int | None]:
        found: dict[str, int | None] = dict.fromkeys(self.model.retained)
        client = Client("inspector", "mqtt://broker", ticks=lambda: self.clock.now // 1000, random=lambda n: 0,
                        transports={"mqtt": lambda *_: self.link(lambda: None, "inspector")})  # fmt: skip

        def on_message(topic: bytes, payload: bytes) -> None:
            if client.flags & 1:
                found[topic.decode()] = int(payload.split(b" ", 1)[0])

        client.on_message = on_message
        client.subscribe("#", 1)
        for _ in range(600):
            client.tick()
            self.clock.run(self.clock.now + SECOND // 100)
        if not client.subscribed:
            self.model.diverge("the inspector cannot subscribe")
        client.disconnect()
        client.tick()
        return found

    def _check_stores(self) -> None:
        """Compare what client and broker have stored with an empty session."""
        for device in self.devices:
            if device.disk is None or device.disk.refused:  # what could not be removed is sent again after a reset
                continue
            store = FlashStore(path(device.number), slots=device.slots)
            left = list(store.restore())
            inbound = store.inbound.ids() if store.inbound else []
            if left or inbound:
                self.model.diverge(
                    f"the flash of {device.party.name} still has {len(left)} messages and {len(inbound)} inbound"
                )
        broker = self.server.broker
        if broker is not None and broker.context.limits is not None and broker.context.limits.messages:
            self.model.diverge(f"the limits still count {broker.context.limits.messages} messages")

    def outcome(self) -> Outcome:
        """Return what has happened."""
        self.server.kill()
        self.note(b"%d" % self.clock.now)
        return Outcome(
            self.model.divergences, self.server.messages, self.published, self.received, self._digest.hexdigest(),
            self.clock.now / SECOND, self.seen,
        )  # fmt: skip


def _is_over(link: Link) -> bool:
    return link.is_closed and (link.other is None or link.other.is_lost)


def _plan_device(scenario: Scenario, number: int) -> dict[str, Any]:
    """Return the arguments of a device: the first one is a computer that listens to all and commands all."""
    random = Random(f"{scenario.seed} plan {number}")
    others = [other for other in range(scenario.devices) if other != number] or [number]
    clean = number > 0 and random.random() < 0.2
    is_5 = random.random() < 0.4
    subscriptions = {f"cmd/device{number}": random.randrange(3)}
    if number == 0:
        subscriptions |= {"up/#": 2, "will/#": random.choice((1, 2)), "re/#": 1}
    elif random.random() < 0.5:
        subscriptions["all/#"] = random.randrange(3)
        subscriptions["will/#"] = random.choice((1, 2))
    if not clean and random.random() < 0.6:
        subscriptions["$share/g/job/#"] = random.choice((1, 2))
    publishes: list[tuple[str, int, bool, float | None]] = [
        (f"up/device{number}", qos, False, None) for qos in (0, 1, 2)
    ]
    publishes += [
        ("job/device#", random.choice((1, 2)), False, None),
        ("all/device#", random.randrange(3), False, None),
    ]
    publishes.append(("keep/device#", random.choice((1, 2)), True, None))
    publishes.append((f"cmd/device{random.choice(others)}", random.randrange(3), False, None))
    if is_5:
        publishes.append(("all/soon#", 1, False, random.choice((1.0, 5.0, 30.0))))
    return {
        "flash": random.random() < 0.6,
        "subscriptions": subscriptions,
        "will": random.choice((None, 0, 1, 2)),
        "retains_will": random.random() < 0.3,
        "publishes": publishes,
        "rate": random.choice((2.0, 10.0, 30.0)),
        "slots": random.choice((8, 32, 200)),
        "clean_session": clean,
        "protocol": 5 if is_5 else 4,
        "keep_alive": random.choice((5, 20, 60)),
        "window": random.choice((1, 4, 8, 20)),
        "ack_timeout": random.choice((5000, 30000)),
    }


# Faults: each gets the world and a random of its own.


def _cut(world: World, random: Random) -> None:
    if link := world.a_link(random):
        up, down = random.randrange(link.up.size + 1), random.randrange(link.down.size + 1)
        knows = random.choice(((True, True), (True, False), (False, True)))
        link.cut(up, down, client_knows=knows[0], broker_knows=knows[1])


def _cut_all(world: World, random: Random) -> None:
    for link in list(world.links):
        if link.is_connected and not link.is_closed:
            link.cut(random.randrange(link.up.size + 1), random.randrange(link.down.size + 1))


def _stall(world: World, random: Random) -> None:
    if link := world.a_link(random):
        until = int(world.clock.now + random.choice((0.5, 3, 12, 40)) * SECOND)
        for stream in random.choice(((link.up,), (link.down,), (link.up, link.down))):
            stream.stall(until)


def _refuse(world: World, random: Random) -> None:
    def end() -> None:
        world.network.refuses = False

    world.network.refuses = True
    world.after(random.uniform(0.1, 5), end)


def _kill(world: World, random: Random) -> None:
    world.server.kill()
    world.after(random.uniform(0.01, 3), world._start_server)


def _broker_power(world: World, random: Random) -> None:
    world.server.kill(power=True)
    world.after(random.uniform(0.5, 5), world._start_server)


def _stop(world: World, random: Random) -> None:
    world.server.stop()
    world.after(random.uniform(4, 6), world._start_server)


def _old_pages(world: World, random: Random) -> None:
    def put_back() -> None:
        world.server.put_old_pages_back()
        world._start_server()

    world.server.remember()
    world.after(random.uniform(0.05, 2), put_back)


def _broker_disk(world: World, random: Random) -> None:
    def end() -> None:
        world.server.disk_is_full = False

    world.server.disk_is_full = True
    world.after(random.uniform(0.1, 5), end)


def _power(world: World, random: Random) -> None:
    random.choice(world.devices).cut_power(random.choice((0.1, 1, 10)))


def _power_in_flash(world: World, random: Random) -> None:
    for device in random.sample(world.devices, len(world.devices)):
        if device.disk is not None:
            device.disk.cut_at = device.disk.operations + random.randrange(1, 30)
            return


def _flash_full(world: World, random: Random) -> None:
    for device in random.sample(world.devices, len(world.devices)):
        if device.disk is not None:
            disk = device.disk

            def end(disk: Disk = disk) -> None:
                disk.is_full = False

            disk.is_full = True
            world.after(random.uniform(0.1, 5), end)
            return


def _take_over(world: World, random: Random) -> None:
    """Let another client take a session over, acknowledge nothing, and go."""
    found = [device for device in world.devices if device.party.keeps_session and device.party.granted]
    if not found or world.network.refuses:
        return
    name = random.choice(found).party.name
    link = world.link(lambda: None, name)

    def connect() -> None:
        if link.is_connected and not link.error:
            packet = encoder.connect(name.encode(), clean_session=False)
            link.write(bytearray(packet), 0, len(packet))

    world.after(0.5, connect)
    world.after(random.uniform(1, 4), link.close)


FAULTS: dict[str, Callable[[World, Random], None]] = {
    "cut": _cut,
    "cut_all": _cut_all,
    "stall": _stall,
    "refuse": _refuse,
    "kill": _kill,
    "broker_power": _broker_power,
    "stop": _stop,
    "old_pages": _old_pages,
    "broker_disk_full": _broker_disk,
    "power": _power,
    "power_in_flash": _power_in_flash,
    "flash_full": _flash_full,
    "take_over": _take_over,
}


@contextmanager
def _quiet() -> Iterator[Mistakes]:
    """Let the broker log nothing, and collect its mistakes."""
    log = logging.getLogger("umqtt_broker")
    mistakes = Mistakes()
    before = log.level, log.propagate
    log.addHandler(mistakes)
    log.setLevel(logging.ERROR)
    log.propagate = False
    try:
        yield mistakes
    finally:
        log.removeHandler(mistakes)
        log.setLevel(before[0])
        log.propagate = before[1]


def simulate(scenario: Scenario) -> Outcome:
    """Run a world from its beginning to its end."""
    running = asyncio._get_running_loop()
    with tempfile.TemporaryDirectory(prefix="umqtt-simulation-", dir=_RAM) as name, _quiet() as mistakes:
        try:
            each = [Disk(Random(f"{scenario.seed} disk {number}")) for number in range(scenario.devices)]
            with mounted(each):
                world = World(scenario, Path(name), each)
                try:
                    world.run()
                except Exception as error:  # noqa: BLE001 - a mistake of a client or of the world, told like others
                    at = traceback.extract_tb(error.__traceback__)[-1]
                    world.model.diverge(f"{error!r} in {at.filename}:{at.lineno}")
                world.model.divergences += mistakes.found + world.network.mistakes
                return world.outcome()
        finally:
            asyncio._set_running_loop(running)
