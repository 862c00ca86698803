"""kill -9 of either broker, at any moment: a bridge loses nothing, and at QoS 2 repeats nothing."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from bridge_parts import BridgeProcess
from broker_peer import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Closed, Peer, ack_packet, publish_packet
from patience import PATIENCE
from umqtt_testkit.ports import reserved_port

KILLS = 5
# Messages from one kill to the next, about.
BETWEEN = 570
# Messages that the publisher may be ahead of the subscriber.
MOST_UNDER_WAY = 1000
GONE = (Closed, ConnectionError, TimeoutError)

SECTION = """connection bridge
address 127.0.0.1:{port}
remote_clientid bridge
topic a {direction} {qos}
topic probe {direction} 0
keepalive_interval 5
"""


class Publisher(threading.Thread):
    """Publishes rising numbers as a client with a store would: after a crash, what was not acknowledged goes again."""

    def __init__(self, port: Callable[[], int], arrived: Callable[[], int], qos: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._arrived = arrived
        self._qos = qos
        # packet id: number; what awaits PUBCOMP stands in `released`.
        self._sent: dict[int, int] = {}
        self._released: dict[int, int] = {}
        self._is_enough = False
        self.published = 0

    def finish(self) -> int:
        """Publish nothing new, wait until everything is acknowledged, and return the last number."""
        self._is_enough = True
        self.join(PATIENCE)
        assert not self.is_alive(), "not everything was acknowledged"
        return self.published

    def run(self) -> None:
        while not self._is_enough or self._sent or self._released:
            with suppress(*GONE):
                self._publish()
            time.sleep(0.01)  # the broker is being started again

    def _may_publish(self) -> bool:
        return not self._is_enough and self.published < self._arrived() + MOST_UNDER_WAY

    def _publish(self) -> None:
        with Peer(self._port()) as peer:
            peer.connect(b"publisher", clean_session=False)
            for packet_id in self._released:
                peer.send(ack_packet(PUBREL, packet_id))
            for packet_id, number in self._sent.items():
                peer.send(publish_packet(b"a", b"%d" % number, self._qos, packet_id, dup=True))
            while True:
                while len(self._sent) + len(self._released) < 30 and self._may_publish():
                    self.published += 1
                    packet_id = self.published % 65535 + 1
                    self._sent[packet_id] = self.published
                    peer.send(publish_packet(b"a", b"%d" % self.published, self._qos, packet_id))
                if not self._sent and not self._released:
                    if self._is_enough:
                        return
                    time.sleep(0.001)
                    continue
                packet = peer.receive()
                if packet.kind == PUBACK:
                    del self._sent[packet.packet_id]
                elif packet.kind == PUBREC:
                    if packet.packet_id in self._sent:
                        self._released[packet.packet_id] = self._sent.pop(packet.packet_id)
                    peer.send(ack_packet(PUBREL, packet.packet_id))
                elif packet.kind == PUBCOMP:
                    self._released.pop(packet.packet_id, None)


class Subscriber(threading.Thread):
    """Receives what comes, at QoS 2 exactly once; after a crash it goes on with its session."""

    def __init__(self, port: Callable[[], int], qos: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._qos = qos
        self._unreleased: set[int] = set()
        self._is_enough = False
        self._seen: set[int] = set()
        self.numbers: list[int] = []

    def subscribe(self) -> None:
        """Make the session."""
        with Peer(self._port()) as peer:
            peer.connect(b"subscriber", clean_session=False)
            peer.subscribe(b"a", self._qos)

    def wait_for(self, count: int) -> None:
        """Wait until so many numbers have come, however long that takes as long as some come."""
        seen, until = -1, 0.0
        while len(self._seen) < count and self.is_alive():
            if len(self._seen) > seen:
                seen, until = len(self._seen), time.monotonic() + PATIENCE
            if time.monotonic() > until:
                return
            time.sleep(0.001)

    def finish(self, count: int) -> None:
        """Wait until so many numbers have come, or nothing comes any more, and stop."""
        self.wait_for(count)
        self._is_enough = True
        self.join(PATIENCE)

    def run(self) -> None:
        while not self._is_enough:
            with suppress(*GONE):
                self._receive()
            time.sleep(0.01)  # the broker is being started again

    def _receive(self) -> None:
        with Peer(self._port()) as peer:
            assert peer.connect(b"subscriber", clean_session=False)
            while not self._is_enough:
                try:
                    packet = peer.receive(0.2)
                except TimeoutError:
                    continue  # to see whether that was all
                if packet.kind == PUBREL:
                    self._unreleased.discard(packet.packet_id)
                    peer.send(ack_packet(PUBCOMP, packet.packet_id))
                    continue
                assert packet.kind == PUBLISH
                if packet.qos == 1 or packet.packet_id not in self._unreleased:
                    self.numbers.append(int(packet.payload))
                    self._seen.add(int(packet.payload))
                if packet.qos == 2:
                    self._unreleased.add(packet.packet_id)
                peer.send(ack_packet(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("qos", [1, 2])
def test_kill_9_of_either_broker_loses_nothing_and_at_qos_2_repeats_nothing(
    tmp_path: Path, direction: str, qos: int
) -> None:
    seed = 7
    rng = random.Random(seed)
    ports = {"local": reserved_port(), "remote": reserved_port()}
    sections = {"local": SECTION.format(port=ports["remote"], direction=direction, qos=qos), "remote": ""}
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


def wait_for_bridge(source: int, sink: int) -> None:
    """Publish probes at one broker until one arrives at the other: the bridge subscribed to them last."""
    with Peer(source) as sender, Peer(sink) as receiver:
        sender.connect(b"probe sender")
        receiver.connect(b"probe receiver")
        receiver.subscribe(b"probe", 0)
        while True:
            sender.publish(b"probe", b"")
            with suppress(TimeoutError):
                receiver.receive(0.02)
                return
