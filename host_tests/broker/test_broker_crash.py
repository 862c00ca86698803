"""kill -9 at any moment: everything acknowledged is there, in order."""

import contextlib
import random
import threading
from pathlib import Path

import pytest
from broker_peer import PUBACK, PUBCOMP, PUBREC, PUBREL, BrokerProcess, Closed, Peer, ack_packet, publish_packet

CYCLES = 4
GONE = (Closed, ConnectionError, TimeoutError)


class Publisher:
    """Publishes rising numbers with a window, and after a crash continues with what was not acknowledged."""

    def __init__(self, qos: int) -> None:
        self.qos = qos
        self.acknowledged = 0
        self.published = 0
        # Numbers that went out more than once: only these may arrive twice without DUP.
        self.repeated: set[int] = set()

    def run(self, port: int, last: int | None = None) -> None:
        """Publish until the broker is gone, or to `last`."""
        with Peer(port) as peer:
            peer.connect(b"publisher", clean_session=False)
            awaited: dict[int, int] = {}
            waiting_ids = list(range(self.acknowledged + 1, self.published + 1))
            self.repeated.update(waiting_ids)
            next_number = self.acknowledged + 1
            while last is None or self.acknowledged < last:
                while len(awaited) < 40 and (last is None or next_number <= last):
                    packet_id = (next_number - 1) % 65535 + 1
                    again = next_number <= self.published
                    self.published = max(self.published, next_number)
                    awaited[packet_id] = next_number
                    peer.send(publish_packet(b"load", b"%d" % next_number, self.qos, packet_id, dup=again))
                    next_number += 1
                packet = peer.receive()
                if packet.kind == PUBREC:
                    peer.send(ack_packet(PUBREL, packet.packet_id))
                else:
                    assert packet.kind == (PUBACK if self.qos == 1 else PUBCOMP)
                    number = awaited.pop(packet.packet_id)
                    assert number == self.acknowledged + 1
                    self.acknowledged = number


def consume(port: int, received: list[tuple[int, bool]], stop_after: int, acknowledge_all: bool) -> None:
    """Receive up to `stop_after` messages, leave the last few unacknowledged, and drop the connection."""
    with Peer(port) as peer:
        assert peer.connect(b"subscriber", clean_session=False)
        for left in range(stop_after, 0, -1):
            message = peer.receive_message(acknowledge=acknowledge_all or left > 5)
            received.append((int(message.payload), message.dup))


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", [1])
def test_everything_acknowledged_survives_kill_9_in_order(tmp_path: Path, qos: int, seed: int) -> None:
    rng = random.Random(seed)
    store = tmp_path / "broker.db"
    publisher = Publisher(qos)
    received: list[tuple[int, bool]] = []
    with BrokerProcess(store) as broker, Peer(broker.port) as subscriber:
        subscriber.connect(b"subscriber", clean_session=False)
        subscriber.subscribe(b"load", 1)
        broker.kill()
    for cycle in range(CYCLES):
        with BrokerProcess(store) as broker:
            threads = [threading.Thread(target=run_until_gone, args=(publisher.run, broker.port))]
            # The subscriber is there when the broker dies, or left before, or never came.
            presence = rng.choice(["killed", "left", "absent"]) if cycle else "killed"
            if presence != "absent":
                count = 10**9 if presence == "killed" else rng.randint(1, 200)
                threads.append(
                    threading.Thread(target=run_until_gone, args=(consume, broker.port, received, count, False))
                )
            before = publisher.acknowledged
            for thread in threads:
                thread.start()
            wanted = before + rng.randint(100, 1500)
            while publisher.acknowledged < wanted and threads[0].is_alive():
                threads[0].join(0.001)
            broker.kill()
            for thread in threads:
                thread.join(10)
            assert publisher.acknowledged >= wanted, "the publisher was stopped by something else than the kill"
    with BrokerProcess(store) as broker:
        publisher.run(broker.port, publisher.published + 50)
        missing = publisher.published - len({number for number, _ in received})
        with Peer(broker.port) as peer:
            assert peer.connect(b"subscriber", clean_session=False)
            seen = {number for number, _ in received}
            while len(seen) < publisher.published:
                message = peer.receive_message()
                received.append((int(message.payload), message.dup))
                seen.add(int(message.payload))
        assert broker.stop() == (0, "")
    highest = 0
    for number, dup in received:
        if number == highest + 1:
            highest = number
        else:
            # Only a message already seen may come again, and only if it says so or was published again.
            assert number <= highest, (seed, f"{number} came before {highest + 1}", missing)
            assert dup or number in publisher.repeated, (seed, number)
    assert highest == publisher.published


def run_until_gone(function, *arguments) -> None:
    """Run a peer until its broker is killed."""
    with contextlib.suppress(*GONE):
        function(*arguments)
