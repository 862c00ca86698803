"""What gets too old: messages that still wait, and sessions whose clients stay away. The test owns the clock."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from broker_peer import BrokerThread, Peer
from peer5 import Peer5
from umqtt_broker import BrokerConfig
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBCOMP, PUBLISH, PUBREC, PUBREL

# Unix time in seconds when each test begins.
START = 1_800_000_000


class Aging:
    """A broker whose clock stands still until it is told to advance."""

    def __init__(self, broker: BrokerThread, now: float) -> None:
        self.thread = broker
        self.port = broker.port
        self.stats = broker.stats
        self.now = now
        broker.broker.context.expiry.clock = lambda: self.now
        self.go_on(0)

    def go_on(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.thread.call(self.thread.broker.expire)

    def names(self) -> set[bytes]:
        return self.thread.call(lambda: {session.client_id for session in self.thread.broker.sessions})


@contextmanager
def aging(store: str, now: float = START, **settings) -> Iterator[Aging]:
    config = BrokerConfig(port=0, store=store, **settings)
    with mock.patch("time.time", return_value=float(now)), BrokerThread(config) as broker:
        yield Aging(broker, now)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return ":memory:" if request.param == "memory" else str(tmp_path / "broker.db")


def leave(broker: Aging, client_id: bytes = b"absent", qos: int = 2) -> None:
    """Leave a persistent subscription to a/# without a connection."""
    with Peer(broker.port) as client:
        client.connect(client_id, clean_session=False)
        client.subscribe(b"a/#", qos)
        client.disconnect()
    session = broker.thread.broker.sessions.get(client_id)
    assert session is not None
    broker.thread.wait_until(lambda: session.connection is None)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waited_too_long_is_dropped_and_counted_and_the_rest_comes_in_order(store: str, qos: int) -> None:
    with aging(store, message_expiry=60, max_queued_in_memory=3) as broker:
        leave(broker, qos=qos)
        with Peer(broker.port) as publisher:
            publisher.connect(b"publisher")
            for number in range(10):
                publisher.publish(b"a/1", b"%d" % number, qos)
                broker.go_on(10)
        # 100 seconds after the first, 10 after the last; a message lives up to a second longer.
        with Peer(broker.port) as client:
            assert client.connect(b"absent", clean_session=False)
            numbers = [int(client.receive_message().payload) for _ in range(6)]
            assert numbers == [4, 5, 6, 7, 8, 9]
            assert [packet.kind for packet in client.flush() if packet.kind == PUBLISH] == []
        session = broker.thread.broker.sessions.get(b"absent")
        assert session is not None and broker.thread.call(lambda: (session.queued, session.queued_bytes)) == (0, 0)
        assert (broker.stats.dropped_expired, broker.stats.dropped, session.dropped) == (4, 4, 4)


def test_what_is_too_old_for_a_client_that_is_away_waits_until_it_returns(store: str) -> None:
    with aging(store, message_expiry=60) as broker:
        leave(broker)
        with Peer(broker.port) as publisher:
            publisher.connect(b"publisher")
            publisher.publish(b"a", b"", 1)
        broker.go_on(1000)
        assert broker.thread.call(lambda: (broker.stats.queued, broker.stats.dropped_expired)) == (1, 0)
        with Peer(broker.port) as client:
            assert client.connect(b"absent", clean_session=False)
            assert client.flush() == []
        assert broker.thread.call(lambda: (broker.stats.queued, broker.stats.dropped_expired)) == (0, 1)


def test_what_is_too_old_makes_room_for_what_is_new(store: str) -> None:
    with aging(store, message_expiry=60, max_queued_messages=3, at_queue_limit="drop") as broker:
        leave(broker)
        with Peer(broker.port) as publisher:
            publisher.connect(b"publisher")
            for number in range(4):
                publisher.publish(b"a", b"%d" % number, 1)
            broker.go_on(1000)
            for number in range(4, 8):
                publisher.publish(b"a", b"%d" % number, 1)
        assert broker.thread.call(lambda: (broker.stats.dropped_queue_full, broker.stats.dropped_expired)) == (2, 3)
        with Peer(broker.port) as client:
            assert client.connect(b"absent", clean_session=False)
            assert [client.receive_message().payload for _ in range(3)] == [b"4", b"5", b"6"]


def test_the_deadline_of_a_message_outlives_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "broker.db")
    with aging(path, message_expiry=60) as broker:
        leave(broker)
        with Peer(broker.port) as publisher:
            publisher.connect(b"publisher")
            publisher.publish(b"a", b"old", 1)
            broker.go_on(50)
            publisher.publish(b"a", b"young", 1)
        assert broker.thread.call(lambda: broker.stats.queued) == 2
    # Not even a broker that lets nothing expire revives it.
    with aging(path, START + 100) as broker, Peer(broker.port) as client:
        assert client.connect(b"absent", clean_session=False)
        assert client.receive_message().payload == b"young"
        assert client.flush() == []
    with aging(path, START + 100) as broker:
        assert broker.thread.call(lambda: broker.stats.queued) == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_client_may_have_seen_never_expires(store: str, qos: int) -> None:
    with aging(store, message_expiry=10) as broker, Peer(broker.port) as publisher:
        client = Peer(broker.port)
        client.connect(b"client", clean_session=False)
        client.subscribe(b"a", qos)
        publisher.connect(b"publisher")
        publisher.publish(b"a", b"sent", qos)
        sent = client.expect(PUBLISH)
        publisher.publish(b"a", b"received", qos)
        received = client.expect(PUBLISH)
        if qos == 2:
            client.send(encoder.acknowledgement(PUBREC, received.packet_id))
            client.expect(PUBREL, received.packet_id)
        client.reset()
        broker.thread.wait_until(lambda: broker.stats.connections == 1)
        broker.go_on(1000)
        with Peer(broker.port) as client:
            assert client.connect(b"client", clean_session=False)
            if qos == 2:
                client.expect(PUBREL, received.packet_id)
                client.send(encoder.acknowledgement(PUBCOMP, received.packet_id))
            again = client.expect(PUBLISH)
            assert (again.payload, again.packet_id, again.dup) == (b"sent", sent.packet_id, True)
            if qos == 1:
                assert client.expect(PUBLISH).packet_id == received.packet_id
            assert client.flush() == []
        assert broker.stats.dropped_expired == 0


def test_retained_messages_do_not_expire(store: str) -> None:
    with aging(store, message_expiry=10) as broker, Peer(broker.port) as client:
        client.connect(b"client")
        client.publish(b"a", b"kept", 1, retain=True)
        broker.go_on(1000)
        client.subscribe(b"a", 1)
        assert client.receive_message().payload == b"kept"


def test_a_session_is_forgotten_when_its_client_stayed_away_too_long_and_not_before(store: str) -> None:
    with aging(store, session_expiry=100) as broker, Peer(broker.port) as here:
        here.connect(b"here", clean_session=False)
        leave(broker, b"first")
        broker.go_on(60)
        leave(broker, b"second")
        broker.go_on(40)
        assert broker.names() == {b"here", b"second"}
        with Peer(broker.port) as back:
            assert back.connect(b"second", clean_session=False)
            broker.go_on(1000)
            assert broker.names() == {b"here", b"second"}
            back.disconnect()
            broker.thread.wait_until(lambda: broker.stats.connections == 1)
        broker.go_on(99)
        assert broker.names() == {b"here", b"second"}
        broker.go_on(1)
        assert broker.names() == {b"here"}
        assert (broker.stats.sessions_expired, broker.stats.sessions, broker.stats.subscriptions) == (2, 1, 0)
        with Peer(broker.port) as back:
            assert not back.connect(b"first", clean_session=False)


def vanish(broker: Aging, client_id: bytes, expiry: int, will_delay: int) -> None:
    """Connect with a will, and lose the connection. expiry, will_delay: seconds."""
    with Peer5(broker.port) as client:
        delay = encoder.properties(will_delay_interval=will_delay)
        will = (b"will", client_id, 0, False)
        client.connect5(client_id, will=will, will_properties=delay, session_expiry_interval=expiry)


def test_neither_a_session_nor_a_will_ends_early_by_a_fraction_of_a_second(store: str) -> None:
    # Planted: the time at which a client left is rounded down.
    with aging(store, START + 0.9) as broker, Peer(broker.port) as watcher:
        watcher.connect(b"watcher")
        watcher.subscribe(b"will", 0)
        for client_id, delay in ((b"session", 100), (b"will", 3)):
            vanish(broker, client_id, 3, delay)
        broker.thread.wait_until(lambda: broker.stats.connections == 1)
        broker.go_on(2.9)
        assert broker.names() == {b"watcher", b"session", b"will"} and watcher.flush() == []
        broker.go_on(0.1)
        assert broker.names() == {b"watcher"}
        assert {packet.payload for packet in watcher.flush()} == {b"session", b"will"}


def test_an_expired_session_is_not_resumed_and_its_will_is_published_where_the_sweep_is_late(store: str) -> None:
    with aging(store) as broker, Peer(broker.port) as watcher:
        watcher.connect(b"watcher")
        watcher.subscribe(b"will", 0)
        for client_id, expiry in ((b"gone", 3), (b"late", 100)):
            vanish(broker, client_id, expiry, 3)
        broker.thread.wait_until(lambda: broker.stats.connections == 1)
        broker.now += 4
        for client_id, is_kept in ((b"gone", False), (b"late", True)):
            with Peer5(broker.port) as client:
                assert client.connect5(client_id, clean=False).present == is_kept
            assert watcher.receive_message().payload == client_id


def test_a_clock_that_is_set_by_days_ends_no_session_and_is_told(store: str, caplog, monkeypatch) -> None:
    with BrokerThread(BrokerConfig(port=0, store=store, session_expiry=100)) as broker:
        with Peer(broker.port) as client:
            client.connect(b"absent", clean_session=False)
            client.disconnect()
        broker.wait_until(lambda: broker.stats.connections == 0)
        ahead = time.time() + 1_000_000
        monkeypatch.setattr("time.time", lambda: ahead)
        broker.call(broker.broker.expire)
        assert broker.call(lambda: broker.stats.sessions) == 1
        assert any("clock was set, +" in line for line in caplog.messages)
    for set_by, text in ((0, ""), (-10_000, "behind"), (10_000, "1 sessions expired")) if store != ":memory:" else ():
        caplog.clear()
        monkeypatch.setattr("time.time", lambda now=ahead + set_by: now)
        with BrokerThread(BrokerConfig(port=0, store=store, session_expiry=100)) as broker:
            assert text in " ".join(caplog.messages) and bool(text) == bool(caplog.messages), (set_by, caplog.messages)


def test_the_absence_of_a_client_goes_on_through_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "broker.db")
    with aging(path, session_expiry=100) as broker, Peer(broker.port) as connected:
        leave(broker, b"long")
        broker.go_on(60)
        leave(broker, b"short")
        connected.connect(b"connected", clean_session=False)
    # When the broker ends, every client is away.
    with aging(path, START + 99, session_expiry=100) as broker:
        assert broker.names() == {b"long", b"short", b"connected"}
        broker.go_on(1)
        assert broker.names() == {b"short", b"connected"}
        broker.go_on(60)
        assert broker.names() == set()
    with aging(path, START + 500, session_expiry=100) as broker:
        assert broker.names() == set()


def test_an_absence_that_nobody_counted_begins_when_it_is_first_counted(tmp_path: Path) -> None:
    path = str(tmp_path / "broker.db")
    with aging(path, session_expiry=100) as broker:
        leave(broker)
    with aging(path, START + 50) as broker, Peer(broker.port) as client:
        assert client.connect(b"absent", clean_session=False)  # without anyone counting
        client.disconnect()
        broker.go_on(1000)
        assert broker.names() == {b"absent"}
    with aging(path, START + 10_000, session_expiry=100) as broker:
        broker.go_on(99)
        assert broker.names() == {b"absent"}
        broker.go_on(2)
        assert broker.names() == set()


def test_a_fleet_that_expires_together_is_forgotten_in_parts(monkeypatch) -> None:
    monkeypatch.setattr("umqtt_broker.clients.registry._MOST_AT_ONCE", 3)
    with aging(":memory:", session_expiry=10) as broker:
        for number in range(7):
            leave(broker, b"%d" % number)
        broker.go_on(20)
        assert len(broker.names()) == 4
        for left in (1, 0):
            broker.go_on(0)
            assert len(broker.names()) == left
