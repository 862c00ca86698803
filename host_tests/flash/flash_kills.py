"""Kills a virtual board that publishes with a FlashStore at random, and counts every reading that it promised."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.paired_broker import paired_broker
from umqtt_testkit.waiting import WAIT_LIMIT_S

import umqtt_robust
from umqtt_robust import Client

_LIBRARY = Path(umqtt_robust.__file__).parent
_TOPIC = b"readings"
# The collector's own last messages, one each at QoS 1 and QoS 2.
_ENDS = ("end-1", "end-2")
_LONGEST_LIFE_S = 0.4  # after the first reading since a start

# Alternates QoS 1 and 2. It prints a reading once publish() has returned: that is its promise.
PROGRAM = """
import os
from umqtt_robust import Client
from umqtt_robust.{module} import {store}
{imports}

boot = "%02x%02x%02x%02x" % tuple(os.urandom(4))
client = Client("killed", {link}, clean_session=False, store={store}({path}))
print("begins with", client.pending)
number = 0
while number < {readings} or client.pending:
    if number < {readings} and client.pending < 12:
        reading = "%s-%d-%d" % (boot, number, 1 + number % 2)
        client.publish("readings", reading, qos=1 + number % 2)
        print("promised", reading, ";")
        number += 1
    client.poll(20)
print("all delivered")
"""
ENDLESS = 1 << 30
STORES = {
    "FlashStore": {"module": "flash", "store": "FlashStore", "path": '"/mqtt"'},
    "MemoryStore": {"module": "store", "store": "MemoryStore", "path": ""},
}
PROMISE = re.compile(rb"promised (\S+) ;")


@dataclass
class Count:
    """Counts of readings. promised: publish() returned. duplicated: at QoS 2; QoS 1 allows duplicates."""

    kills: int
    promised: int
    arrived: int
    lost: int
    duplicated: int
    out_of_order: int
    repeated_at_qos1: int


class Collector:
    """A thread that subscribes at QoS 2 and records the messages that arrive."""

    def __init__(self, port: int) -> None:
        self.arrived: list[str] = []
        self._client = Client("collector", f"mqtt://127.0.0.1:{port}", clean_session=True)
        self._client.on(_TOPIC, self._take)
        self._client.subscribe(_TOPIC, qos=2)
        self._stop = threading.Event()
        self._subscribed = threading.Event()
        self._all_sent = threading.Event()
        self._ends: set[str] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._subscribed.wait(WAIT_LIMIT_S):
            raise TimeoutError("the collector got no subscription")

    def _take(self, topic: bytes, payload: bytes) -> None:
        text = payload.decode()
        (self._ends.add if text in _ENDS else self.arrived.append)(text)

    def _run(self) -> None:
        asked = False
        while not self._stop.is_set() and len(self._ends) < len(_ENDS):
            self._client.poll(20)
            if self._client.connected and self._client.subscribed:
                self._subscribed.set()
            if self._all_sent.is_set() and not asked:
                asked = True
                for qos, end in enumerate(_ENDS, 1):
                    self._client.publish(_TOPIC, end, qos=qos)

    def finish(self) -> None:
        """Receive all that the broker has now: the last message of each QoS arrives after the others of that QoS."""
        self._all_sent.set()
        self._thread.join(WAIT_LIMIT_S)
        if self._thread.is_alive():
            raise TimeoutError("the broker did not deliver everything")

    def close(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_LIMIT_S)


def count_kills(folder: Path, kills: int, seed: int, store: str = "FlashStore") -> Count:
    """Kill a board this many times, let it finish, and count. folder: for the image of its flash and its log.

    store: with "MemoryStore" readings must be lost, or the kills prove nothing.
    Raises BoardError, MicroPythonMissing, TimeoutError.
    """
    rng = random.Random(seed)
    with paired_broker() as port, closing(Collector(port)) as collector:
        log = folder / "killed.log"
        with VirtualBoard(folder / "killed.img", log=log) as board:
            program = PROGRAM.format(imports="", link=f'"mqtt://127.0.0.1:{port}"', readings=ENDLESS, **STORES[store])
            board.install({"lib/umqtt_robust": _LIBRARY, "main.py": program.encode()})
            for _ in range(kills):
                board.start()
                board.wait_for("promised", WAIT_LIMIT_S)
                time.sleep(rng.random() * _LONGEST_LIFE_S)  # a random moment for the kill, not a wait
                board.kill()
            program = PROGRAM.format(imports="", link=f'"mqtt://127.0.0.1:{port}"', readings=1, **STORES[store])
            board.install({"main.py": program.encode()})
            board.start()
            board.wait_for("all delivered", WAIT_LIMIT_S)
            board.stop()
        promised = [match.decode() for match in PROMISE.findall(log.read_bytes())]
        collector.finish()
    return count(kills, promised, collector.arrived)


def count(kills: int, promised: list[str], arrived: list[str]) -> Count:
    copies = Counter(arrived)
    more = {reading: n - 1 for reading, n in copies.items() if n > 1}
    disorder = 0
    for qos in ("1", "2"):
        first = list(dict.fromkeys(reading for reading in arrived if reading.endswith("-" + qos)))
        made = [reading for reading in promised if reading.endswith("-" + qos) and reading in copies]
        witnessed = set(promised)
        disorder += [reading for reading in first if reading in witnessed] != made
    return Count(
        kills=kills,
        promised=len(promised),
        arrived=len(arrived),
        lost=len(set(promised) - set(arrived)),
        duplicated=sum(n for reading, n in more.items() if reading.endswith("-2")),
        out_of_order=disorder,
        repeated_at_qos1=sum(n for reading, n in more.items() if reading.endswith("-1")),
    )
