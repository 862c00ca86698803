"""Metrics for Prometheus: all documented, named by its rules, correct, and without unbounded labels."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_certificates import Pki
from broker_peer import Peer
from observed import ObservedBroker
from prometheus_client.parser import text_string_to_metric_families
from umqtt_broker import Listener
from umqtt_broker.observation.metrics import FAMILIES, metric_names

DOCUMENT = Path(__file__).parents[2] / "docs" / "broker-observation.md"

# Labels with few values: constants of the code, states, and names from the configuration.
LABELS = ("", "reason", "listener", "state", "version", "waited_for")

Samples = dict[tuple[str, str], float]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ObservedBroker]:
    with ObservedBroker(
        tmp_path, store=str(tmp_path / "broker.db"), sys_interval=0, max_inflight_messages=2
    ) as started:
        yield started


def scrape(broker: ObservedBroker) -> Samples:
    """Return {(name, value of its label): value}, for our own metrics only."""
    reply = broker.request("GET", "/metrics", headers={"Accept": "text/plain"})
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/plain")
    samples: Samples = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            if sample.name.startswith("umqtt_broker_"):
                assert len(sample.labels) <= 1
                samples[sample.name, next(iter(sample.labels.values()), "")] = sample.value
    return samples


def test_every_metric_is_scraped_and_in_the_documents_table(tmp_path: Path, pki: Pki) -> None:
    # A certificate and a broken packet, so that every label has a value.
    listeners = Listener(port=0), Listener(port=0, tls=pki.tls())
    with (
        ObservedBroker(tmp_path, listeners=listeners) as broker,
        Peer(broker.port) as broken,
    ):
        broken.connect(b"broken")
        broken.send(b"\xf0\x00")
        broken.wait_closed()
        scraped = {name for name, _ in scrape(broker)}
    named = {name: (label, meaning) for name, label, meaning in metric_names()}
    assert len(named) == len(FAMILIES)
    assert scraped == set(named)
    rows = re.findall(r"^\| `(umqtt_broker_\w+)` \| (?:`(\w+)`)? ?\| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert {name: (label, meaning) for name, label, meaning in rows} == named


def test_names_follow_the_rules_of_prometheus(broker: ObservedBroker) -> None:
    body = broker.request("GET", "/metrics", headers={"Accept": "text/plain"}).body.decode()
    assert re.findall(r"^process_resident_memory_bytes \d", body, re.MULTILINE)
    for family in FAMILIES:
        name = "umqtt_broker_" + family.name + ("_total" if family.kind == "counter" else "")
        assert f"# HELP {name} {family.meaning}\n" in body and f"# TYPE {name} {family.kind}\n" in body
        assert re.fullmatch(r"[a-z_]+", name) and family.meaning.endswith(".")
        assert not family.name.endswith("_total") and family.label in LABELS
    reply = broker.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
    assert reply.body.endswith(b"# EOF\n")


def test_values_are_what_happened_and_no_client_is_a_label(broker: ObservedBroker) -> None:
    before = scrape(broker)
    assert before["umqtt_broker_sessions", "connected"] == 0
    with Peer(broker.port) as slow, Peer(broker.port) as sender, Peer(broker.port) as away:
        away.connect(b"secret-client", clean_session=False)
        away.subscribe(b"a", 1)
        away.disconnect()
        slow.connect(b"slow-client")
        slow.subscribe(b"a", 1)
        sender.connect(b"sender-client")
        for _ in range(5):
            sender.publish(b"a", b"12345", 1)
        sender.publish(b"a", b"x")
        sender.publish(b"kept", b"x", retain=True)
        broker.wait_until(lambda: broker.stats.retained == 1)
        broker.advance(1)  # sums may be a second old
        after = scrape(broker)
        text = broker.request("GET", "/metrics").body.decode()
    expected = {
        ("umqtt_broker_connections", ""): 2,
        ("umqtt_broker_clients", "127.0.0.1:0"): 2,
        ("umqtt_broker_sessions", "connected"): 2,
        ("umqtt_broker_sessions", "away"): 1,
        ("umqtt_broker_slow_consumers", ""): 1,
        ("umqtt_broker_subscriptions", ""): 2,
        ("umqtt_broker_retained_messages", ""): 1,
        ("umqtt_broker_queued_messages", ""): 8,
        ("umqtt_broker_in_flight_messages", ""): 2,
        ("umqtt_broker_messages_received_total", ""): 7,
        ("umqtt_broker_messages_sent_total", ""): 3,
        ("umqtt_broker_messages_dropped_total", "qos0_offline"): 1,
        ("umqtt_broker_connections_accepted_total", ""): 3,
        ("umqtt_broker_connections_maximum", ""): 3,
    }
    assert {key: after[key] for key in expected} == expected
    assert after["umqtt_broker_store_commits_total", ""] >= 5
    assert after["umqtt_broker_received_bytes_total", ""] > 70 and after["umqtt_broker_sent_bytes_total", ""] > 30
    assert after["umqtt_broker_queued_bytes", ""] >= 40
    assert "-client" not in text and broker.token not in text


def test_refused_requests_are_counted_by_reason(broker: ObservedBroker) -> None:
    broker.request("GET", "/metrics", headers={"Authorization": "Bearer wrong"})
    broker.request("GET", "/", headers={"Host": "evil.example"})
    broker.request("GET", "/metrics", headers={"Origin": "http://evil.example"})
    found = scrape(broker)
    for reason in ("token", "host", "origin"):
        assert found["umqtt_broker_http_requests_refused_total", reason] == 1


def test_two_brokers_in_a_process_have_figures_of_their_own(broker: ObservedBroker, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    with ObservedBroker(folder) as other, Peer(other.port) as peer:
        peer.connect(b"peer")
        assert scrape(other)["umqtt_broker_connections", ""] == 1
        assert scrape(broker)["umqtt_broker_connections", ""] == 0
