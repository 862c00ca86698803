"""A program with little heap gets all messages that wait at a broker, in order, whatever it does meanwhile.

The table has a block for each broker, interface, QoS, way to keep messages and trouble; a block has every number of
messages for every handler. Everything runs the bundle on real MicroPython with real brokers. `make prove-client` runs
all blocks and prints a line for each; UMQTT_SEED repeats one of its runs.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from programs import Program
from umqtt_kit.bundle import Bundle, library_folder
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.paired_broker import paired_broker
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

FULL = bool(os.getenv("UMQTT_FULL_SWEEPS"))
SEED = int(os.getenv("UMQTT_SEED", random.randrange(1_000_000) if FULL else 1))
HOST = "127.0.0.1"
BROKERS = ("mosquitto", "paired")
# Heaps for QoS 2 and a FlashStore, with words of 32 bits, as on boards, and of 64.
# robust: with less heap, a handler that publishes at QoS 2 fails: what the broker sends again on each link fills the
# heap before the answers that it waits for have come.
HEAPS = {
    32: {"client": "64K", "aio": "96K", "simple": "96K", "robust": "96K"},
    64: {"client": "92K", "aio": "128K", "simple": "112K", "robust": "136K"},
}
FRONTS = tuple(HEAPS[64])
HANDLERS = (
    "returns",
    "sleeps",
    "raises",
    "publishes at 0",
    "publishes at 1",
    "publishes at 2",
    "unsubscribes",
    "disconnects",
)
ANSWERS = ("publishes at 1", "publishes at 2", "unsubscribes")  # they wait for an answer behind messages
COUNTS = (1, 31, 32, 33, 64, 65, 200, 2000) if FULL else (33, 200)


class Block(NamedTuple):
    """A block of the table. kept: "clean" (a session that the broker forgets), "memory" or "flash"."""

    broker: str
    front: str
    qos: int
    kept: str
    trouble: str

    def __str__(self) -> str:
        return f"{self.broker} {self.front} QoS {self.qos} {self.kept} {self.trouble}"


def blocks() -> Iterator[Block]:
    for broker in BROKERS:
        for front in FRONTS:
            for qos in (0, 1, 2):
                for kept in ("clean", "memory", "flash") if front in ("client", "aio") else ("clean", "memory"):
                    yield Block(broker, front, qos, kept, "none")
                    if qos and kept != "clean":  # MQTT loses the others with the link
                        yield Block(broker, front, qos, kept, "cut")
                        if qos == 1 or kept == "flash":  # RAM loses what it has acknowledged
                            yield Block(broker, front, qos, kept, "killed")


class Broker(NamedTuple):
    """A broker's port, and a function that returns the lines of its log with a text."""

    port: int
    log_about: Callable[[str], list[str]]


SAMPLE = {
    Block("mosquitto", "client", 2, "flash", "killed"): ("publishes at 1",),
    Block("paired", "client", 1, "memory", "cut"): ("publishes at 2", "disconnects"),
    Block("paired", "aio", 1, "memory", "cut"): ("publishes at 1",),
    Block("paired", "aio", 2, "clean", "none"): ("returns", "disconnects"),
    Block("mosquitto", "simple", 0, "clean", "none"): ("returns",),
    Block("paired", "simple", 1, "memory", "none"): ("publishes at 1", "unsubscribes"),
    Block("mosquitto", "robust", 2, "memory", "cut"): ("publishes at 2",),
    Block("paired", "aio", 0, "clean", "none"): ("sleeps",),
    Block("mosquitto", "aio", 2, "memory", "none"): ("publishes at 1",),
}
TABLE = dict.fromkeys(blocks(), HANDLERS) if FULL else SAMPLE


def device(front: str) -> list[str]:
    """Return the command line of a MicroPython with little heap, which imports the bundle."""
    try:
        return micropython_command(HEAPS[word_bits()][front])
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))


@functools.cache
def word_bits() -> int:
    """Return the word size of the installed MicroPython, in bits."""
    command = [*micropython_command("1M"), "-c", "import struct; print(struct.calcsize('P') * 8)"]
    return int(subprocess.check_output(command, text=True))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    Bundle(library_folder()).compile(folder)
    return folder


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Broker]]:
    """Provide each broker."""
    lines = ("allow_anonymous true", "max_queued_messages 0", "log_type all")
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), *lines) as mosquitto, paired_broker() as port:
        yield {"mosquitto": Broker(mosquitto.port, mosquitto.log_about), "paired": Broker(port, lambda _: [])}


def counts(block: Block, handler: str) -> tuple[int, ...]:
    """Return how many messages wait in each round."""
    # If the broker forgets the session, messages that come before an answer cannot be left to it. Programs that wait
    # for a message would wait for ever for the last one, if that was dropped.
    waits = block.kept == "clean" and block.qos and handler in ANSWERS and block.front != "client"
    return tuple(count for count in COUNTS if count <= 65 or not waits)


def messages(first: int, count: int) -> list[bytes]:
    """Return payloads of about 65 bytes that begin with their number."""
    return [b"%d " % number + bytes(60) for number in range(first, first + count)]


class Judge:
    """A client that publishes messages for the programs and receives what their handlers publish."""

    def __init__(self, port: int) -> None:
        self.out: dict[str, list[int]] = {}  # by topic name: the numbers, in order of arrival
        self._client = client = paho.Client(CallbackAPIVersion.VERSION2)
        client.max_inflight_messages_set(10)  # above 20 at QoS 2 mosquitto 2.0.11 loses some
        ready = threading.Event()
        client.on_subscribe = lambda *_: ready.set()
        client.on_message = self._arrived
        client.connect(HOST, port)
        client.subscribe("+/out", 2)
        client.loop_start()
        assert ready.wait(WAIT_LIMIT_S)

    def _arrived(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.out.setdefault(message.topic, []).append(int(message.payload.split()[0]))

    def publish(self, topic: str, qos: int, payloads: list[bytes]) -> None:
        """Publish the payloads in order; return when the broker has them all."""
        for payload in payloads:
            self._client.publish(topic, payload, qos)
        self._client.publish("end", b"", max(1, qos)).wait_for_publish(WAIT_LIMIT_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


_numbers = itertools.count()


class Run:
    """A run of one handler of a block: a program for which messages wait, in the rounds of counts()."""

    def __init__(
        self, block: Block, handler: str, judge: Judge, broker: Broker, folder: Path, port: int | None = None
    ) -> None:
        # port: of a proxy before the broker.
        self._block, self._handler, self._judge, self._broker = block, handler, judge, broker
        self.name = f"r{next(_numbers)}"
        self.about = f"{block}: {handler}; UMQTT_SEED={SEED}"
        self._random = random.Random(f"{SEED} {block} {handler}")
        gate = folder / "gate"
        os.mkfifo(gate)
        self._gate = os.open(gate, os.O_RDWR)  # opened for both, so that writing waits for no reader
        self._config = {
            "port": port or broker.port,
            "program": "blocking" if block.front in ("simple", "robust") else block.front,
            "front": block.front,
            "qos": block.qos,
            "callback": handler,
            "name": self.name,
            "clean": block.kept == "clean",
            "gate": str(gate),
            "flash": str(folder / "flash") if block.kept == "flash" else None,
        }
        self.program = Program(device(block.front), "waiting.py", self._config)
        self.taken: list[tuple[int, bool]] = []  # (number, whether it is flagged as redelivered)
        self.said: list[str] = []  # its other output
        self.discarded = self.kills = 0
        self._next = 0

    def close(self) -> None:
        os.close(self._gate)
        self.program.kill()

    def wait(self, payloads: list[bytes]) -> None:
        """Let messages wait for a program that is connected and does not read."""
        self._until("ready")
        self._judge.publish(f"{self.name}/in", self._block.qos, payloads)

    def go(self, count: int) -> dict[str, Any]:
        """Let the program take `count` messages; return the summary that it prints."""
        first, self._next = self._next, self._next + count
        last = self._next - 1
        self._open_gate(first, last)
        if self._block.trouble == "killed":
            until = len(self.taken) + self._random.randrange(count)
            while len(self.taken) <= until:
                assert self._take() is None, self.about
            for line in self.program.kill_and_read():
                self._parse(line)
            self.kills += 1
            self.program = Program(device(self._block.front), "waiting.py", self._config)
            self._until("ready")
            self._open_gate(first, last if last not in dict(self.taken) else -1)
        return self._until("taken")

    def cut(self, proxy: FaultProxy, count: int) -> None:
        """Cut this link, and up to two of the next ones, at random bytes."""
        for connection in proxy.connections:
            connection.cut_after(*self._moment(count))
        for _ in range(self._random.randrange(3)):
            proxy.cut_next(*self._moment(count))

    def _moment(self, count: int) -> tuple[int, Literal["up", "down"]]:
        if self._random.random() < 0.7:
            return self._random.randrange(1, 90 * count), "down"
        return self._random.randrange(1, 4 * count + 1), "up"

    def check(self) -> None:
        """Check that all messages came in order, at QoS 2 once, and that all that the handler published arrived."""
        block, handler = self._block, self._handler
        wanted = list(range(self._next))
        # Where no broker sends messages again and the heap has no room for them, they are dropped and counted.
        drops = handler in ANSWERS and (block.kept == "clean" or not block.qos)
        assert handler == "raises" or not self.said, (self.about, self.said)
        numbers = [number for number, _ in self.taken]
        once = list(dict.fromkeys(numbers))
        if block.qos and not drops:
            # Messages that a handler publishes at QoS 0 without a link are counted too.
            assert self.discarded == 0 or (block.trouble == "cut" and handler == "publishes at 0"), self.about
            assert once == wanted, f"{self.about}: {_difference(once, wanted)}"
        else:
            assert once == sorted(once), self.about
            assert len(once) + self.discarded == len(wanted), (self.about, len(once), self.discarded)
            assert drops or not self.discarded, (self.about, self.discarded)
            assert len(once) >= 31, self.about
        if block.qos != 1:
            seen: set[int] = set()
            again = []
            for number, flagged in self.taken:
                if number in seen and not flagged:
                    again.append(number)
                seen.add(number)
            killed = block.trouble == "killed" and block.front != "client"  # the others have no flag
            anew = _published_after_pubrel(self._broker.log_about(self.name)) if again else 0
            assert killed or len(again) <= anew, f"{self.about}: {again} came again"
        survives = block.trouble != "killed" or block.kept == "flash"
        if survives and handler in ("publishes at 1", "publishes at 2"):
            out = self._judge.out.setdefault(f"{self.name}/out", [])
            eventually(lambda: set(out) >= set(once), lambda: f"{self.about}: {set(once) - set(out)} at the broker")
            assert list(dict.fromkeys(out)) == once, self.about
            # A message published before a kill is published again, if the kill came before its acknowledgement.
            # Programs of umqtt.simple publish again what was lost with a link: the broker may then have both.
            if handler == "publishes at 2" and not (block.front == "simple" and block.trouble == "cut"):
                assert len(numbers) <= len(out) <= len(numbers) + self.kills, self.about

    def _open_gate(self, first: int, last: int) -> None:
        os.write(self._gate, json.dumps([first, last]).encode() + b"\n")

    def _take(self) -> dict[str, Any] | None:
        # Returns the next event of the program, or None for other output.
        try:
            line = self.program.line()
        except AssertionError as error:
            log = self._broker.log_about(self.name)[-80:]
            told = [f"{self.about}: {error}; taken {self.taken[-3:]}; said {self.said[-9:]}", *log]
            raise AssertionError("\n".join(told)) from None
        assert line is not None, "\n".join([f"{self.about}: the program ended", *self.said])
        return self._parse(line)

    def _parse(self, line: str) -> dict[str, Any] | None:
        if line[0] == "{":
            return json.loads(line)
        if line[0] == "[":
            number, flagged = json.loads(line)
            self.taken.append((number, flagged > 0))
        else:
            self.said.append(line)
        return None

    def _until(self, event: str) -> dict[str, Any]:
        while True:
            got = self._take()
            if got is not None:
                assert got["event"] == event, (self.about, got)
                return got


def _published_after_pubrel(log: list[str]) -> int:
    """Count the messages that mosquitto published again though it had their PUBREC, against MQTT 3.1.1, 4.3.3.

    mosquitto 2.0.11 does so where a link ends while it repeats many PUBRELs.
    """
    released: set[str] = set()
    again: set[str] = set()
    for line in log:
        if found := re.search(r"Sending PUBREL to \S+ \(m(\d+)\)", line):
            released.add(found[1])
        elif found := re.search(r"Received PUBCOMP from \S+ \(Mid: (\d+),", line):
            released.discard(found[1])
        elif found := re.search(r"Sending PUBLISH to \S+ \(d\d, q2, r\d, m(\d+),", line):
            again |= {found[1]} & released
    return len(again)


def _difference(got: list[int], wanted: list[int]) -> str:
    missing = sorted(set(wanted) - set(got))
    return f"missing {missing}" if missing else f"in the order {got}"


@pytest.mark.parametrize("block", TABLE, ids=str)
def test_everything_that_waits_is_taken_in_order_and_once(
    block, brokers, bundle, tmp_path, monkeypatch, capsys
) -> None:
    # Planted: the inbox accepts everything that comes, or drops what does not fit; garbage between waiting messages
    # leaves holes; a client of asyncio that reconnects does not read for its answer.
    monkeypatch.setenv("UMQTT_DEVICE_LIBRARY", str(bundle))
    broker = brokers[block.broker]
    taken = again = discarded = cuts = kills = 0
    with ExitStack() as stack:
        judge = stack.enter_context(closing(Judge(broker.port)))
        for handler in TABLE[block]:
            folder = tmp_path / handler
            folder.mkdir()
            proxy = stack.enter_context(FaultProxy((HOST, broker.port))) if block.trouble == "cut" else None
            run = Run(block, handler, judge, broker, folder, proxy.port if proxy else None)
            try:
                first = 0
                for count in counts(block, handler):
                    run.wait(messages(first, count))
                    if proxy:
                        run.cut(proxy, count)
                    run.discarded += run.go(count)["discarded"]
                    first += count
                run.check()
            finally:
                run.close()
            taken += len(run.taken)
            again += len(run.taken) - len(dict(run.taken))
            discarded += run.discarded
            kills += run.kills
            cuts += proxy.counters.cut if proxy else 0
    if FULL:
        with capsys.disabled():
            print(f"\n{block}: {taken} taken, {again} of them again, "
                  f"{discarded} discarded, {cuts} cuts, {kills} kills; seed {SEED}", end=" ")  # fmt: skip


@pytest.mark.parametrize("front", ["simple", "robust", "aio"])
def test_a_message_larger_than_the_heap_is_raised_by_name_and_the_next_one_comes(
    front, brokers, bundle, tmp_path, monkeypatch
) -> None:
    # Planted: it is acknowledged silently; the part that had arrived stays in memory.
    monkeypatch.setenv("UMQTT_DEVICE_LIBRARY", str(bundle))
    broker = brokers["mosquitto"]
    with closing(Judge(broker.port)) as judge:
        block = Block("mosquitto", front, 1, "clean", "too large")
        run = Run(block, "returns", judge, broker, tmp_path)
        try:
            run.wait([b"0 ", bytes(300_000), b"1 "])
            taken = run.go(2)
            assert taken["too_large"] in ([[f"b'{run.name}/in'", 300_000]], [[f"{run.name}/in", 300_000]]), taken
            assert taken["free"] > 25_000, taken
            run.wait([b"2 " + bytes(4000)])
            assert run.go(1)["too_large"] == []
        finally:
            run.close()
