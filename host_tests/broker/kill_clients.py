"""The clients of the kill -9 runs: they keep their state as a device with flash does, and write down what they see.

What a client knows outlives the broker and every connection, so whatever is lost, doubled or out of order is the
broker's doing.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from broker_peer import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Closed, Packet, Peer, ack_packet, publish_packet

GONE = (Closed, ConnectionError, TimeoutError)

_WINDOW = 40

# Seconds between two looks of a subscriber whether everything has come.
_LOOK_AGAIN = 0.05


class Publisher:
    """Publishes rising numbers to one topic, and after a crash goes on with what was not acknowledged.

    acknowledged, published: the highest number so far. repeated: numbers sent more than once, which alone may come to
    a subscriber twice without DUP, and at QoS 1 only. broken: laws its own session saw broken.
    """

    def __init__(self, name: str, qos: int, *, retain: bool = False) -> None:
        self.name = name
        self.qos = qos
        self.acknowledged = 0
        self.published = 0
        self.repeated: set[int] = set()
        self.broken: list[str] = []
        self._retain = retain
        self._topic_name = f"load/{name}".encode() if not retain else f"state/{name}".encode()
        # By packet identifier, in order: the number, and whether its PUBREC came.
        self._window: dict[int, tuple[int, bool]] = {}
        self._has_session = False

    def run(self, port: int, until: Callable[[], bool]) -> None:
        """Publish until `until()`, then wait for what is under way. Raises one of GONE when the broker goes."""
        with Peer(port) as peer:
            present = peer.connect(b"publisher-" + self.name.encode(), clean_session=False)
            if self._has_session and not present:
                self.broken.append(f"{self.name}: the publisher's session was forgotten")
            self._has_session = True
            for packet_id, (number, is_released) in self._window.items():
                if is_released:
                    peer.send(ack_packet(PUBREL, packet_id))
                else:
                    self.repeated.add(number)
                    self._send(peer, packet_id, number, dup=True)
            while True:
                while len(self._window) < _WINDOW and not until():
                    self.published += 1
                    packet_id = (self.published - 1) % 65535 + 1
                    self._window[packet_id] = (self.published, False)
                    self._send(peer, packet_id, self.published, dup=False)
                if not self._window:
                    return
                self._on_packet(peer, peer.receive())

    def _send(self, peer: Peer, packet_id: int, number: int, *, dup: bool) -> None:
        payload = f"{self.name}:{number}".encode()
        peer.send(publish_packet(self._topic_name, payload, self.qos, packet_id, retain=self._retain, dup=dup))

    def _on_packet(self, peer: Peer, packet: Packet) -> None:
        if packet.packet_id not in self._window:
            self.broken.append(f"{self.name}: packet {packet.kind} for an identifier that is not in use")
            return
        number, _ = self._window[packet.packet_id]
        if packet.kind == PUBREC and self.qos == 2:
            self._window[packet.packet_id] = (number, True)
            peer.send(ack_packet(PUBREL, packet.packet_id))
            return
        assert packet.kind == (PUBACK if self.qos == 1 else PUBCOMP), packet
        del self._window[packet.packet_id]
        if number != self.acknowledged + 1:
            # [MQTT-4.6.0-2]
            self.broken.append(f"{self.name}: {number} was acknowledged after {self.acknowledged}")
        self.acknowledged = max(self.acknowledged, number)


@dataclass
class Subscriber:
    """A persistent session on every topic of the load, at QoS 2. received: (payload, dup) in the order delivered."""

    client_id: bytes
    topic_filters: tuple[bytes, ...] = (b"load/#", b"wills/#")
    received: list[tuple[bytes, bool]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    # Identifiers of QoS 2 messages that are delivered and wait for PUBREL (4.3.3, method B).
    _unreleased: set[int] = field(default_factory=set)
    # Connections left open, so that the next one takes the session over.
    _open: list[Peer] = field(default_factory=list)

    def subscribe(self, port: int) -> None:
        """Make the session."""
        with Peer(port) as peer:
            peer.connect(self.client_id, clean_session=False)
            for topic_filter in self.topic_filters:
                peer.subscribe(topic_filter, 2)
            peer.disconnect()

    def run(self, port: int, count: int | None = None, *, acknowledge_last: bool = True, leave: str = "drop") -> None:
        """Receive `count` messages (None: until the broker is gone), then leave.

        leave: "disconnect"; "drop" the connection; "stay" until the next one takes the session over.
        """
        with contextlib.ExitStack() as stack:
            peer = stack.enter_context(Peer(port))
            self._connect(peer)
            while count is None or count > 0:
                is_late = not acknowledge_last and count is not None and count <= 5
                if self._take(peer, peer.receive(), acknowledge=not is_late) and count is not None:
                    count -= 1
            if leave == "disconnect":
                peer.send(b"\xe0\0")
            elif leave == "stay":
                self._open.append(peer)
                stack.pop_all()

    def drain(self, port: int, is_complete: Callable[[], bool], patience: float) -> None:
        """Receive until `is_complete()`, or until nothing has come for `patience` seconds."""
        with Peer(port) as peer:
            self._connect(peer)
            until = time.monotonic() + patience
            while not is_complete() and time.monotonic() < until:
                # In short waits: the last message may go to another one of its group.
                with contextlib.suppress(TimeoutError):
                    self._take(peer, peer.receive(_LOOK_AGAIN), acknowledge=True)
                    until = time.monotonic() + patience
            # What is still on its way, PUBRELs above all.
            for packet in peer.flush():
                self._take(peer, packet, acknowledge=True)

    def _connect(self, peer: Peer) -> None:
        if not peer.connect(self.client_id, clean_session=False):
            self.broken.append(f"{self.client_id.decode()}: the session was forgotten")
            self._unreleased.clear()
        while self._open:
            self._open.pop().close()

    def _take(self, peer: Peer, packet: Packet, *, acknowledge: bool) -> bool:
        """Process a packet. Returns whether it was a message."""
        if packet.kind == PUBREL:
            self._unreleased.discard(packet.packet_id)
            peer.send(ack_packet(PUBCOMP, packet.packet_id))
            return False
        assert packet.kind == PUBLISH, packet
        if packet.qos < 2 or packet.packet_id not in self._unreleased:
            self.received.append((packet.payload, packet.dup))
        if packet.qos == 2:
            self._unreleased.add(packet.packet_id)
        if acknowledge and packet.qos:
            peer.send(ack_packet(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
        return True


def roam(subscriber: Subscriber, port: int, rng: random.Random) -> None:
    """Come and go, in every manner of going, until the broker is gone."""
    while True:
        leave = rng.choice(["disconnect", "drop", "stay"])
        subscriber.run(port, rng.randint(1, 60), acknowledge_last=rng.random() < 0.5, leave=leave)


def drain_group(members: list[Subscriber], port: int, numbers: set[bytes], patience: float) -> None:
    """Let the members of a group receive together until they have the payloads `numbers`, as drain() does.

    Together, since each takes some of what is missing, and what one has at QoS 2 no other can take.
    """
    missing = numbers - {payload for member in members for payload, _ in member.received}
    threads = [
        threading.Thread(target=_drain_member, args=(member, port, completion(member, missing), patience))
        for member in members
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _drain_member(member: Subscriber, port: int, is_complete: Callable[[], bool], patience: float) -> None:
    with contextlib.suppress(*GONE):
        member.drain(port, is_complete, patience)


def completion(subscriber: Subscriber, missing: set[bytes]) -> Callable[[], bool]:
    """Return a function that tells whether nothing is missing any more; it takes what has come out of `missing`."""
    seen = len(subscriber.received)

    def is_complete() -> bool:
        nonlocal seen
        for payload, _ in subscriber.received[seen:]:
            missing.discard(payload)
        seen = len(subscriber.received)
        return not missing

    return is_complete
