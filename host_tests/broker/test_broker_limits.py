"""Limits: who is slowed down, what is dropped, and that no client ever waits for itself."""

import logging
import tracemalloc
from collections.abc import Callable

import pytest
from broker_peer import BrokerThread, Closed, Packet, Peer
from umqtt_broker import BrokerConfig, Listener, Permission
from umqtt_broker.access.permission import Rights
from umqtt_broker.core import queue_limits as limits_module
from umqtt_broker.core.queue_limits import ReceiveRate
from umqtt_broker.stats import Stats
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

LIMITS = [
    {"max_queued_messages": 10},
    {"max_queued_bytes": 1000},
    {"max_queued_messages_total": 10},
    {"max_queued_bytes_total": 1000},
]


@pytest.fixture(params=["memory", "sqlite"])
def start(request: pytest.FixtureRequest, tmp_path, start_broker) -> Callable[..., BrokerThread]:
    """Provide a function that starts a broker with limits, on both stores."""
    store = ":memory:" if request.param == "memory" else str(tmp_path / "broker.db")
    return lambda **settings: start_broker(store=store, **settings)


def leave(broker: BrokerThread, client_id: bytes = b"absent") -> None:
    """Leave a persistent subscription to a/# without a connection."""
    with Peer(broker.port) as client:
        client.connect(client_id, clean_session=False)
        client.subscribe(b"a/#", 2)
        client.disconnect()


def be_held(publisher: Peer) -> None:
    """Fill a queue of three messages; the next one, packet 99, is not acknowledged."""
    for number in range(1, 4):
        publisher.publish(b"a", b"%d" % number, 1)
    publisher.send(encoder.publish(b"a", b"4", 1, 99))
    assert publisher.flush() == []


def held(broker: BrokerThread, client_id: bytes) -> bool:
    """Return whether the broker holds a client back."""

    def ask() -> bool:
        session = broker.view.session(client_id)
        assert session is not None and session.connection is not None
        return session.connection.backpressure is not None

    return broker.call(ask)


# Seconds after which a client with a keep_alive of 60 has been silent for too long, and some when it has not.
TOO_LONG, NOT_TOO_LONG = 91, 60


def payload(number: int) -> bytes:
    return b"%0100d" % number


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: next(iter(limit)))
@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_into_a_full_queue_waits_until_there_is_room_and_nothing_is_lost(start, limit, qos: int) -> None:
    broker = start(max_inflight_messages=5, **limit)
    leave(broker)
    answer = PUBACK if qos == 1 else PUBREC
    with Peer(broker.port) as publisher, Peer(broker.port) as bystander:
        publisher.connect(b"publisher")
        bystander.connect(b"bystander")
        # One packet per read, because a read is processed as a whole.
        for number in range(1, 11):
            publisher.send(encoder.publish(b"a/b", payload(number), qos, number))
            publisher.expect(answer, number)
        assert held(broker, b"publisher")
        for number in range(11, 31):
            publisher.send(encoder.publish(b"a/b", payload(number), qos, number))
        # Alive, but what it publishes waits.
        assert publisher.flush() == []
        assert broker.call(lambda: broker.stats.queued) == 10
        bystander.publish(b"b", b"", qos)  # it goes into no full queue, so it is not held back
        with Peer(broker.port) as client:
            assert client.connect(b"absent", clean_session=False)
            numbers = [int(client.receive_message().payload) for _ in range(30)]
            assert numbers == list(range(1, 31))
            assert finish(client) == []
        assert sorted(publisher.expect(answer).packet_id for _ in range(20)) == list(range(11, 31))
        assert not held(broker, b"publisher")
        stats = broker.stats
        assert broker.call(lambda: (stats.dropped, stats.publishers_let_through)) == (0, 0)
        limits = broker.broker.context.limits
        assert limits is not None and broker.call(lambda: (limits.messages, limits.bytes)) == (0, 0)


def finish(client: Peer) -> list[Packet]:
    """Complete what is left at QoS 2, and return every other packet."""
    packets = client.flush()
    for packet in packets:
        if packet.kind == PUBREL:
            client.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
    return [packet for packet in packets if packet.kind != PUBREL]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: next(iter(limit)))
def test_with_drop_the_queue_stays_at_its_limit_and_every_drop_is_counted(start, limit) -> None:
    broker = start(at_queue_limit="drop", **limit)
    leave(broker)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        for number in range(1, 31):
            publisher.publish(b"a/b", payload(number), 1)
        assert not held(broker, b"publisher")
    session = broker.view.session(b"absent")
    assert session is not None and session.queued == 10
    assert (broker.stats.dropped_queue_full, session.dropped) == (20, 20)
    with Peer(broker.port) as client:
        assert client.connect(b"absent", clean_session=False)
        assert [int(client.receive_message().payload) for _ in range(10)] == list(range(1, 11))
        assert client.flush() == []


@pytest.mark.parametrize("topic_filter", [b"a/#", b"$share/group/a/#"])
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: next(iter(limit)))
def test_what_is_on_its_way_to_a_client_is_not_dropped_because_it_waits_for_the_disk(
    start, limit, topic_filter: bytes
) -> None:
    broker = start(at_queue_limit="drop", max_inflight_messages=20, **limit)
    stats, limits = broker.stats, broker.broker.context.limits
    assert limits is not None
    with Peer(broker.port) as publisher, Peer(broker.port) as client:
        publisher.connect(b"publisher")
        client.connect(b"client", clean_session=False)
        client.subscribe(topic_filter, 2)
        publisher.send(b"".join(encoder.publish(b"a/b", payload(number), 2, number) for number in range(1, 51)))
        for number in range(1, 51):
            publisher.expect(PUBREC, number)
        # As many as the window allows are sent, ten may wait.
        assert broker.call(lambda: (stats.dropped_queue_full, limits.messages, limits.bytes)) == (20, 10, 1000)
        received = []
        while len(received) < 30:
            packet = client.receive()
            if packet.kind == PUBLISH:
                received.append(int(packet.payload))
                client.send(encoder.acknowledgement(PUBREC, packet.packet_id))
            else:
                client.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
        assert received == list(range(1, 31))
        finish(client)
        assert broker.call(lambda: (stats.dropped, limits.messages, limits.bytes)) == (20, 0, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_queue_that_is_partly_on_disk_is_counted_whole(start, qos: int) -> None:
    broker = start(max_inflight_messages=3, max_queued_in_memory=2, max_queued_messages=1000)
    limits = broker.broker.context.limits
    assert limits is not None
    leave(broker)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        for number in range(20):
            publisher.publish(b"a", payload(number), qos)
    for left in range(19, 0, -1):
        with Peer(broker.port) as client:
            assert client.connect(b"absent", clean_session=False)
            client.receive_message()
            finish(client)
            client.disconnect()
        assert broker.call(lambda: (limits.messages, limits.bytes)) == (left, 100 * left)


@pytest.mark.parametrize("filled_by", ["unacknowledged", "will", "retained"])
@pytest.mark.parametrize("limit", [LIMITS[0], LIMITS[2]], ids=lambda limit: next(iter(limit)))
def test_nobody_waits_for_a_queue_that_fills_otherwise_than_by_what_he_publishes(start, limit, filled_by: str) -> None:
    broker = start(max_inflight_messages=10, **limit)
    slow, bystander, publisher = Peer(broker.port), Peer(broker.port), Peer(broker.port)
    with slow, bystander, publisher:
        slow.connect(b"slow", clean_session=False)
        bystander.connect(b"bystander")
        publisher.connect(b"publisher", will=(b"a", b"", 1, False))
        slow.subscribe(b"a", 1)
        for number in range(30 if filled_by == "retained" else 10):
            publisher.publish(b"a" if number < 10 else b"kept/%d" % number, b"x", 1, retain=number >= 10)
        if filled_by == "unacknowledged":
            slow.reset()
        elif filled_by == "will":
            for _ in range(9):
                publisher.publish(b"a", b"", 1)
            publisher.reset()
        else:
            slow.send(encoder.subscribe(99, (b"kept/#", 1)))
        session = broker.view.session(b"slow")
        limits = broker.broker.context.limits
        assert session is not None and limits is not None
        full = None if "max_queued_messages_total" in limit else session
        broker.wait_until(lambda: limits.is_full(full))
        assert bystander.subscribe(b"b", 1) == 1
        assert not held(broker, b"bystander")
        if full is not None:
            bystander.send(encoder.publish(b"c", b"", 1, 1))
            bystander.expect(PUBACK, 1)
        assert broker.call(lambda: broker.stats.publishers_held) == 0


def test_by_default_a_session_may_have_256_mb_waiting_and_publishers_wait_beyond_that() -> None:
    """Planted: no limit by default; a limit that drops."""

    class Absent:
        client_id = b"absent"
        dropped = 0
        waiting = (1, 255_999_999)

        def drop_expired(self) -> None:
            """Do nothing: nothing is too old."""

    stats, queue = Stats(), Absent()
    limits = limits_module.QueueLimits.of(BrokerConfig(), stats)
    assert limits is not None
    limits.published(queue, 1)
    assert not limits.hits
    queue.waiting = (2, 256_000_000)
    limits.published(queue, 1)
    assert list(limits.hits) == [queue] and limits.admit(queue)
    assert (queue.dropped, stats.dropped) == (0, 0)


def test_a_queue_that_publishers_wait_for_is_named_now_and_then(start, caplog: pytest.LogCaptureFixture) -> None:
    """Planted: a line for every publisher that waits; no line."""
    broker = start(max_queued_messages=3)
    leave(broker)
    with Peer(broker.port) as one, Peer(broker.port) as other, caplog.at_level(logging.WARNING):
        for name, publisher in ((b"one", one), (b"other", other)):
            publisher.connect(name)
            publisher.send(b"".join(encoder.publish(b"a", b"", 1, number) for number in range(1, 5)))
            eventually(lambda each=name: held(broker, each))
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("the queue of absent is full (") and line.endswith("1 queues are full")


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_fills_its_own_queue_is_not_left_waiting_for_itself(start, qos: int) -> None:
    broker = start(max_inflight_messages=2, max_queued_messages=5)
    answer = PUBACK if qos == 1 else PUBREC
    with Peer(broker.port) as client:
        client.connect(b"client")
        client.subscribe(b"a", 1)
        for number in range(1, 41):
            client.send(encoder.publish(b"a", b"%d" % number, qos, number))
        received: list[int] = []
        answered: list[int] = []
        while len(received) < 40 or len(answered) < 40:
            packet = client.receive()
            if packet.kind == PUBLISH:
                received.append(int(packet.payload))
                client.send(encoder.acknowledgement(PUBACK, packet.packet_id))
            elif packet.kind == answer:
                answered.append(packet.packet_id)
        assert received == answered == list(range(1, 41))


def test_two_clients_that_fill_each_others_queues_do_not_wait_for_ever(start) -> None:
    broker = start(max_inflight_messages=2, max_queued_messages=5)
    with Peer(broker.port) as one, Peer(broker.port) as two:
        clients = {b"one": one, b"two": two}
        for name, client in clients.items():
            client.connect(name)
            client.subscribe(name, 1)
        for number in range(1, 41):
            one.send(encoder.publish(b"two", b"%d" % number, 1, number))
            two.send(encoder.publish(b"one", b"%d" % number, 1, number))
        received: dict[bytes, list[int]] = {name: [] for name in clients}
        answers = dict.fromkeys(clients, 0)
        waiting = set(clients)
        while waiting:
            for name in sorted(waiting):
                packet = clients[name].receive()
                if packet.kind == PUBLISH:
                    received[name].append(int(packet.payload))
                    clients[name].send(encoder.acknowledgement(PUBACK, packet.packet_id))
                else:
                    answers[name] += 1
                if answers[name] == 40 and len(received[name]) == 40:
                    waiting.discard(name)
        assert received == {name: list(range(1, 41)) for name in clients}


def test_a_client_that_acknowledges_only_when_it_is_acknowledged_is_let_through(start) -> None:
    broker = start(max_inflight_messages=2, max_queued_messages=3)
    with Peer(broker.port) as client, Peer(broker.port) as publisher:
        client.connect(b"client")
        client.subscribe(b"a", 1)
        publisher.connect(b"publisher")
        for number in range(1, 6):
            publisher.publish(b"a", b"%d" % number, 1)
        messages = [client.expect(PUBLISH) for _ in range(2)]
        # Its handler publishes and waits for the PUBACK before it acknowledges the handled message.
        for number in (6, 7):
            client.send(encoder.publish(b"a", b"%d" % number, 1, number))
            # Until nothing has moved for too long.
            eventually(lambda: broker.advance(1) or client.has_received())
            client.expect(PUBACK, number)
        assert broker.call(lambda: broker.stats.publishers_let_through) == 1
        for message in messages:
            client.send(encoder.acknowledgement(PUBACK, message.packet_id))
        assert [int(client.receive_message().payload) for _ in range(5)] == [3, 4, 5, 6, 7]


def test_one_that_floods_a_full_queue_is_not_read_from_until_there_is_room(start, monkeypatch) -> None:
    monkeypatch.setattr("umqtt_broker.clients.backpressure._MOST_WAITING", 100_000)
    broker = start(max_queued_messages=1)
    leave(broker)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher", keep_alive=60)
        publisher.socket.setblocking(False)
        flood = b"".join(encoder.publish(b"a", bytes(50_000), 1, number) for number in range(1, 1000))
        sent = 0
        session = broker.view.session(b"publisher")
        assert session is not None and session.connection is not None
        connection = session.connection

        def paused() -> bool:
            nonlocal sent
            try:
                while sent < len(flood):
                    sent += publisher.socket.send(flood[sent : sent + 65536])
            except BlockingIOError:
                pass
            return connection.backpressure is not None and connection.backpressure.paused

        broker.wait_until(paused)
        assert sent < len(flood)
        # Nobody reads its PINGREQ: that is not its own silence.
        broker.advance(TOO_LONG)
        assert broker.call(lambda: connection.session is not None)
        publisher.socket.settimeout(WAIT_LIMIT_S)
        # The session is removed, and with it everything to wait for.
        with Peer(broker.port) as client:
            client.connect(b"absent", clean_session=True)
            publisher.socket.sendall(flood[sent:])
            assert [publisher.expect(PUBACK).packet_id for _ in range(1, 1000)] == list(range(1, 1000))


def test_what_a_held_back_client_published_before_it_left_is_taken(start) -> None:
    broker = start(max_queued_messages=2, queue_qos0_messages=True)
    leave(broker)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher", will=(b"a", b"will", 0, False))
        publisher.publish(b"a", b"1", 1)
        publisher.publish(b"a", b"2", 1)
        publisher.send(encoder.publish(b"a", b"3", 0) + encoder.publish(b"a", b"4", 0) + encoder.disconnect())
        publisher.close()
        broker.wait_until(lambda: broker.stats.connections == 0)
    with Peer(broker.port) as client:
        assert client.connect(b"absent", clean_session=False)
        assert [client.receive_message().payload for _ in range(4)] == [b"1", b"2", b"3", b"4"]
        assert client.flush() == []


@pytest.mark.parametrize("end", ["reset", "taken over", "silent"])
def test_a_held_back_client_that_said_disconnect_has_no_will(start, end: str) -> None:
    broker = start(max_queued_messages=1)
    stats = broker.stats
    leave(broker)
    with Peer(broker.port) as publisher, Peer(broker.port) as again:
        publisher.connect(b"publisher", will=(b"a", b"will", 0, False), keep_alive=60)
        publisher.publish(b"a", b"1", 1)
        publisher.send(encoder.publish(b"a", b"2", 1, 2) + encoder.disconnect())
        # Its PINGREQ, after the DISCONNECT, shows that it has come.
        assert publisher.flush() == []
        if end == "reset":
            publisher.reset()
        elif end == "taken over":
            again.connect(b"publisher")
        else:
            broker.advance(TOO_LONG)
            publisher.wait_closed()
        broker.wait_until(lambda: stats.connections <= 1)
        assert broker.call(lambda: stats.wills) == 0


def test_old_messages_of_an_absent_client_hold_nobody_back(start, monkeypatch) -> None:
    broker = start(max_queued_messages=3, message_expiry=10)
    leave(broker)
    expiry = broker.broker.context.expiry
    now = expiry.clock()
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        be_held(publisher)
        monkeypatch.setattr(expiry, "clock", lambda: now + 12)
        broker.call(broker.broker.expire)
        publisher.expect(PUBACK, 99)
        assert broker.call(lambda: broker.stats.dropped_expired) == 3


# QoS 0 for absent clients


def test_qos_0_waits_for_an_absent_client_in_order_when_it_is_told_to(start) -> None:
    broker = start(queue_qos0_messages=True, max_inflight_messages=3)
    leave(broker)
    with Peer(broker.port) as publisher, Peer(broker.port) as clean:
        clean.connect(b"clean")
        clean.subscribe(b"a", 0)
        publisher.connect(b"publisher")
        for number in range(1, 31):
            publisher.publish(b"a", b"%d" % number, number % 3)
        with Peer(broker.port) as client:
            assert client.connect(b"absent", clean_session=False)
            messages = [client.receive_message() for _ in range(30)]
            assert [int(message.payload) for message in messages] == list(range(1, 31))
            assert [message.qos for message in messages] == [number % 3 for number in range(1, 31)]
            assert finish(client) == []
            publisher.publish(b"a", b"live", 0)
            assert client.receive_message().payload == b"live"
        assert len(clean.flush()) == 31
        session = broker.view.session(b"absent")
        assert session is not None and broker.call(lambda: (session.queued, session.queued_bytes)) == (0, 0)


# Rates and sizes


@pytest.mark.tier(0)
def test_a_token_bucket_gives_its_rate_and_saves_up_one_second() -> None:
    bucket = ReceiveRate(10, now=0.0)
    taken = 0
    for tenths in range(101):
        while bucket.available(tenths / 10):
            bucket.spend(1)
            taken += 1
        assert 0 < bucket.wait() <= 0.1 + 1e-9
    assert taken == 10 + 100
    assert bucket.available(1000.0) == 10


def test_a_client_above_its_rate_is_slowed_and_loses_nothing(start) -> None:
    broker = start(max_receive_rate=100)
    with Peer(broker.port) as fast, Peer(broker.port) as watcher:
        watcher.connect(b"watcher")
        watcher.subscribe(b"a", 1)
        fast.connect(b"fast")
        # The first hundred at once, then one every 10 ms.
        broker.stop_clock()
        fast.send(b"".join(encoder.publish(b"a", b"%d" % number, 1, number) for number in range(1, 121)))
        assert [int(watcher.receive_message().payload) for _ in range(100)] == list(range(1, 101))
        assert watcher.flush() == []
        for number in range(101, 121):
            broker.advance(0.0101)
            assert [int(message.payload) for message in watcher.flush()] == [number]
        assert [packet.packet_id for packet in fast.flush()] == list(range(1, 121))
        assert broker.call(lambda: broker.stats.rate_limited) > 0


def test_the_connect_itself_may_bring_more_than_the_rate(start) -> None:
    broker = start(max_receive_rate=5)
    with Peer(broker.port) as fast:
        fast.send(encoder.connect(b"fast") + b"".join(encoder.publish(b"a", b"", 1, number) for number in range(1, 8)))
        assert fast.expect(CONNACK).body == b"\0\0"
        assert [fast.expect(PUBACK).packet_id for _ in range(7)] == list(range(1, 8))


@pytest.mark.parametrize("rate", [0, 1])
def test_a_large_packet_that_comes_slowly_is_no_silence(start, rate: int) -> None:
    broker = start(max_receive_rate=rate)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher", keep_alive=60)
        packet = encoder.publish(b"a", bytes(50_000), 1, 1)
        for at in range(0, len(packet), 10_000):
            publisher.send(packet[at : at + 10_000])
            broker.wait_read()
            broker.advance(NOT_TOO_LONG)
        publisher.expect(PUBACK, 1)
        broker.advance(TOO_LONG)
        assert publisher.wait_closed() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_above_the_limit_is_acknowledged_counted_and_not_routed(start, qos: int) -> None:
    broker = start(max_payload_size=100)
    with Peer(broker.port) as publisher, Peer(broker.port) as watcher:
        watcher.connect(b"watcher")
        watcher.subscribe(b"#", 0)
        publisher.connect(b"publisher")
        publisher.publish(b"a", bytes(101), qos, retain=True)
        publisher.publish(b"a", bytes(100), qos)
        assert [len(packet.payload) for packet in watcher.flush()] == [100]
        assert broker.call(lambda: broker.stats.dropped_too_large) == 1


def test_so_is_a_will_above_the_limit(start) -> None:
    broker = start(max_payload_size=100)
    with Peer(broker.port) as watcher:
        watcher.connect(b"watcher")
        watcher.subscribe(b"#", 0)
        for size in (101, 100):
            with Peer(broker.port) as client:
                client.connect(b"client", will=(b"a", bytes(size), 0, False))
        assert len(watcher.receive_message().payload) == 100
        assert broker.call(lambda: broker.stats.dropped_too_large) == 1


def test_without_retained_messages_the_flag_is_ignored(start) -> None:
    broker = start(retain_available=False, sys_interval=0)
    with Peer(broker.port) as publisher, Peer(broker.port) as watcher:
        publisher.connect(b"publisher", will=(b"a", b"will", 0, True))
        publisher.publish(b"a", b"1", 1, retain=True)
        publisher.reset()
        broker.wait_until(lambda: broker.stats.wills == 1)
        watcher.connect(b"watcher")
        watcher.subscribe(b"#", 0)
        assert watcher.flush() == []


def test_long_topic_names_are_delivered_and_not_remembered(start_broker) -> None:
    class Everything(Rights):
        pass

    class Asked(Permission):
        def rights(self, client_id: bytes, username: bytes | None) -> Rights:
            return Everything()

    count, long = 200, b"n/" + b"n" * 60_000
    listeners = (
        Listener(port=0, permission=Asked()),
        Listener(port=0, mount_point=b"n/", permission=Asked()),
    )
    broker = start_broker(listeners=listeners)
    plain, mounted = broker.view.listening_ports
    with Peer(plain) as publisher, Peer(plain) as watcher, Peer(mounted) as below:
        publisher.connect(b"publisher")
        for client in (watcher, below):
            client.connect(b"client %d" % client.socket.fileno())
            client.subscribe(b"#", 0)
        tracemalloc.start()
        try:
            for number in range(count):
                publisher.send(encoder.publish(long + b"%d" % number, b""))
                names = [client.receive_message().topic_name[-3:] for client in (watcher, below)]
                assert names == [(long + b"%d" % number)[-3:]] * 2
            remembered, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert remembered < count * len(long) / 10


def test_a_client_that_asks_for_less_watching_is_watched_as_configured(start_broker) -> None:
    broker = start_broker(max_keep_alive=1)
    with Peer(broker.port) as never, Peer(broker.port) as rarely:
        never.connect(b"never", keep_alive=0)
        rarely.connect(b"rarely", keep_alive=60)
        broker.advance(2)
        for client in (never, rarely):
            with pytest.raises(Closed):
                client.receive()
        assert broker.call(lambda: broker.stats.keep_alive_timeouts) == 2


def test_a_limit_that_comes_with_a_reload_counts_what_waits_already(start) -> None:
    broker = start()
    leave(broker)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        for number in range(5):
            publisher.publish(b"a", b"%d" % number, 1)
        broker.broker.config.max_queued_messages_total = 6
        broker.call(broker.broker.sessions.rights_changed)
        limits = broker.broker.context.limits
        assert isinstance(limits, limits_module.QueueLimits) and limits.messages == 5
        publisher.publish(b"a", b"5", 1)
        assert held(broker, b"publisher")


@pytest.mark.parametrize("limit", ["max_queued_messages", "max_queued_messages_total"])
@pytest.mark.parametrize("lifted", [{"at_queue_limit": "drop"}, 0, 100], ids=str)
def test_a_reload_that_lifts_a_limit_lets_those_go_on_who_are_held_back_for_it(start, limit: str, lifted) -> None:
    broker = start(**{limit: 3})
    leave(broker)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        be_held(publisher)
        settings = {limit: 3} | lifted if isinstance(lifted, dict) else {limit: lifted}
        new = BrokerConfig(port=0, sys_interval=0, store=broker.broker.config.store, **settings)
        assert broker.call(lambda: broker.broker.reload(new)) == []
        publisher.expect(PUBACK, 99)
        assert not held(broker, b"publisher")
