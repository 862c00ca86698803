"""The `$SYS` topics: mosquitto's names, true values, only changes, never in the store, never matched by `#`."""

import json
import logging
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_peer import BrokerThread, Peer
from umqtt_broker import BrokerConfig
from umqtt_broker.json_log import JsonFormatter
from umqtt_broker.observation.rates import ClientRates, History, LoadAverage
from umqtt_broker.observation.survey import Totals
from umqtt_broker.observation.sys_topics import SysTopics, topic_names
from umqtt_broker.stats import Stats
from umqtt_testkit.mosquitto import Mosquitto

DOCUMENT = Path(__file__).parents[2] / "docs" / "broker-observation.md"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(BrokerConfig(port=0, store=str(tmp_path / "broker.db"), sys_interval=3600)) as started:
        yield started


def published(peer: Peer) -> dict[str, str]:
    """Return what a peer has been sent since the last call."""
    return {packet.topic_name.decode(): packet.payload.decode() for packet in peer.flush()}


def watcher(broker: BrokerThread, topic_filter: bytes = b"$SYS/#") -> tuple[Peer, dict[str, str]]:
    """Return a peer that has subscribed, and the retained messages it got."""
    peer = Peer(broker.port)
    peer.connect(b"watcher")
    # The first publication is the broker's first action, but it is separate from the start.
    broker.wait_until(lambda: list(broker.broker.router.retained.match(b"$SYS/broker/version")))
    assert peer.subscribe(topic_filter) == 0
    return peer, published(peer)


def test_every_topic_is_retained_from_the_start_and_documented(broker: BrokerThread) -> None:
    peer, found = watcher(broker)
    peer.close()
    assert set(found) == {name for name, _ in topic_names(Stats())}
    assert re.fullmatch(r"umqtt_broker \S+", found["$SYS/broker/version"])
    assert re.fullmatch(r"\d+ seconds", found["$SYS/broker/uptime"])
    assert all(re.fullmatch(r"\d+\.\d\d", value) for name, value in found.items() if "/load/" in name)
    document = DOCUMENT.read_text()
    rows = dict(re.findall(r"^\| `(\$SYS/[^`]+)` \| (.*) \|$", document, re.MULTILINE))
    assert rows == dict(topic_names(Stats()))


def test_a_wildcard_in_the_first_level_never_matches_them(broker: BrokerThread) -> None:
    for topic_filter in (b"#", b"+/#", b"+/broker/uptime"):
        peer, found = watcher(broker, topic_filter)
        with peer:
            topics = SysTopics(broker.broker.router, broker.broker.stats)
            broker.call(lambda topics=topics: topics.publish(Totals(), 1, 1.0))
            assert found == {} and published(peer) == {}, topic_filter


def test_only_what_changed_is_published_again(broker: BrokerThread) -> None:
    peer, _ = watcher(broker)
    with peer:
        topics = SysTopics(broker.broker.router, broker.broker.stats)
        everything = broker.call(lambda: topics.publish(Totals(connected=1), 7, 10.0))
        assert everything == len(published(peer)) > 40
        # Only what that very publication changed: packets and bytes sent, and their averages.
        broker.call(lambda: topics.publish(Totals(connected=1), 7, 10.0))
        changed = published(peer)
        assert "$SYS/broker/version" not in changed and "$SYS/broker/clients/connected" not in changed
        assert all(re.search(r"sent|received|retained|stored|store/messages/count", name) for name in changed), changed
        broker.call(lambda: topics.publish(Totals(connected=2, away=3, slow=1), 9, 10.0))
        changed = published(peer)
    assert changed["$SYS/broker/clients/connected"] == "2" and changed["$SYS/broker/clients/total"] == "5"
    assert changed["$SYS/broker/clients/disconnected"] == "3" and changed["$SYS/broker/clients/slow"] == "1"
    assert changed["$SYS/broker/uptime"] == "9 seconds"


def test_values_are_what_happened(tmp_path: Path) -> None:
    config = BrokerConfig(port=0, store=str(tmp_path / "broker.db"), sys_interval=1)
    with BrokerThread(config) as broker, Peer(broker.port) as keeper, Peer(broker.port) as sender:
        keeper.connect(b"keeper", clean_session=False)
        keeper.subscribe(b"a", 1)
        keeper.disconnect()
        sender.connect(b"sender")
        for _ in range(5):
            sender.publish(b"a", b"12345", 1)
        sender.publish(b"kept", b"x", 1, retain=True)
        sender.publish(b"a", b"x")
        sender.subscribe(b"$SYS/#")
        wanted = {
            "$SYS/broker/clients/connected": "1",
            "$SYS/broker/clients/disconnected": "1",
            "$SYS/broker/publish/messages/received": "7",
            "$SYS/broker/publish/messages/dropped": "1",
            "$SYS/broker/publish/messages/dropped/qos0_offline": "1",
            "$SYS/broker/subscriptions/count": "2",
        }
        seen: dict[str, str] = {}
        while any(seen.get(name) != value for name, value in wanted.items()):
            packet = sender.receive()
            seen[packet.topic_name.decode()] = packet.payload.decode()
        seen |= published(sender)  # the rest of that publication
        retained = int(seen["$SYS/broker/retained messages/count"])
        assert retained == broker.call(lambda: broker.stats.retained) > 40
        assert int(seen["$SYS/broker/messages/stored"]) == retained + 5
        assert int(seen["$SYS/broker/store/messages/bytes"]) >= 25
        assert int(seen["$SYS/broker/store/commits"]) >= 7
        assert int(seen["$SYS/broker/bytes/received"]) > 50
        assert int(seen["$SYS/broker/clients/maximum"]) >= 1
        assert float(seen["$SYS/broker/load/publish/received/1min"]) > 0


def test_they_follow_a_changed_interval_and_go_when_it_becomes_0(tmp_path: Path) -> None:
    config = BrokerConfig(port=0, store=str(tmp_path / "broker.db"), sys_interval=1)
    with BrokerThread(config) as broker:
        peer, found = watcher(broker)
        peer.close()
        assert found
        broker.call(lambda: setattr(broker.broker.config, "sys_interval", 0))
        broker.wait_until(lambda: broker.stats.retained == 0)
        assert broker.call(lambda: broker.view.retained) == []


def test_they_are_not_in_the_store_and_do_not_outlive_the_broker(tmp_path: Path) -> None:
    store = str(tmp_path / "broker.db")
    with BrokerThread(BrokerConfig(port=0, store=store, sys_interval=1)) as broker:
        peer, found = watcher(broker)
        peer.close()
        assert found
    with BrokerThread(BrokerConfig(port=0, store=store, sys_interval=0)) as broker, Peer(broker.port) as peer:
        peer.connect(b"peer")
        peer.subscribe(b"$SYS/#")
        assert peer.flush() == [] and broker.call(lambda: broker.stats.retained) == 0


def test_names_are_mosquittos_but_for_those_the_document_lists(tmp_path: Path) -> None:
    with Mosquitto(tmp_path, "allow_anonymous true") as other, Peer(other.port) as peer:
        peer.connect(b"peer")
        peer.subscribe(b"$SYS/#")
        theirs = {packet.topic_name.decode() for packet in peer.flush()}
    ours = {name for name, _ in topic_names(Stats())}
    assert len(theirs) > 30
    missing = {re.sub(r"\d+min$", "…", name) for name in theirs - ours}
    text = DOCUMENT.read_text().partition("topics of mosquitto are missing")[2].partition("\n\n")[0]
    assert missing == set(re.findall(r"`(\$SYS/[^`]+)`", text))


# How the figures are computed


@pytest.mark.tier(0)
def test_loads_approach_a_steady_rate_as_mosquittos_do() -> None:
    load, count = LoadAverage(0), 0
    for step in range(1, 61):
        count += 20
        averages = load.update(count, 10.0)
        for minutes, average in zip((1, 5, 15), averages, strict=True):
            assert math.isclose(average, 120 * (1 - math.exp(-step * 10 / (60 * minutes))), rel_tol=1e-9)
    assert load.update(count, 0.0) == averages


@pytest.mark.tier(0)
def test_history_keeps_the_newest_samples_as_rates() -> None:
    counters = {"a": 5}
    history = History(lambda: counters, 0.0, samples=3)
    assert history.rates() == {"a": 0.0} and history.columns(9) == {"a": []}
    for second in range(1, 6):
        counters["a"] += second * 10
        history.sample(float(second))
    assert history.columns(9) == {"a": [30.0, 40.0, 50.0]} and history.columns(2) == {"a": [40.0, 50.0]}
    history.sample(5.0)  # no time has passed: no sample
    assert history.rates() == {"a": 50.0}


@pytest.mark.tier(0)
def test_client_rates_count_from_the_last_question_and_stay_few() -> None:
    rates = ClientRates(clients=3)
    assert rates.rates(b"a", 100.0, 110.0, 20, 50) == (2.0, 5.0)
    assert rates.rates(b"a", 100.0, 110.5, 99, 99) == (2.0, 5.0)  # too soon for another answer
    assert rates.rates(b"a", 100.0, 112.0, 24, 50) == (2.0, 0.0)
    assert rates.rates(b"a", 112.0, 114.0, 6, 0) == (3.0, 0.0)  # a new connection counts from the start
    for name in (b"b", b"c", b"d"):
        rates.rates(name, 0.0, 10.0, 1, 1)
    # "a" is forgotten, so its rates are counted from its connection again; "d" is not.
    assert rates.rates(b"d", 0.0, 10.5, 99, 99) == (0.1, 0.1)
    assert rates.rates(b"a", 112.0, 116.0, 8, 0) == (2.0, 0.0)


@pytest.mark.tier(0)
def test_a_log_line_is_one_json_object_whatever_a_client_calls_itself() -> None:
    formatter = JsonFormatter()
    name = 'a"\n{"level":"x"}\u2028\x85'
    record = logging.LogRecord("umqtt_broker.x", logging.WARNING, __file__, 1, "client %s", (name,), None)
    record.created, record.msecs = 1795000000.25, 250.0
    record.client_id = b"\xff\xc3\xa4"
    line = formatter.format(record)
    assert line.isascii() and line.isprintable()
    assert json.loads(line) == {
        "time": "2026-11-18T11:06:40.250Z",
        "level": "warning",
        "logger": "umqtt_broker.x",
        "message": "client " + name,
        "client_id": "\ufffd\u00e4",
    }
    try:
        raise ValueError("broken")
    except ValueError:
        logger = logging.getLogger("umqtt_broker.x")
        failed = logger.makeRecord("x", logging.ERROR, __file__, 1, "m", (), sys.exc_info())
    assert json.loads(formatter.format(failed))["exception"].endswith("ValueError: broken")


def test_topics_that_could_not_be_published_are_told_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Planted: the task that publishes them ends at its first error.
    publish, errors = SysTopics.publish, [OSError(24, "Too many open files"), OSError(24, "planted")]

    def fail_first(*arguments: Any) -> int:
        if errors:
            raise errors.pop()
        return publish(*arguments)

    monkeypatch.setattr(SysTopics, "publish", fail_first)
    with BrokerThread(BrokerConfig(port=0, sys_interval=1)) as broker, Peer(broker.port) as peer:
        peer.connect(b"monitor")
        peer.subscribe(b"$SYS/broker/uptime")
        assert peer.receive_message().payload.endswith(b" seconds")
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 1 and "planted" in told[0]
