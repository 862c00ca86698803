"""A steady producer, and a subscriber that leaves and returns: nothing lost, in order, nothing twice without DUP.

The producer continues while the subscriber is away. At QoS 2 nothing comes twice at all.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from broker_peer import BrokerThread, Peer
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBREC, PUBREL
from umqtt_testkit.waiting import WAIT_LIMIT_S

MakePeer = Callable[..., Peer]

_TOTAL = 2000 if os.environ.get("UMQTT_FULL_SWEEPS") else 400
_RATE = 10_000.0
_TOPIC = b"stream"


class Producer:
    """Sends numbered messages at a steady rate in its own thread."""

    def __init__(self, peer: Peer, qos: int) -> None:
        self._peer, self._qos = peer, qos
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="producer")
        self.published = self.completed = 0
        self.error: BaseException | None = None
        self._thread.start()

    def wait_for(self, number: int) -> None:
        """Wait until that many messages are published."""
        with self._progress:
            assert self._progress.wait_for(lambda: self.published >= number or self.error, WAIT_LIMIT_S), self.published
        assert self.error is None, self.error

    def join(self) -> None:
        """Wait until everything is acknowledged."""
        self._thread.join(WAIT_LIMIT_S)
        assert self.error is None and self.completed == _TOTAL, (self.error, self.completed)

    def _run(self) -> None:
        pause = threading.Event()
        try:
            while self.completed < _TOTAL:
                if self.published < _TOTAL:
                    with self._progress:
                        self.published += 1
                        self._progress.notify_all()
                    number = self.published
                    self._peer.send(encoder.publish(_TOPIC, b"%d" % number, self._qos, number))
                    pause.wait(1 / _RATE)
                while self.published - self.completed >= (20 if self.published < _TOTAL else 1):
                    self._receive()
        except BaseException as error:
            with self._progress:
                self.error = error
                self._progress.notify_all()
            raise

    def _receive(self) -> None:
        packet = self._peer.receive()
        if packet.kind == PUBREC:
            self._peer.send(encoder.acknowledgement(PUBREL, packet.packet_id))
            return
        assert packet.kind == (PUBACK if self._qos == 1 else PUBCOMP)
        self.completed += 1
        assert packet.packet_id == self.completed, "acknowledged out of order"


@dataclass
class Subscriber:
    """Receives as section 4.3 prescribes, and records what it would have passed to an application.

    withheld: packets not acknowledged yet, the oldest first, while it holds some back.
    """

    connect: Callable[[], Peer]
    qos: int
    peer: Peer = field(init=False)
    handed_on: list[int] = field(default_factory=list)
    repeated: list[tuple[int, bool]] = field(default_factory=list)
    known_ids: set[int] = field(default_factory=set)
    withheld: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.peer = self.connect()

    def receive_to(self, number: int, keep_back: int = 0) -> None:
        """Receive until `number` is there; leave the last `keep_back` messages unacknowledged."""
        while not self.handed_on or self.handed_on[-1] < number:
            packet = self.peer.receive()
            if packet.kind == PUBREL:
                self.known_ids.discard(packet.packet_id)
                self.peer.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
                continue
            assert packet.qos == self.qos
            payload = int(packet.payload)
            if packet.packet_id in self.known_ids:
                assert packet.dup, "a packet identifier was used again before PUBREL"
            elif self.handed_on and payload <= self.handed_on[-1]:
                self.repeated.append((payload, packet.dup))
            else:
                self.handed_on.append(payload)
            if self.qos == 2:
                self.known_ids.add(packet.packet_id)
            self.withheld.append(packet.packet_id)
            while len(self.withheld) > keep_back:
                self.peer.send(encoder.acknowledgement(PUBACK if self.qos == 1 else PUBREC, self.withheld.pop(0)))

    def leave(self, *, politely: bool) -> None:
        """Leave, with DISCONNECT or by dropping the connection; the acknowledgements reach the broker first."""
        if politely:
            self.peer.disconnect()
        else:
            self.peer.socket.shutdown(socket.SHUT_WR)
            self.peer.wait_closed()
        self.withheld.clear()

    def come_back(self) -> None:
        """Connect to the same session again."""
        self.peer = self.connect()
        assert self.peer.session_present

    def check(self, unacknowledged: int) -> None:
        """Check that everything came in order, and that repetitions were unacknowledged and marked with DUP."""
        assert self.handed_on == list(range(1, _TOTAL + 1))
        assert all(dup for _, dup in self.repeated), self.repeated
        assert len(self.repeated) <= (unacknowledged if self.qos == 1 else 0), self.repeated


def begin(peer: MakePeer, qos: int) -> tuple[Producer, Subscriber]:
    subscriber = Subscriber(lambda: peer(b"subscriber", clean_session=False), qos)
    assert subscriber.peer.subscribe(_TOPIC, qos) == qos
    return Producer(peer(b"producer"), qos), subscriber


@pytest.mark.parametrize("keep_back", [0, 20], ids=["all acknowledged", "20 unacknowledged"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_subscriber_that_leaves_for_a_quarter_of_the_messages_misses_none(
    peer: MakePeer, broker: BrokerThread, qos: int, keep_back: int
) -> None:
    producer, subscriber = begin(peer, qos)
    subscriber.receive_to(_TOTAL // 4, keep_back)
    subscriber.leave(politely=not keep_back)
    producer.wait_for(_TOTAL // 2)
    subscriber.come_back()
    subscriber.receive_to(_TOTAL)
    producer.join()
    subscriber.check(keep_back)
    subscriber.peer.flush()
    assert broker.call(lambda: broker.stats.queued) == 0


@pytest.mark.parametrize("keep_back", [0, 7], ids=["all acknowledged", "7 unacknowledged"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_subscriber_that_leaves_and_returns_every_50_messages_misses_nothing(
    peer: MakePeer, broker: BrokerThread, qos: int, keep_back: int
) -> None:
    producer, subscriber = begin(peer, qos)
    leaves = 0
    for number in range(50, _TOTAL, 100):
        subscriber.receive_to(number, keep_back)
        subscriber.leave(politely=leaves % 2 == 0)
        producer.wait_for(number + 50)
        subscriber.come_back()
        leaves += 1
    subscriber.receive_to(_TOTAL)
    producer.join()
    subscriber.check(keep_back * leaves)
    subscriber.peer.flush()
    assert broker.call(lambda: broker.stats.queued) == 0
