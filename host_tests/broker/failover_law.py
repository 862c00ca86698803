"""Two brokers on one Redis under a seeded load; the active one, both, Redis and the network between them fail.

Everything acknowledged is there, in order, at QoS 2 exactly once, whichever broker acknowledged it. The clients and the
checks are those of kill_law. `run` returns its Tally.
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
from kill_clients import GONE, Publisher, Subscriber, roam
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.redis_server import RedisServer
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

_LEAST, _MOST = 50, 300

FAULTS = ("kill active", "stop active", "cut active", "kill redis", "stop redis", "kill both", "end active")


# What is planted, and what must fail for it to show.
MISTAKES = {
    "writes without the lease": (broker_mistakes.WRITES_WITHOUT_THE_LEASE, ["stop active"]),
    "acknowledges before Redis has it": (broker_mistakes.ACKNOWLEDGES_EARLY, ["kill active", "kill both"]),
}


class Node:
    """A broker process with a way of its own to Redis. lines: what it has printed.

    Clients come by `port`, or by that of `entrance`: these notice when the process stands still.
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
        """Whether it said last that it listens, and has not ended."""
        return self.process.poll() is None and self.lines[-1:] != [] and self.lines[-1].startswith("listening on ")

    def send(self, number: int) -> None:
        """Send the process a signal."""
        os.kill(self.process.pid, number)

    def end(self, number: int = signal.SIGKILL) -> None:
        """End the process."""
        self.send(number)
        self.process.wait(WAIT_LIMIT_S)
        self._reader.join(WAIT_LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def close(self) -> None:
        """End the process and its way to Redis."""
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.end()
        self.entrance.close()
        self.proxy.close()


class Pair(kill_law.Load):
    """The load, Redis and the two brokers. over: the clients are to stop."""

    def __init__(self, folder: Path, seed: int, mistake: str) -> None:
        super().__init__(folder, seed, mistake)
        # These, and those who receive all, do not notice that a broker stands still, and wait for it.
        self.faithful = [Publisher("three", 1), Publisher("four", 2)]
        self.publishers += self.faithful
        self.redis = RedisServer(folder)
        self.over = threading.Event()
        # Brokers that went on after another had taken over from them.
        self.zombies = 0
        self.mistake = mistake

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Redis and both brokers."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.redis)
            self.nodes = [Node(self.redis, self.mistake) for _ in range(2)]
            for node in self.nodes:
                stack.callback(node.close)
            self.wait_for_both()
            yield

    def wait_for_both(self) -> None:
        """Wait until one is active, and the other has begun: one that finds no Redis at its start ends."""
        eventually(lambda: all(node.lines for node in self.nodes))
        self.active()

    def active(self, but: Node | None = None) -> Node:
        """Wait for a broker that is active, and return it."""
        return eventually(
            lambda: next((node for node in self.nodes if node.is_active and node is not but), None),
            lambda: [node.lines for node in self.nodes],
        )

    def go_on(self, run: Callable[..., None], is_faithful: bool, *arguments: object) -> None:
        """Run a client against whichever broker takes it, until it is over."""
        turn = 0
        while not self.over.is_set():
            turn += 1
            node = self.nodes[turn % 2]
            with contextlib.suppress(*GONE):
                run(node.port if is_faithful else node.entrance.port, *arguments)
            self.over.wait(0.02)

    def wait_for_messages(self) -> None:
        """Wait until some more messages are acknowledged."""
        wanted = sum(publisher.acknowledged for publisher in self.publishers) + self.rng.randint(_LEAST, _MOST)
        eventually(lambda: sum(publisher.acknowledged for publisher in self.publishers) >= wanted)

    def fail(self, fault: str) -> None:
        """Let something fail, and wait until a broker serves again."""
        node = self.active()
        if fault in ("kill active", "end active"):
            node.end(signal.SIGTERM if fault == "end active" else signal.SIGKILL)
            self.active(node)
            node.start()
        elif fault == "kill both":
            for one in self.nodes:
                one.end()
            for one in self.nodes:
                one.start()
        elif fault == "stop active":
            node.send(signal.SIGSTOP)
            node.entrance.refuse(True)
            node.entrance.cut()
            self.active(node)
            # The other has messages that this one does not know of, and clients that it still takes for its own.
            self.wait_for_messages()
            node.send(signal.SIGCONT)
            node.entrance.refuse(False)
            self.wait_for_standby(node)
        elif fault == "cut active":
            node.proxy.blackhole(True)
            self.active(node)
            node.proxy.blackhole(False)
            self.wait_for_standby(node)
        elif fault == "kill redis":
            self.redis.stop()
            self.redis.start()
        elif fault == "stop redis":
            self.redis.pause(True)
            self.wait_for_standby(node)
            self.redis.pause(False)
        self.wait_for_both()

    def wait_for_standby(self, node: Node) -> None:
        """Wait until a broker that has lost the store says so, and put an end to one that does not."""
        deadline = time.monotonic() + (2 if self.mistake else 1) * self._silence_s
        while node.is_active:
            if time.monotonic() > deadline:
                self.zombies += 1
                node.end()
                node.start()
                return
            self.over.wait(0.01)

    def play(self, faults: list[str], say: Callable[[str], None]) -> None:
        """Let the load flow while one after the other fails."""
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
        # Those who receive wait for messages: the end of the broker is the end of their waiting.
        for node in self.nodes:
            node.end()
            node.start()
        for thread in threads:
            thread.join(WAIT_LIMIT_S)
        self.finish()

    @contextlib.contextmanager
    def broker(self):
        """See kill_law: the active broker."""
        node = self.active()
        yield node.process, node.port


def _roam(subscriber: Subscriber) -> Callable[[int, float], None]:
    return lambda port, seed: roam(subscriber, port, random.Random(seed))


def run(
    folder: Path, faults: list[str], seed: int, mistake: str = "", say: Callable[[str], None] = lambda text: None
) -> kill_law.Tally:
    """Let these faults happen, then count. `folder` is empty; `mistake` is planted in both brokers."""
    pair = Pair(folder, seed, mistake)
    with pair.running():
        pair.play(faults, say)
    tally = kill_law.Tally(runs=len(faults), other=pair.zombies)
    if pair.zombies:
        tally.failures.append(f"{pair.zombies} times a broker went on without the store")
    for check in kill_law.CHECKS:
        check(pair, tally)
    return tally
