"""The clients of the kill -9 runs: they keep their state as a device with flash does, and record what they see.

A client's state outlives the broker and every connection, so anything lost, doubled or out of order is the broker's
fault.
"""

from __future__ import annotations

import contextlib
import random
import select
from collections.abc import Callable
from dataclasses import dataclass, field

from broker_peer import Closed, Packet, Peer
from law_peer import has_properties, law_peer
from peer5 import Packet5
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from umqtt_testkit.waiting import WAIT_LIMIT_S

GONE = (Closed, ConnectionError, TimeoutError)

_WINDOW = 40

# Payload of the last message: once it has come, nothing is missing.
LAST = b"last"


class Publisher:
    """Publishes rising numbers to one topic, and after a crash continues with the unacknowledged ones.

    acknowledged, published: the highest number so far. repeated: numbers sent more than once; only these may come to
    a subscriber twice without DUP, and at QoS 1 only. broken: laws that its own session saw broken.
    """

    def __init__(self, name: str, qos: int, protocol_level: int = 4, *, retain: bool = False) -> None:
        self.name = name
        self.qos = qos
        self.protocol_level = protocol_level
        self.acknowledged = 0
        self.published = 0
        self.repeated: set[int] = set()
        self.broken: list[str] = []
        self._retain = retain
        self._topic_name = f"load/{name}".encode() if not retain else f"state/{name}".encode()
        # By packet identifier, in order: the number, and whether its PUBREC has come.
        self._window: dict[int, tuple[int, bool]] = {}
        self._has_session = False

    def run(self, port: int, until: Callable[[], bool]) -> None:
        """Publish until `until()`, then wait for messages in flight. Raises one of GONE when the broker goes."""
        with law_peer(port, self.protocol_level) as peer:
            present = peer.connect(b"publisher-" + self.name.encode(), clean_session=False)
            if self._has_session and not present:
                self.broken.append(f"{self.name}: the publisher's session was forgotten")
            self._has_session = True
            for packet_id, (number, is_released) in self._window.items():
                if is_released:
                    peer.send(encoder.acknowledgement(PUBREL, packet_id))
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
        peer.send(peer.publish_packet(self._topic_name, payload, self.qos, packet_id, retain=self._retain, dup=dup))

    def _on_packet(self, peer: Peer, packet: Packet | Packet5) -> None:
        if packet.packet_id not in self._window:
            self.broken.append(f"{self.name}: packet {packet.kind} for an identifier that is not in use")
            return
        if isinstance(packet, Packet5) and packet.kind in (PUBACK, PUBREC) and packet.reason_codes[0] >= 0x80:
            self.broken.append(f"{self.name}: reason code {packet.reason_codes.hex()}")
        number, _ = self._window[packet.packet_id]
        if packet.kind == PUBREC and self.qos == 2:
            self._window[packet.packet_id] = (number, True)
            peer.send(encoder.acknowledgement(PUBREL, packet.packet_id))
            return
        assert packet.kind == (PUBACK if self.qos == 1 else PUBCOMP), packet
        del self._window[packet.packet_id]
        if number != self.acknowledged + 1:
            # [MQTT-4.6.0-2]
            self.broken.append(f"{self.name}: {number} was acknowledged after {self.acknowledged}")
        self.acknowledged = max(self.acknowledged, number)


@dataclass
class Subscriber:
    """A persistent session on every topic of the load, at QoS 2.

    received: (payload, dup) in the order of delivery. has_last: LAST is among them.
    """

    client_id: bytes
    topic_filters: tuple[bytes, ...] = (b"load/#", b"wills/#")
    protocol_level: int = 4
    received: list[tuple[bytes, bool]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    has_last: bool = False
    # Identifiers of QoS 2 messages that are delivered and wait for PUBREL (4.3.3, method B).
    _unreleased: set[int] = field(default_factory=set)
    # Connections left open, so that the next one takes over the session.
    _open: list[Peer] = field(default_factory=list)

    def subscribe(self, port: int) -> None:
        """Create the session."""
        with law_peer(port, self.protocol_level) as peer:
            peer.connect(self.client_id, clean_session=False)
            for topic_filter in self.topic_filters:
                peer.subscribe(topic_filter, 2)
            peer.disconnect()

    def run(self, port: int, count: int | None = None, *, acknowledge_last: bool = True, leave: str = "drop") -> None:
        """Receive `count` messages (None: until the broker is gone), then leave.

        leave: "disconnect"; "drop" the connection; "stay" until the next one takes over the session.
        """
        with contextlib.ExitStack() as stack:
            peer = stack.enter_context(law_peer(port, self.protocol_level))
            self.go_on(peer)
            while count is None or count > 0:
                is_late = not acknowledge_last and count is not None and count <= 5
                if self.take(peer, peer.receive(), acknowledge=not is_late) and count is not None:
                    count -= 1
            if leave == "disconnect":
                peer.send(encoder.disconnect())
            elif leave == "stay":
                self._open.append(peer)
                stack.pop_all()

    def go_on(self, peer: Peer) -> None:
        """Connect, replacing the connections left open."""
        if not peer.connect(self.client_id, clean_session=False):
            self.broken.append(f"{self.client_id.decode()}: the session was forgotten")
            self._unreleased.clear()
        while self._open:
            self._open.pop().close()

    def take(self, peer: Peer, packet: Packet | Packet5, *, acknowledge: bool) -> bool:
        """Process a packet. Returns whether it was a message."""
        if packet.kind == PUBREL:
            self._unreleased.discard(packet.packet_id)
            peer.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
            return False
        assert packet.kind == PUBLISH, packet
        if isinstance(packet, Packet5) and not has_properties(packet):
            text = f"{self.client_id.decode()}: {packet.payload!r} has lost properties, it has {packet.properties}"
            self.broken.append(text)
        if packet.qos < 2 or packet.packet_id not in self._unreleased:
            self.received.append((packet.payload, packet.dup))
            self.has_last |= packet.payload == LAST
        if packet.qos == 2:
            self._unreleased.add(packet.packet_id)
        if acknowledge and packet.qos:
            peer.send(encoder.acknowledgement(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
        return True


def roam(subscriber: Subscriber, port: int, rng: random.Random) -> None:
    """Come and go, in all ways of leaving, until the broker is gone."""
    while True:
        leave = rng.choice(["disconnect", "drop", "stay"])
        subscriber.run(port, rng.randint(1, 60), acknowledge_last=rng.random() < 0.5, leave=leave)


def drain(members: list[Subscriber], port: int, topic_name: bytes, silence_s: float = WAIT_LIMIT_S) -> None:
    """Let the members of a group receive together until they have everything; a session is a group of one.

    They do so together because each takes some of the missing messages, and no other can take a message that one has
    at QoS 2. The last message, to a topic name that they get, marks the end. Without it, missing messages count as
    lost once nothing has come for `silence_s`.
    """
    protocol_level = members[0].protocol_level
    with law_peer(port, protocol_level) as publisher:
        publisher.connect(b"last of all")
        publisher.publish(topic_name, LAST, 2)
    with contextlib.suppress(*GONE), contextlib.ExitStack() as stack:
        peers = {stack.enter_context(law_peer(port, protocol_level)): member for member in members}
        for peer, member in peers.items():
            member.go_on(peer)
            for packet in peer.received_already():  # packets that came with CONNACK, perhaps all there are
                member.take(peer, packet, acknowledge=True)
        while not any(member.has_last for member in members):
            ready, _, _ = select.select([peer.socket for peer in peers], [], [], silence_s)
            if not ready:
                return
            for peer, member in peers.items():
                if peer.socket in ready:
                    for packet in peer.receive_all():
                        member.take(peer, packet, acknowledge=True)
        # Packets still on the way, mainly PUBRELs.
        for peer, member in peers.items():
            for packet in peer.flush():
                member.take(peer, packet, acknowledge=True)
