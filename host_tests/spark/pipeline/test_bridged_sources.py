"""What Home Assistant's Mosquitto add-on bridges, and LoRaWAN servers publish, is collected and decoded as rows."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

from test_decoders import sent
from test_systems import found, included, messages_of, payload_of
from umqtt_testkit.mosquitto import Mosquitto, require_mosquitto
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import eventually

from spark_ingest.collector.collector import Collector, CollectorConfig
from spark_ingest.pipeline.decode.messages import part
from spark_ingest.spool.messages import messages
from spark_ingest.spool.view import SpoolView
from spark_ingest.spool.writer import Spool
from umqtt_robust import Client

# What the page has as the file of the add-on, but for address and login.
_PAGE = Path(__file__).resolve().parents[3] / "docs" / "clouds.md"
_FILTERS = ("fleet/+/telemetry", "v3/+/devices/+/up", "application/+/device/+/event/up")


def _bridge(port: int) -> list[str]:
    text = _PAGE.read_text().partition("connection umqtt\n")[2].partition("```")[0]
    lines = [line for line in text.splitlines() if not line.startswith(("address", "remote_", "bridge_cafile"))]
    return ["connection umqtt", f"address 127.0.0.1:{port}", "restart_timeout 1 2", *lines]


def test_what_the_add_on_bridges_is_collected_over_cut_links_and_decoded(tmp_path: Path):
    """Planted: the bridge of the page has a clean session; it sends at QoS 0."""
    require_mosquitto()
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    uplinks = [message for system in ("ttn", "chirpstack") for message in messages_of(system) if message.get("rows")]
    lorawan = [message for message in uplinks if message["topic"].endswith("/up")]
    with (
        Mosquitto(tmp_path, "allow_anonymous true", "max_queued_messages 0") as central,
        FaultProxy(("127.0.0.1", central.port), seed=seed) as line,
        Mosquitto(tmp_path, "allow_anonymous true", "max_queued_messages 0", *_bridge(line.port)) as home,
    ):
        config = CollectorConfig(
            f"mqtt://127.0.0.1:{central.port}", tmp_path, "north", topic_filters=_FILTERS, longest_delay_s=1.0
        )
        config.check()
        collector = Collector(config, Spool(config.folder))
        thread = threading.Thread(target=collector.run)
        thread.start()
        try:
            eventually(lambda: collector.counters.subscribed)
            eventually(lambda: line.counters.accepted >= 1)
            client = Client("pump-7", f"mqtt://127.0.0.1:{home.port}", clean_session=False)
            for number in range(200):
                client.publish("fleet/pump-7/telemetry", json.dumps({"seq": number}), qos=1)
                if number % 50 == 25:
                    line.cut(reset=chance.random() < 0.5)
                eventually(lambda: client.poll(20) is not None and client.pending < 8)
            for message in lorawan:
                client.publish(message["topic"], payload_of(message), qos=1)
            eventually(lambda: client.poll(20) is not None and not client.pending)
            wanted = 200 + len(lorawan)
            eventually(lambda: len(_taken(config)) >= wanted, lambda: f"seed {seed}: {len(_taken(config))} of {wanted}")
        finally:
            collector.stop()
            thread.join()
    taken = _taken(config)
    fleet = {json.loads(payload)["seq"] for topic, payload in taken if topic.startswith("fleet/")}
    assert fleet == set(range(200)), f"seed {seed}"
    for message in lorawan:
        parts = part(
            sent(*[one for one in taken if one == (message["topic"], payload_of(message))]),
            included(tmp_path, "ttn", "chirpstack"),
        )
        assert [row["metrics"] for row in found(parts)] == [row["metrics"] for row in message["rows"]]


def _taken(config: CollectorConfig) -> set[tuple[str, bytes]]:
    return {(message.topic, message.payload) for message in messages(SpoolView(config.folder))}
