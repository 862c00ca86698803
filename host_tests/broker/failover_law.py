"""Two brokers on one Redis under a seeded load; the active one, both, Redis and the network between them fail.

The law: everything acknowledged is there, in order, at QoS 2 exactly once, whichever broker acknowledged it. Clients
and checks are those of kill_law. `run` returns its Tally.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import broker_mistakes
import kill_law
from broker_peer import Peer
from kill_clients import GONE, Publisher, Subscriber, roam
from umqtt_testkit import encoder
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.redis_server import RedisServer, find_redis
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

_LEAST, _MOST = 50, 300

# stop: the process is suspended, and continues later. cut: nothing passes between it and Redis. mute: its batches
# reach Redis, but the answers are lost. reset: its connection to Redis is reset, and new ones are refused.
_ISOLATING = ("stop active", "cut active", "mute active", "reset active")
FAULTS = ("kill active", "end active", *_ISOLATING, "kill redis", "stop redis", "kill both")


# Limit for 95 of 100 takeovers, in seconds without a broker, on a quiet machine.
TAKEOVER_LIMIT_S = 5.0


def plan(seed: int) -> tuple[list[str], str]:
    """Return the faults of a run and the engine of its store. Nine consecutive seeds cover each fault."""
    first = FAULTS[seed % len(FAULTS)]
    others = random.Random(seed).sample([fault for fault in FAULTS if fault != first], 2)
    engine = "redis" if seed % 2 or find_redis("valkey") is None else "valkey"
    return [first, *others], engine


# Planted mistakes, and the fault that reveals each.
MISTAKES = {
    # It shows if the broker has something to write when it continues.
    "writes without the lease": (broker_mistakes.WRITES_WITHOUT_THE_LEASE, ["stop active"] * 3),
    "acknowledges before Redis has it": (broker_mistakes.ACKNOWLEDGES_EARLY, ["kill active", "kill both"]),
}


class Node:
    """A broker process with its own path to Redis. lines: what it has printed.

    Clients connect to `port`, or to that of `entrance`, through which they notice when the process is suspended.
    """

    def __init__(self, redis: RedisServer, mistake: str) -> None:
        self.port = reserved_port()
        self.entrance = FaultProxy(("127.0.0.1", self.port))
        self.proxy = FaultProxy(("127.0.0.1", redis.port))
        self._mistake = mistake
        self.start()

    def start(self) -> None:
        """Start the process."""
        store = f"redis://127.0.0.1:{self.proxy.port}/0"
        command = broker_mistakes.command(self._mistake, "-p", str(self.port), "--store", store)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line.rstrip())

    @property
    def is_active(self) -> bool:
        """Return whether it last reported that it listens, and has not ended."""
        return self.process.poll() is None and self.lines[-1:] != [] and self.lines[-1].startswith("listening on ")

    def send(self, number: int) -> None:
        """Send the process a signal."""
        os.kill(self.process.pid, number)

    def isolate(self, fault: str, on: bool) -> None:
        """Start or end one of the faults in _ISOLATING."""
        if fault == "stop active":
            self.send(signal.SIGSTOP if on else signal.SIGCONT)
            self.entrance.refuse(on)
            if on:
                self.entrance.cut()
        elif fault == "cut active":
            self.proxy.blackhole(on)
        elif fault == "mute active":
            self.proxy.stall(on, "down")
        else:
            self.proxy.refuse(on)
            if on:
                self.proxy.cut()

    def end(self, number: int = signal.SIGKILL) -> None:
        """End the process."""
        self.send(number)
        self.process.wait(WAIT_LIMIT_S)
        self._reader.join(WAIT_LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def close(self) -> None:
        """End the process and its path to Redis."""
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.end()
        self.entrance.close()
        self.proxy.close()


class Pair(kill_law.Load):
    """The load, Redis and the two brokers. over: tells the clients to stop."""

    def __init__(self, folder: Path, seed: int, mistake: str, engine: str) -> None:
        super().__init__(folder, seed, mistake)
        # These, and the subscribers to everything, do not notice a suspended broker, and wait for it.
        self.faithful = [Publisher("three", 1), Publisher("four", 2)]
        self.publishers += self.faithful
        self.redis = RedisServer(folder, engine)
        self.over = threading.Event()
        # Brokers that continued after another had taken over from them, and packets with which they answered.
        self.zombies = 0
        self.late_answers = 0
        # Seconds from each fault of the active broker to the other one's first acknowledgement.
        self.takeover_s: list[float] = []
        self.mistake = mistake

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run Redis and both brokers within this context."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.redis)
            self.nodes = [Node(self.redis, self.mistake) for _ in range(2)]
            for node in self.nodes:
                stack.callback(node.close)
            self.wait_for_both()
            yield

    def wait_for_both(self) -> None:
        """Wait until one is active, and the other has started: one that finds no Redis at its start ends."""
        eventually(lambda: all(node.lines for node in self.nodes))
        self.active()

    def active(self, but: Node | None = None) -> Node:
        """Wait for an active broker, and return it."""
        return eventually(
            lambda: next((node for node in self.nodes if node.is_active and node is not but), None),
            lambda: [node.lines for node in self.nodes],
        )

    def go_on(self, run: Callable[..., None], is_faithful: bool, *arguments: object) -> None:
        """Run a client against whichever broker accepts it, until the run is over."""
        turn = 0
        while not self.over.is_set():
            turn += 1
            node = self.nodes[turn % 2]
            with contextlib.suppress(*GONE):
                run(node.port if is_faithful else node.entrance.port, *arguments)
            self.over.wait(0.02)

    def wait_for_messages(self, count: int | None = None) -> None:
        """Wait until more messages are acknowledged: `count`, or a random number."""
        wanted = sum(publisher.acknowledged for publisher in self.publishers)
        wanted += self.rng.randint(_LEAST, _MOST) if count is None else count
        eventually(lambda: sum(publisher.acknowledged for publisher in self.publishers) >= wanted)

    def wait_for_takeover(self, node: Node, begun: float) -> None:
        """Wait until the other broker acknowledges.

        begun: when this one failed, by time.monotonic().
        """
        self.active(node)
        self.wait_for_messages(1)
        self.takeover_s.append(time.monotonic() - begun)

    def fail(self, fault: str) -> None:
        """Let something fail, and wait until a broker serves again."""
        node = self.active()
        if fault in ("kill active", "end active"):
            begun = time.monotonic()
            node.end(signal.SIGTERM if fault == "end active" else signal.SIGKILL)
            self.wait_for_takeover(node, begun)
            node.start()
        elif fault in _ISOLATING:
            self.isolate_and_return(node, fault)
        elif fault == "kill both":
            for one in self.nodes:
                one.end()
            for one in self.nodes:
                one.start()
        elif fault == "kill redis":
            self.redis.stop()
            self.redis.start()
        elif fault == "stop redis":
            self.redis.pause(True)
            self.wait_for_standby(node)
            self.redis.pause(False)
        self.wait_for_both()

    def isolate_and_return(self, node: Node, fault: str) -> None:
        """Let a broker return after the other has taken over: nobody may hear from it any more."""
        with Peer(node.port) as witness:
            witness.connect(b"witness")
            begun = time.monotonic()
            node.isolate(fault, True)
            self.wait_for_takeover(node, begun)
            # The other has messages that this one lacks, and clients that this one still considers its own.
            self.wait_for_messages()
            with contextlib.suppress(OSError):
                witness.send(encoder.publish(b"witness", b"late", 1, 1) + encoder.pingreq())
            node.isolate(fault, False)
            self.wait_for_standby(node)
            self.late_answers += len(witness.wait_closed())

    def wait_for_standby(self, node: Node) -> None:
        """Wait until a broker that has lost the store says so; end one that does not."""
        deadline = time.monotonic() + (2 if self.mistake else 1) * self._silence_s
        while node.is_active:
            if time.monotonic() > deadline:
                self.zombies += 1
                node.end()
                node.start()
                return
            self.over.wait(0.01)

    def play(self, faults: list[str], say: Callable[[str], None]) -> None:
        """Let the load flow while the faults occur one after the other."""
        for subscriber in (*self.subscribers, *self.crew):
            subscriber.subscribe(self.active().port)
        publishers = (*self.publishers, self.state)
        jobs: list[tuple[object, ...]] = [
            *((one.run, one in self.faithful, self.over.is_set) for one in publishers),
            (self.stays.run, True),
            *((_roam(one), False, self.rng.random()) for one in (self.roams, *self.crew)),
        ]
        threads = [threading.Thread(target=self.go_on, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for fault in faults:
            self.wait_for_messages()
            say(f"  {fault}")
            self.fail(fault)
        self.wait_for_messages()
        self.over.set()
        # Subscribers wait for messages until their broker ends.
        for node in self.nodes:
            node.end()
            node.start()
        for thread in threads:
            thread.join(WAIT_LIMIT_S)
        self.finish()

    @contextlib.contextmanager
    def broker(self):
        """Provide the active broker; see kill_law."""
        node = self.active()
        yield node.process, node.port


def _roam(subscriber: Subscriber) -> Callable[[int, float], None]:
    return lambda port, seed: roam(subscriber, port, random.Random(seed))


def run(
    folder: Path,
    faults: list[str],
    seed: int,
    mistake: str = "",
    *,
    engine: str = "redis",
    say: Callable[[str], None] = lambda text: None,
) -> kill_law.Tally:
    """Let these faults occur, then count. `folder` is empty; `mistake` is planted in both brokers.

    engine: of the store, "redis" or "valkey".
    """
    pair = Pair(folder, seed, mistake, engine)
    with pair.running():
        pair.play(faults, say)
    tally = kill_law.Tally(runs=len(faults), other=pair.zombies + pair.late_answers, takeover_s=pair.takeover_s)
    if pair.zombies:
        tally.failures.append(f"{pair.zombies} times a broker went on without the store")
    if pair.late_answers:
        tally.failures.append(f"{pair.late_answers} packets from a broker that was taken over from")
    for check in kill_law.CHECKS:
        check(pair, tally)
    return tally
