"""kill -9 at any moment under a seeded load: everything acknowledged is there, in order, at QoS 2 exactly once.

`run` does it and returns a Tally. Each check is a function that takes the Load and adds to the Tally; another kind of
load brings its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import broker_mistakes
from kill_clients import GONE, Publisher, Subscriber, drain, roam
from law_peer import has_properties, law_peer
from peer5 import Packet5
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

# A broker with a mistake may hang: what has not come by then counts as lost, even if that is too soon for a slow one.
_SILENCE_OF_MISTAKEN_S = 1.0

# Range of the number of messages acknowledged between two kills.
_LEAST, _MOST = 20, 1000


@dataclass
class Tally:
    """The counts of a run. `failures` describes the same in words; `other` counts laws broken in another way.

    takeover_s: seconds without a broker, for each takeover by a standby.
    """

    runs: int = 0
    messages: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    other: int = 0
    failures: list[str] = field(default_factory=list)
    takeover_s: list[float] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the counts of another run."""
        for name in ("runs", "messages", "lost", "duplicated", "out_of_order", "other"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failures += other.failures
        self.takeover_s += other.takeover_s

    @property
    def broken(self) -> int:
        """Return the number of broken laws."""
        return self.lost + self.duplicated + self.out_of_order + self.other


class Load:
    """The clients of a run, and its broker. crew: members of the group that shares the load."""

    def __init__(self, folder: Path, seed: int, mistake: str = "", crew: int = 3, protocol_level: int = 4) -> None:
        self.rng = random.Random(seed)
        self.protocol_level = protocol_level
        self.publishers = [Publisher("one", 1, protocol_level), Publisher("two", 2, protocol_level)]
        self.state = Publisher("now", 1, protocol_level, retain=True)
        self.stays = Subscriber(b"stays", protocol_level=protocol_level)
        self.roams = Subscriber(b"roams", protocol_level=protocol_level)
        group = (b"$share/crew/load/#",)
        self.crew = [Subscriber(b"crew-%d" % number, group, protocol_level) for number in range(crew)]
        self.wills: list[bytes] = []
        # At each start of the broker: the retained number, and the highest acknowledged number.
        self.retained: list[tuple[int, int]] = []
        self._store = folder / "broker.db"
        self._mistake = mistake
        self._silence_s = _SILENCE_OF_MISTAKEN_S if mistake else WAIT_LIMIT_S

    @property
    def subscribers(self) -> list[Subscriber]:
        """Return the subscribers whose sessions get the whole load."""
        return [self.stays, self.roams]

    @contextlib.contextmanager
    def broker(self):
        """Run a broker process on the store; yield it and its port. Killed at the end if it still runs."""
        command = broker_mistakes.command(self._mistake, "-p", "0", "--store", str(self._store))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("listening on "), line
            yield process, int(line.rpartition(":")[2])
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait(WAIT_LIMIT_S)
            process.stdout.close()

    def prepare(self) -> None:
        """Create the sessions."""
        with self.broker() as (process, port):
            for subscriber in (*self.subscribers, *self.crew):
                subscriber.subscribe(port)
            process.send_signal(signal.SIGKILL)

    def cycle(self, number: int, with_wills: bool) -> None:
        """Run one life of the broker: load from all sides, and SIGKILL at a random moment."""
        with self.broker() as (process, port), contextlib.ExitStack() as connected:
            self._look_at_retained(port)
            if with_wills:
                will = b"will:%d" % number
                dying = connected.enter_context(law_peer(port, self.protocol_level))
                dying.connect(b"dying", will=(b"wills/%d" % number, will, 1, False))
                self.wills.append(will)
            jobs: list[tuple[Callable[..., None], tuple[object, ...]]] = [
                (publisher.run, (port, lambda: False)) for publisher in (*self.publishers, self.state)
            ]
            if self.rng.random() < 0.8:
                jobs.append((self.stays.run, (port,)))
            # Members of the crew come and go; sometimes one or all of them stay away.
            for subscriber in (self.roams, *(member for member in self.crew if self.rng.random() < 0.7)):
                jobs.append((roam, (subscriber, port, random.Random(self.rng.random()))))
            wanted = sum(publisher.acknowledged for publisher in self.publishers) + self.rng.randint(_LEAST, _MOST)
            threads = [threading.Thread(target=_until_gone, args=(run, *arguments)) for run, arguments in jobs]
            for thread in threads:
                thread.start()
            eventually(
                lambda: (
                    sum(publisher.acknowledged for publisher in self.publishers) >= wanted or not threads[0].is_alive()
                )
            )
            process.send_signal(signal.SIGKILL)
            for thread in threads:
                thread.join(WAIT_LIMIT_S)

    def finish(self) -> None:
        """Let the publishers finish and the subscribers take everything."""
        with self.broker() as (process, port):
            self._look_at_retained(port)
            for publisher in (*self.publishers, self.state):
                _until_gone(publisher.run, port, lambda: True)
            for number, group in enumerate(([self.stays], [self.roams], self.crew)):
                for subscriber in group:
                    subscriber.has_last = False
                if group:
                    drain(group, port, b"load/last/%d" % number, self._silence_s)
            process.terminate()
            process.wait(WAIT_LIMIT_S)

    def _look_at_retained(self, port: int) -> None:
        with law_peer(port, self.protocol_level) as peer:
            peer.connect(b"looks")
            peer.subscribe(b"state/now", 0)
            packets = peer.flush()
        found = [int(packet.payload.rpartition(b":")[2]) for packet in packets]
        self.retained.append((found[0] if found else 0, self.state.acknowledged))
        if not all(has_properties(packet) for packet in packets if isinstance(packet, Packet5)):
            self.state.broken.append(f"the retained message has lost properties: {packets}")


def _until_gone(function: Callable[..., None], *arguments: object) -> None:
    """Run a client until its broker is killed."""
    with contextlib.suppress(*GONE):
        function(*arguments)


# The checks


def check_streams(load: Load, tally: Tally) -> None:
    """Check that each subscriber has each publisher's numbers, in order, and twice only where that is allowed."""
    for subscriber in load.subscribers:
        for publisher in load.publishers:
            who = f"{subscriber.client_id.decode()} of {publisher.name}"
            arrived = _numbers(subscriber, publisher)
            _check_lost(who, publisher, {number for number, _ in arrived}, tally)
            _check_order(who, publisher, arrived, tally)
        tally.messages += len(subscriber.received)


def _numbers(subscriber: Subscriber, publisher: Publisher) -> list[tuple[int, bool]]:
    """Return the numbers of a publisher in order of arrival, each with its DUP flag."""
    prefix = f"{publisher.name}:".encode()
    return [
        (int(payload.removeprefix(prefix)), dup) for payload, dup in subscriber.received if payload.startswith(prefix)
    ]


def _check_lost(who: str, publisher: Publisher, arrived: set[int], tally: Tally) -> None:
    missing = set(range(1, publisher.acknowledged + 1)) - arrived
    if missing:
        tally.lost += len(missing)
        tally.failures.append(f"{who}: lost {len(missing)}, the first {min(missing)}")


def _check_order(who: str, publisher: Publisher, arrived: list[tuple[int, bool]], tally: Tally) -> None:
    seen: set[int] = set()
    highest = 0
    for number, dup in arrived:
        if number in seen:
            if publisher.qos == 2 or not (dup or number in publisher.repeated):
                tally.duplicated += 1
                tally.failures.append(f"{who}: {number} twice{' with DUP' if dup else ''}")
        elif number < highest:
            tally.out_of_order += 1
            tally.failures.append(f"{who}: {number} after {highest}")
        seen.add(number)
        highest = max(highest, number)


def check_group(load: Load, tally: Tally) -> None:
    """Check that the group has each number, at QoS 2 once, and without DUP once; new ones come in order."""
    if not load.crew:
        return
    for publisher in load.publishers:
        who = f"crew of {publisher.name}"
        copies: dict[int, list[bool]] = {}
        for member in load.crew:
            arrived = _numbers(member, publisher)
            for number, dup in arrived:
                copies.setdefault(number, []).append(dup)
            # Repeated messages may come later, to any member.
            fresh = [number for number, dup in arrived if not dup and number not in publisher.repeated]
            for before, number in itertools.pairwise(fresh):
                if number < before:
                    tally.out_of_order += 1
                    tally.failures.append(f"{member.client_id.decode()} of {publisher.name}: {number} after {before}")
        _check_lost(who, publisher, set(copies), tally)
        for number, dups in copies.items():
            may_repeat = publisher.qos == 1 and (number in publisher.repeated or dups.count(False) <= 1)
            if len(dups) > 1 and not may_repeat:
                tally.duplicated += 1
                tally.failures.append(f"{who}: {number} {len(dups)} times, DUP: {dups}")
    tally.messages += sum(len(member.received) for member in load.crew)


def check_retained(load: Load, tally: Tally) -> None:
    """Check that the retained message is the last one acknowledged, or a later one."""
    for number, acknowledged in load.retained:
        if number < acknowledged:
            tally.lost += 1
            tally.failures.append(f"retained: {number} instead of {acknowledged}")


def check_wills(load: Load, tally: Tally) -> None:
    """Check the wills of clients connected when the broker died: each subscriber has each once, or again with DUP."""
    for subscriber in load.subscribers:
        for will in load.wills:
            copies = [dup for payload, dup in subscriber.received if payload == will]
            if not copies:
                tally.lost += 1
                tally.failures.append(f"{subscriber.client_id.decode()}: {will.decode()} was not published")
            elif not all(copies[1:]):
                tally.duplicated += 1
                tally.failures.append(f"{subscriber.client_id.decode()}: {will.decode()} was published twice")


def check_sessions(load: Load, tally: Tally) -> None:
    """Check that no client found its session forgotten, or got an answer it had not asked for."""
    for client in (*load.publishers, load.state, *load.subscribers, *load.crew):
        tally.other += len(client.broken)
        tally.failures += client.broken


CHECKS = (check_streams, check_group, check_retained, check_wills, check_sessions)


def run(
    folder: Path,
    cycles: int,
    seed: int,
    mistake: str = "",
    *,
    with_wills: bool = True,
    crew: int = 3,
    protocol_level: int = 4,
    say: Callable[[str], None] = lambda text: None,
) -> Tally:
    """Kill the broker `cycles` times, then count. `folder` is empty; `mistake` is planted in the broker.

    crew: members of the group that shares the load. protocol_level: of all clients.
    """
    load = Load(folder, seed, mistake, crew, protocol_level)
    load.prepare()
    tally = Tally()
    for number in range(1, cycles + 1):
        load.cycle(number, with_wills)
        tally.runs += 1
        if number % 10 == 0:
            say(f"  {number} kills, {sum(publisher.acknowledged for publisher in load.publishers)} acknowledged")
    load.finish()
    for check in CHECKS:
        check(load, tally)
    return tally
