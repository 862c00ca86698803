"""The collector and the client at each cloud: with its preset alone, over links that are cut at random, all arrives."""

from __future__ import annotations

import json
import random
import ssl
import threading
from pathlib import Path

import pytest
from broker_here import broker_here
from test_spool import payloads_in
from umqtt_testkit.cloud_broker import CloudBroker
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import eventually

from spark_ingest.collector.collector import Collector, CollectorConfig
from spark_ingest.collector.command import main
from spark_ingest.spool.writer import Spool
from umqtt_cli.clouds import CLOUDS
from umqtt_robust import Client

# It bans for a minute who sends more than 30 in a minute, and each of six cuts repeats what is pending.
_COUNT, _PENDING = {"adafruitio": 12}, {"adafruitio": 2}
# Of a client that is not paced, and of links that are made anew at once.
_LET_BE = {
    "one CONNECT a second for a client id", "at most 10 messages a second",
    "at most 100 messages a second on a connection", "MQTT 3.1.1",
}  # fmt: skip


@pytest.mark.parametrize("name", ["aws", "adafruitio", "hivemq", "emqx"])
def test_client_and_collector_pass_at_each_cloud_over_cut_links(name: str, tmp_path: Path, monkeypatch):
    """Planted: the filters of the cloud are not used."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    count = _COUNT.get(name, 120)
    with (
        broker_here() as upstream,
        CloudBroker(name, upstream=upstream) as cloud,
        FaultProxy(("127.0.0.1", cloud.port), seed=seed) as proxy,
    ):
        monkeypatch.setenv("UMQTT_PASSWORD", cloud.secret)
        for _ in range(6):
            proxy.cut_next(chance.randrange(60, 3000), chance.choice(("up", "down")), reset=chance.random() < 0.5)
        config = CollectorConfig(
            proxy.url, tmp_path, "north", cloud=name, username=cloud.user or None, longest_delay_s=1.0
        )
        config.check()
        collector = Collector(config, Spool(config.folder))
        thread = threading.Thread(target=collector.run)
        thread.start()
        login = {"username": cloud.user, "password": cloud.secret} if cloud.user else {}
        # It waits a second for each new link: after six cuts in a row it would be more than a minute.
        client = Client("pump-7", proxy.url, clean_session=False, random=lambda most: min(most - 1, 1200), **login)
        topic = "ada/feeds/pump-7" if name == "adafruitio" else "fleet/pump-7/telemetry"
        sent = 0
        try:
            eventually(lambda: collector.counters.subscribed)

            def arrived() -> int:
                nonlocal sent
                while sent < count and client.pending < _PENDING.get(name, 8):
                    client.publish(topic, b'{"seq":%d}' % sent, qos=1)
                    sent += 1
                client.poll(20)
                return len(_seqs(config))

            so_far = 0
            while so_far < count:  # a cloud lets few through in a minute, and each cut costs a wait
                told = f"seed {seed}: {so_far} of {count}"
                so_far = eventually(lambda before=so_far: (now := arrived()) > before and now, told)
        finally:
            collector.stop()
            thread.join()
        assert _seqs(config) == set(range(count)), f"seed {seed}"
        assert not {rule.text for rule, _ in cloud.refusals} - _LET_BE


def _seqs(config: CollectorConfig) -> set[int]:
    return {json.loads(payload)["seq"] for payload in payloads_in(config.folder)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cloud", "azure"], "speaks AMQP and the protocol of Kafka"),
        (["--cloud", "thingsboard"], "its own commands alone"),
        (["--cloud", "aws", "--keep-alive", "20"], "AWS IoT Core: --keep-alive 20 is not in 30..1200"),
        (["--cloud", "emqx", *(f"--topic=t/{n}" for n in range(11))], "at most 10 subscriptions"),
    ],
)
def test_what_a_cloud_would_refuse_is_said_before(arguments: list[str], words: str, tmp_path: Path, capsys):
    """Planted: the cloud is not checked."""
    assert main(["--broker", "mqtts://a.example", "--spool", str(tmp_path), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_port_443_has_the_protocols_of_the_cloud_and_8883_none(tmp_path: Path, monkeypatch):
    """Planted: ALPN on every port."""
    offered = []
    monkeypatch.setattr(ssl.SSLContext, "set_alpn_protocols", lambda _context, names: offered.append(names))
    for port in (443, 8883):
        CollectorConfig(f"mqtts://a.example:{port}", tmp_path, "north", cloud="aws").access.tls()
    assert offered == [["x-amzn-mqtt-ca"]]
    assert CLOUDS["aws"].alpn == ("x-amzn-mqtt-ca",)
