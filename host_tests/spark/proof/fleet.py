"""What devices publish, from a seed, and where it must end up: readings, and messages that no table may take."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from . import kinds

Identity = tuple[str, str, int]

ELSEWHERE = ("quarantine", "status", "logs")

DUPLICATES = 0.05
_CORRUPT, _CONFLICTING, _STATUS, _LOG = 0.01, 0.005, 0.005, 0.005
_REORDERED, _LATE, _NEVER, _REBOOT = 0.05, 0.01, 0.005, 0.002
# A held reading comes after this many others: reordered by a queue, or late from a device's flash.
_REORDERED_BY, _LATE_BY = (2, 40), (200, 3000)
_RECENT = 200


class Message(NamedTuple):
    """A PUBLISH to send. Different messages have different payloads; a duplicate is equal to its first."""

    topic: str
    payload: bytes


@dataclass
class Published:
    """What must be found in the tables.

    readings: the number in a reading's metric ``n``, by identity.
    dense: the readings with kinds.DENSE_METRICS metrics.
    placed: the device and the number of a reading that its place identifies, by payload: one row for each PUBLISH.
    repeatable: the device and the number of messages that may be stored several times, by payload.
    """

    readings: dict[Identity, int] = field(default_factory=dict)
    dense: set[Identity] = field(default_factory=set)
    placed: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    repeatable: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    # Payloads that belong in other tables, where each PUBLISH of them appears once.
    elsewhere: dict[str, set[bytes]] = field(default_factory=lambda: {name: set() for name in ELSEWHERE})
    # Each payload in the order in which it was first handed to its publisher.
    order: dict[bytes, int] = field(default_factory=dict)
    clockless: int = 0
    duplicates: int = 0


class _Device:
    """One board: its `boot` and `seq` as SYSTEM.md defines them, and whether its clock is set, wrong or unknown."""

    def __init__(self, device_id: str, rng: random.Random) -> None:
        self.device_id = device_id
        self.boots = 0
        self._rng = rng
        self.reboot()

    def reboot(self) -> None:
        self.boots += 1
        self.boot = f"{self.boots}-{self._rng.getrandbits(64):016x}"
        self.seq = -1
        self.began = time.monotonic()
        # Some never learn the time, some learn it after a while, some are set wrong.
        self.clock_from = self._rng.choice([0, 0, 5, 50, 1 << 60])
        self.is_wrong = self._rng.random() < 0.1

    def ts(self) -> int | None:
        if self.seq < self.clock_from:
            return None
        return 946_684_800_000 + self.seq if self.is_wrong else time.time_ns() // 1_000_000


class Fleet:
    """The devices of one publisher. `published` grows as messages are taken.

    shares: the share of readings of each kind of payload; without it all are plain.
    """

    def __init__(self, name: str, seed: object, devices: int = 10, shares: Mapping[str, float] | None = None) -> None:
        self._rng = random.Random(f"{seed}/{name}")
        self._devices = [_Device(f"{name}-{number}", self._rng) for number in range(devices)]
        self._shares = shares or {}
        self._node_name = f"{name}-node"
        self._node = kinds.Node(self._node_name, self._rng)
        self._held: list[tuple[int, Message]] = []
        self._recent: list[Message] = []
        self._last_reading: Message | None = None
        self._taken = 0
        self._rarely = (
            (_CORRUPT, self._corrupt),
            (_CONFLICTING, self._conflicting),
            (_STATUS, self._status),
            (_LOG, self._log),
        )
        self.published = Published()

    def next(self) -> Message:
        """Return the next message."""
        self._taken += 1
        if self._held and self._held[0][0] <= self._taken:
            return self._release()
        chance = self._rng.random()
        if self._recent and chance < DUPLICATES:
            self.published.duplicates += 1
            return self._rng.choice(self._recent)
        for share, make in self._rarely:
            chance -= share
            if self._recent and chance < DUPLICATES:
                return self._new(make())
        while True:
            kind = kinds.choose(self._shares, self._rng.random()) if self._shares else "plain"
            if kind == "node":  # the order of its messages matters
                return self._in_order(self._of_node())
            device = self._rng.choice(self._devices)
            message = self._number(device) if kind == "number" else self._reading(device, kind)
            if message is None:
                continue
            delay = self._rng.random()
            if delay < _LATE:
                self._hold(message, self._rng.randint(*_LATE_BY))
            elif delay < _LATE + _REORDERED:
                self._hold(message, self._rng.randint(*_REORDERED_BY))
            else:
                return self._new(message)

    def rest(self) -> list[Message]:
        """Return the messages still held back, to be published before the count."""
        return [self._release() for _ in range(len(self._held))]

    def roll_call(self) -> None:
        """Let every device send something once more, when :meth:`rest` is called next."""
        for device in self._devices:
            while (message := self._reading(device, "plain")) is None:
                pass
            self._hold(message, 0)
        if "node" in self._shares:
            self._hold(self._of_node(), 0)

    def _reading(self, device: _Device, kind: str) -> Message | None:
        if self._rng.random() < _REBOOT:
            device.reboot()
        device.seq += 1
        if self._rng.random() < _NEVER:
            return None  # dropped on the board: a permanent gap
        number = len(self.published.readings)
        ts = device.ts()
        self.published.clockless += ts is None
        up = round((time.monotonic() - device.began) * 1000)
        record = {"v": 1, "id": device.device_id, "boot": device.boot, "seq": device.seq, "ts": ts, "up": up}
        identity = device.device_id, device.boot, device.seq
        self.published.readings[identity] = number
        if kind == "dense":
            self.published.dense.add(identity)
        return Message(*kinds.encode(kind, record | {"m": {"n": number}}, self._rng))

    def _number(self, device: _Device) -> Message:
        number = self._rng.getrandbits(52)  # no other payload is the same
        message = Message(f"number/{device.device_id}/n", str(number).encode())
        self.published.placed[message.payload] = device.device_id, number
        return message

    def _of_node(self) -> Message:
        number = self._rng.getrandbits(52)
        message = Message(*self._node.next(number))
        self.published.repeatable[message.payload] = f"plant/{self._node_name}", number
        return message

    def _corrupt(self) -> Message:
        device = self._rng.choice(self._devices)
        mark = f"corrupt {device.device_id} {self._taken}"
        payload = self._rng.choice(
            [
                mark.encode(),
                b"\xff\xfe" + mark.encode(),
                f'{{"v":1,"id":"{mark}","boot":"1-a","seq":4'.encode(),
                f'{{"v":1,"id":"{mark}","seq":4,"ts":null,"up":1,"m":{{}}}}'.encode(),
                f'{{"v":9,"id":"{mark}","boot":"1-a","seq":4,"ts":null,"up":1,"m":{{}}}}'.encode(),
                f'{{"v":1,"id":"{mark}","boot":"1-a","seq":-4,"ts":null,"up":1,"m":{{}}}}'.encode(),
                f'["{mark}"]'.encode(),
            ]
        )
        self.published.elsewhere["quarantine"].add(payload)
        return Message(f"fleet/{device.device_id}/telemetry", payload)

    def _conflicting(self) -> Message:
        """Return a published identity with another payload: the one that came first is the reading."""
        if self._last_reading is None:
            return self._status()
        topic, payload = self._last_reading
        payload = payload.replace(b'"rssi": -61', f'"rssi": {-1000 - self._taken}'.encode())
        self.published.elsewhere["quarantine"].add(payload)
        return Message(topic, payload)

    def _status(self) -> Message:
        device = self._rng.choice(self._devices)
        status = {"online": True, "boot": device.boot, "fw": "1.0", "reason": f"reason {self._taken}"}
        message = Message(f"fleet/{device.device_id}/status", json.dumps(status).encode())
        self.published.elsewhere["status"].add(message.payload)
        return message

    def _log(self) -> Message:
        device = self._rng.choice(self._devices)
        device.seq += 1  # dropped on the board, and announced
        text = f"reading dropped {self._taken}"
        record = {"level": "warning", "text": text, "boot": device.boot, "dropped_seq": [[device.seq, device.seq]]}
        message = Message(f"fleet/{device.device_id}/log", json.dumps(record).encode())
        self.published.elsewhere["logs"].add(message.payload)
        return message

    def _hold(self, message: Message, by: int) -> None:
        self._held.append((self._taken + by, message))
        self._held.sort()

    def _release(self) -> Message:
        return self._new(self._held.pop(0)[1])

    def _in_order(self, message: Message) -> Message:
        self.published.order[message.payload] = len(self.published.order)
        return message

    def _new(self, message: Message) -> Message:
        self._in_order(message)
        self._recent = [*self._recent[1 - _RECENT :], message]
        if b'"n": ' in message.payload and b'"rssi": -61' in message.payload:
            self._last_reading = message
        return message
