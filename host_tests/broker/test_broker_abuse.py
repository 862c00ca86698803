"""Clients that send what costs the broker much: it is refused, or done in turns, and nobody else pays for it.

What can be counted is asserted here; delays and memory beside mosquitto's are measured by attacks.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_peer import Peer, StartBroker
from umqtt_broker import Listener
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNECT
from umqtt_testkit.mosquitto import Mosquitto


def name_of(levels: int) -> bytes:
    """A topic name with so many levels below its first."""
    return b"/".join([b"a"] * (levels + 1))


DEEP_PACKETS = {
    "PUBLISH": lambda name: encoder.publish(name, b"x", 1, 1),
    "PUBLISH QoS 2": lambda name: encoder.publish(name, b"x", 2, 1),
    "SUBSCRIBE": lambda name: encoder.subscribe(1, (b"a", 0), (name, 0)),
    "SUBSCRIBE shared": lambda name: encoder.subscribe(1, (b"$share/" + name[2:], 0)),
    "UNSUBSCRIBE": lambda name: encoder.unsubscribe(1, name),
    "will": lambda name: encoder.connect(b"deep", will=(name, b"gone", 0, False)),
}


@pytest.mark.parametrize("kind", DEEP_PACKETS)
def test_a_topic_of_too_many_levels_ends_the_connection_as_in_mosquitto(
    start_broker: StartBroker, tmp_path: Path, kind: str
) -> None:
    # Planted: is_too_deep() that is always False.
    broker = start_broker()
    with Mosquitto(tmp_path, "allow_anonymous true") as mosquitto:
        for port in (broker.port, mosquitto.port):
            for levels in (200, 201, 32_000):
                packet = DEEP_PACKETS[kind](name_of(levels))
                with Peer(port) as peer:
                    if packet[0] >> 4 != CONNECT:
                        peer.connect(b"deep")
                    peer.send(packet)
                    if levels == 200:
                        peer.receive()
                    else:
                        assert peer.wait_closed() == [], levels
    assert broker.call(lambda: broker.stats.malformed["too many topic levels"]) == 2


def test_the_limit_of_levels_is_a_setting_and_counts_the_mount_point(start_broker: StartBroker) -> None:
    listener = Listener(port=0, allow_anonymous=True, mount_point=b"m/")
    broker = start_broker(max_topic_levels=3, listeners=(listener,))
    with Peer(broker.port) as peer:
        peer.connect(b"peer")
        peer.publish(name_of(2), b"", 2)
        peer.send(encoder.publish(name_of(3), b"x"))
        assert peer.wait_closed() == []
