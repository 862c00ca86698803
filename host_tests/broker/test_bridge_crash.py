"""kill -9 of either broker, at any moment: a bridge loses nothing, and at QoS 2 repeats nothing.

UMQTT_FULL_SWEEPS=1 kills more often. Planted: Store.after_commit() releases its packets at once.
"""

import os
import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from bridge_parts import BridgeProcess, RemoteScript, next_publish
from broker_peer import Closed, Peer
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
KILLS = 5 if FULL else 2
# Approximate number of messages between two kills.
BETWEEN = 570 if FULL else 200
# Messages by which the publisher may be ahead of the subscriber.
MOST_UNDER_WAY = 1000
GONE = (Closed, ConnectionError, TimeoutError)

SECTION = """connection bridge
address 127.0.0.1:{port}
remote_clientid bridge
topic a {direction} {qos}
topic probe {direction} 0
bridge_protocol_version {version}
keepalive_interval 5
"""


def connected(port: int) -> Peer:
    """Connect to a broker that may just be restarting."""

    def attempt() -> Peer | None:
        with suppress(ConnectionError):
            return Peer(port)
        return None

    return eventually(attempt)


class Publisher(threading.Thread):
    """Publishes rising numbers as a client with a store does: after a crash, it repeats the unacknowledged ones."""

    def __init__(self, port: Callable[[], int], arrived: Callable[[], int], qos: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._arrived = arrived
        self._qos = qos
        # packet id: number; numbers that await PUBCOMP are in `released`.
        self._sent: dict[int, int] = {}
        self._released: dict[int, int] = {}
        self._is_enough = False
        self.published = 0

    def finish(self) -> int:
        """Publish nothing new, wait until everything is acknowledged, and return the last number."""
        self._is_enough = True
        self.join(WAIT_LIMIT_S)
        assert not self.is_alive(), "not everything was acknowledged"
        return self.published

    def run(self) -> None:
        while not self._is_enough or self._sent or self._released:
            with suppress(*GONE):
                self._publish()

    def _may_publish(self) -> bool:
        return not self._is_enough and self.published < self._arrived() + MOST_UNDER_WAY

    def _publish(self) -> None:
        with connected(self._port()) as peer:
            peer.connect(b"publisher", clean_session=False)
            for packet_id in self._released:
                peer.send(encoder.acknowledgement(PUBREL, packet_id))
            for packet_id, number in self._sent.items():
                peer.send(encoder.publish(b"a", b"%d" % number, self._qos, packet_id, dup=True))
            while True:
                while len(self._sent) + len(self._released) < 30 and self._may_publish():
                    self.published += 1
                    packet_id = self.published % 65535 + 1
                    self._sent[packet_id] = self.published
                    peer.send(encoder.publish(b"a", b"%d" % self.published, self._qos, packet_id))
                if not self._sent and not self._released:
                    if self._is_enough:
                        return
                    eventually(lambda: self._is_enough or self._may_publish())
                    continue
                packet = peer.receive()
                if packet.kind == PUBACK:
                    del self._sent[packet.packet_id]
                elif packet.kind == PUBREC:
                    if packet.packet_id in self._sent:
                        self._released[packet.packet_id] = self._sent.pop(packet.packet_id)
                    peer.send(encoder.acknowledgement(PUBREL, packet.packet_id))
                elif packet.kind == PUBCOMP:
                    self._released.pop(packet.packet_id, None)


class Subscriber(threading.Thread):
    """Receives messages, at QoS 2 exactly once; after a crash it resumes its session."""

    def __init__(self, port: Callable[[], int], qos: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._qos = qos
        self._unreleased: set[int] = set()
        self._is_enough = False
        self._seen: set[int] = set()
        self._peer: Peer | None = None
        self.numbers: list[int] = []

    def subscribe(self) -> None:
        """Create the session."""
        with Peer(self._port()) as peer:
            peer.connect(b"subscriber", clean_session=False)
            peer.subscribe(b"a", self._qos)

    def wait_for(self, count: int) -> None:
        """Wait until that many numbers have come."""
        eventually(lambda: len(self._seen) >= count or not self.is_alive(), lambda: f"{count}, {len(self._seen)} came")

    def finish(self, count: int) -> None:
        """Wait until that many numbers have come, and stop."""
        self.wait_for(count)
        self._is_enough = True
        if self._peer is not None:
            with suppress(OSError):
                self._peer.socket.shutdown(socket.SHUT_RDWR)
        self.join(WAIT_LIMIT_S)
        assert not self.is_alive()

    def run(self) -> None:
        while not self._is_enough:
            with suppress(*GONE):
                self._receive()

    def _receive(self) -> None:
        with connected(self._port()) as peer:
            assert peer.connect(b"subscriber", clean_session=False)
            self._peer = peer
            while not self._is_enough:
                packet = peer.receive()
                if packet.kind == PUBREL:
                    self._unreleased.discard(packet.packet_id)
                    peer.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
                    continue
                assert packet.kind == PUBLISH
                if packet.qos == 1 or packet.packet_id not in self._unreleased:
                    self.numbers.append(int(packet.payload))
                    self._seen.add(int(packet.payload))
                if packet.qos == 2:
                    self._unreleased.add(packet.packet_id)
                peer.send(encoder.acknowledgement(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))


CASES = [
    (direction, qos, version)
    for direction in ("out", "in")
    for qos in (1, 2)
    for version in ("mqttv311", "mqttv50")
    # Each version in each direction and at each QoS, not in every combination.
    if FULL or (version == "mqttv50") == ((direction == "out") == (qos == 2))
]


@pytest.mark.parametrize(("direction", "qos", "version"), CASES)
def test_kill_9_of_either_broker_loses_nothing_and_at_qos_2_repeats_nothing(
    tmp_path: Path, direction: str, qos: int, version: str
) -> None:
    seed = 7
    rng = random.Random(seed)
    ports = {"local": reserved_port(), "remote": reserved_port()}
    sections = {"local": SECTION.format(port=ports["remote"], direction=direction, qos=qos, version=version)}
    sections["remote"] = ""
    for name, section in sections.items():
        (tmp_path / f"{name}.conf").write_text(section)
    processes: dict[str, BridgeProcess] = {}

    def start(name: str) -> None:
        processes[name] = BridgeProcess(tmp_path / f"{name}.db", tmp_path / f"{name}.conf", ports[name])

    try:
        start("remote")
        start("local")
        source, sink = ("local", "remote") if direction == "out" else ("remote", "local")
        subscriber = Subscriber(lambda: ports[sink], qos)
        publisher = Publisher(lambda: ports[source], lambda: len(subscriber.numbers), qos)
        subscriber.subscribe()
        wait_for_bridge(ports[source], ports[sink])
        subscriber.start()
        publisher.start()
        for kill in range(KILLS):
            subscriber.wait_for((kill + 1) * BETWEEN + rng.randint(0, 200))
            assert subscriber.is_alive() and publisher.is_alive()
            victim = ("local", "remote")[kill % 2]
            processes[victim].kill()
            start(victim)
        subscriber.wait_for((KILLS + 1) * BETWEEN)
        last = publisher.finish()
        subscriber.finish(last)
        missing = set(range(1, last + 1)) - set(subscriber.numbers)
        assert not missing, (seed, len(missing), sorted(missing)[:10])
        if qos == 2:
            twice = len(subscriber.numbers) - last
            assert not twice, (seed, f"{twice} came twice")
        assert list(dict.fromkeys(subscriber.numbers)) == list(range(1, last + 1)), (seed, "out of order")
    finally:
        for process in processes.values():
            process.kill()


def test_a_message_whose_link_ended_before_its_pubrec_is_published_again_after_a_kill(tmp_path: Path) -> None:
    # Planted: a mark that the bridge's client gives the message is taken for its PUBREC.
    with RemoteScript() as remote:
        section = SECTION.format(port=remote.port, direction="out", qos=2, version="mqttv311")
        (tmp_path / "bridge.conf").write_text(section)
        for life in range(2):
            process = BridgeProcess(tmp_path / "broker.db", tmp_path / "bridge.conf")
            try:
                far = remote.accept(session_present=life > 0)
                if not life:
                    with Peer(process.port) as publisher:
                        publisher.connect(b"publisher")
                        publisher.publish(b"a", b"precious", 2)
                packet = next_publish(far)
                assert (packet.kind, packet.payload) == (PUBLISH, b"precious")
                far.close()
                remote.accept(session_present=True).close()  # what the end of the link has changed is on disk by now
            finally:
                process.kill()


def wait_for_bridge(source: int, sink: int) -> None:
    """Publish probes at one broker until one arrives at the other, which proves the bridge's last subscription."""
    with Peer(source) as sender, Peer(sink) as receiver:
        sender.connect(b"probe sender")
        receiver.connect(b"probe receiver")
        receiver.subscribe(b"probe", 0)
        eventually(lambda: sender.publish(b"probe", b"") or receiver.flush())
