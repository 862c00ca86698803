"""mosquitto's own bridge beside the broker, as docs/migrate.md describes it."""

from __future__ import annotations

from pathlib import Path

from broker_peer import Peer, StartBroker
from umqtt_testkit.mosquitto import Mosquitto


def test_a_bridge_of_mosquitto_in_mqtt_5_carries_both_ways_once_and_keeps_the_retain_flag(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """Planted: no-local is ignored, so what the bridge brings goes back to it."""
    broker = start_broker()
    lines = ("connection up", f"address 127.0.0.1:{broker.port}", "topic a/# both 1", "notifications false")
    with (
        Mosquitto(tmp_path, "allow_anonymous true", *lines, "bridge_protocol_version mqttv50") as mosquitto,
        Peer(broker.port) as here,
        Peer(mosquitto.port) as there,
        Peer(broker.port) as down,
        Peer(mosquitto.port) as up,
    ):
        broker.wait_until(lambda: broker.stats.subscriptions == 1)
        for peer, name in ((here, b"here"), (there, b"there")):
            peer.connect(name)
            peer.subscribe(b"a/#", 1)
        up.connect(b"up")
        down.connect(b"down")
        # What came back would come before the last one.
        up.publish(b"a/1", b"up", 1, retain=True)
        down.publish(b"a/2", b"down", 1)
        up.publish(b"a/3", b"last", 1)
        for peer in (here, there):
            payloads = set()
            while (payload := peer.receive_message().payload) != b"last":
                assert payload not in payloads
                payloads.add(payload)
            assert payloads <= {b"up", b"down"}
        broker.wait_until(lambda: broker.stats.retained == 1)
