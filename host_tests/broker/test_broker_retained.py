"""Retained messages in large numbers: nobody else waits for them, and changes meanwhile have the right result.

UMQTT_FULL_SWEEPS=1 uses a million topics instead of a sample.
"""

import gc
import os
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from broker_peer import BrokerThread, Packet, Peer
from umqtt_broker.protocol.messages import RetainedMessage
from umqtt_broker.protocol.topics import is_topic_name
from umqtt_broker.routing.retained import RetainedMessages
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBLISH, SUBACK, UNSUBACK

MakePeer = Callable[..., Peer]

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
TOPICS = 1_000_000 if FULL else 40_000

# Steps of a walk in one turn of the event loop, however long they take: after 100 it checks the clock, and the slice
# of the SUBSCRIBE itself may come in the same turn as the next.
MOST_STEPS = 200

# Seconds for which a wildcard subscription may block the event loop.
MOST_STALL = 0.05


def matches(topic_filter: bytes, topic_name: bytes) -> bool:
    """Return whether a filter matches, by the specification's rules, level by level."""
    wanted, levels = topic_filter.split(b"/"), topic_name.split(b"/")
    if levels[0].startswith(b"$") and wanted[0] in (b"#", b"+"):
        return False
    for index, level in enumerate(wanted):
        if level == b"#":
            return True
        if index == len(levels) or level not in (b"+", levels[index]):
            return False
    return len(wanted) == len(levels)


@pytest.mark.tier(0)
@pytest.mark.parametrize("seed", range(3))
def test_the_trie_holds_and_matches_what_a_plain_table_does_and_ends_empty(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    trie, table = RetainedMessages(), {}
    levels = [b"a", b"b", b"", b"$x"]
    for step in range(5000):
        name = b"/".join(rng.choice(levels) for _ in range(rng.randint(1, 4)))
        if not is_topic_name(name):
            continue
        if rng.random() < 0.5:
            table[name] = RetainedMessage(name, b"%d" % step, step % 3)
            trie.put(table[name])
        else:
            assert trie.remove(name) == (table.pop(name, None) is not None)
        assert len(trie) == len(table)
        if step % 25 == 0:
            wanted = [rng.choice([*levels, b"+"]) for _ in range(rng.randint(1, 4))]
            topic_filter = b"/".join([*wanted, *rng.choice([[], [b"#"]])])
            found = list(trie.match(topic_filter))
            assert sorted(found) == sorted(one for one in table.values() if matches(topic_filter, one.topic_name))
    for name in list(table):
        trie.remove(name)
    assert len(trie) == trie.node_count() == 0 and list(trie.walk(b"#")) == []


@pytest.mark.tier(0)
@pytest.mark.parametrize("seed", range(3))
def test_a_walk_through_a_changing_trie_shows_each_message_as_it_is_and_all_that_stay(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    trie, table = RetainedMessages(), {}
    names = [b"%d/%d" % (number % 20, number) for number in range(400)] + [b"%d" % number for number in range(20)]
    for name in names:
        table[name] = b"0"
        trie.put(RetainedMessage(name, b"0", 0))
    stay = set(rng.sample(names, 200))
    found: dict[bytes, bytes] = {}
    for step, message in enumerate(trie.walk(b"#")):
        if message is not None:
            assert table.get(message.topic_name) == message.payload
            assert message.topic_name not in found or message.topic_name not in stay
            found[message.topic_name] = message.payload
        name = rng.choice(names)
        if name in stay or rng.random() < 0.5:
            table[name] = b"%d" % step
            trie.put(RetainedMessage(name, table[name], 0))
        else:
            table.pop(name, None)
            trie.remove(name)
    assert stay <= set(found)


@pytest.mark.tier(0)
@pytest.mark.parametrize(("form", "most"), [(b"fleet/pump/%d", 180), (b"fleet/pump-%d/status", 500)])
def test_a_retained_topic_takes_little_memory(form: bytes, most: int) -> None:
    count = 20_000
    payloads = [b'{"online":true,"n":%5d}' % number for number in range(count)]
    trie = RetainedMessages()
    tracemalloc.start()
    try:
        for number, payload in enumerate(payloads):
            trie.put(RetainedMessage(form % number, payload, 1))
        size = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    print(f"{size:.0f} bytes a topic")
    assert size < most


class StallWatch:
    """Measures from inside how long the event loop spends on one thing.

    It counts CPU time of the loop's thread, so that the client in this process and other programs do not count.
    Objects that other tests left in this process do not count either: the garbage collector ignores them meanwhile.
    """

    def __init__(self, broker: BrokerThread) -> None:
        self._broker = broker
        self._last = 0.0
        self._stopped = False
        self.longest = 0.0
        gc.freeze()
        broker.call(self._tick)

    def _tick(self) -> None:
        now = time.thread_time()
        if self._last:
            self.longest = max(self.longest, now - self._last)
        self._last = now
        if not self._stopped:
            self._broker.broker.loop.call_soon(self._tick)

    def stop(self) -> float:
        self._stopped = True
        gc.unfreeze()
        return self.longest


def least(stall: Callable[[], float]) -> float:
    """Return the least of three: time that the virtual machine takes counts as the thread's, but not each time."""
    return min(stall() for _ in range(3))


def fill(broker: BrokerThread, count: int, qos: int = 0, payload: bytes = b"x") -> None:
    """Add retained messages: wide/N, and N/x/deep for one in ten."""

    def put() -> None:
        for number in range(count):
            name = b"%d/x/deep" % number if number % 10 == 0 else b"wide/%d" % number
            broker.broker.router.retained.put(RetainedMessage(name, payload, qos))

    broker.call(put)


@pytest.mark.parametrize(
    "packets",
    [
        encoder.subscribe(1, (b"#", 0)),
        b"".join(encoder.subscribe(number, (b"%d/x/deep" % number, 0)) for number in range(1, 1001)),
    ],
    ids=["a wide filter", "a thousand narrow ones"],
)
def test_a_walk_through_retained_messages_lets_others_have_their_turn(
    start_broker, monkeypatch: pytest.MonkeyPatch, packets: bytes
) -> None:
    """Planted: a RetainedDelivery that does not check the clock; one slice for each filter instead of for all."""
    broker = start_broker(sys_interval=0)
    fill(broker, 3000)
    # Each step takes a millisecond, and nothing else takes any time.
    broker.stop_clock()
    retained = broker.broker.router.retained
    walk, in_this_turn, most, total = retained.walk, 0, 0, 0

    def slow_walk(topic_filter: bytes) -> Iterator[RetainedMessage | None]:
        nonlocal in_this_turn, most, total
        for step in walk(topic_filter):
            if not in_this_turn:
                broker.broker.loop.call_soon(end_turn)
            broker.set_ahead(0.001)
            in_this_turn, total = in_this_turn + 1, total + 1
            most = max(most, in_this_turn)
            yield step

    def end_turn() -> None:
        nonlocal in_this_turn
        in_this_turn = 0

    monkeypatch.setattr(retained, "walk", slow_walk)
    with Peer(broker.port) as greedy:
        greedy.connect(b"greedy")
        greedy.send(packets)
        session = broker.view.session(b"greedy")
        assert session is not None
        broker.wait_until(lambda: total > 1000 and session.retained_delivery is None)
    assert 0 < most <= MOST_STEPS


@pytest.mark.tier(3)
@pytest.mark.parametrize(("topic_filter", "share"), [(b"#", 1.0), (b"+/x/#", 0.1), (b"wide/+", 0.9)])
def test_a_wildcard_over_very_many_retained_messages_stalls_nobody(start_broker, topic_filter, share) -> None:
    broker = start_broker(sys_interval=0)
    fill(broker, TOPICS)

    def stall() -> float:
        with Peer(broker.port) as greedy, Peer(broker.port) as other:
            greedy.connect(b"greedy")
            other.connect(b"other")
            watch = StallWatch(broker)
            greedy.send(encoder.subscribe(1, (topic_filter, 0)))
            assert greedy.expect(SUBACK).body[2:] == b"\0"
            pings = seen = 0
            while seen < TOPICS * share:
                message = greedy.expect(PUBLISH)
                assert message.retain
                seen += 1
                if seen % (TOPICS // 10) == 1:
                    other.publish(b"$ping", b"", 1)
                    pings += 1
            longest = broker.call(watch.stop)
            print(f"{seen} messages, {pings} round trips of another client, longest stall {longest * 1000:.1f} ms")
            assert greedy.flush() == []
            return longest

    assert least(stall) < MOST_STALL


@pytest.mark.tier(3)
def test_many_subscriptions_at_once_get_one_slice_together(start_broker) -> None:
    broker = start_broker()
    fill(broker, TOPICS)

    def stall() -> float:
        with Peer(broker.port) as greedy:
            greedy.connect(b"greedy")
            watch = StallWatch(broker)
            greedy.send(b"".join(encoder.subscribe(number, (b"+/x/%d" % number, 0)) for number in range(1, 301)))
            for number in range(1, 301):
                greedy.expect(SUBACK, number)
            return broker.call(watch.stop)

    assert least(stall) < MOST_STALL


@pytest.mark.tier(3)
def test_very_many_filters_cost_hardly_more_for_their_retained_messages(start_broker) -> None:
    broker = start_broker()
    requests = [(b"%d" % number, 0) for number in range(10_000)]

    def stall() -> float:
        with Peer(broker.port) as client:
            client.connect(b"client")
            watch = StallWatch(broker)
            client.send(encoder.subscribe(1, *requests))
            client.expect(SUBACK, 1)
            client.send(encoder.unsubscribe(2, *(topic_filter for topic_filter, _ in requests)))
            client.expect(UNSUBACK, 2)
            return broker.call(watch.stop)

    without = least(stall)
    fill(broker, 100)
    assert least(stall) < 3 * without + MOST_STALL


@pytest.mark.parametrize("qos", [1, 2])
def test_very_many_retained_messages_all_come_once_above_qos_0(broker: BrokerThread, peer: MakePeer, qos: int) -> None:
    count = 5000
    fill(broker, count, qos)
    client = peer(b"client", clean_session=False)
    client.subscribe(b"#", qos)
    names = [client.receive_message().topic_name for _ in range(count)]
    assert len(set(names)) == count
    session = broker.view.session(b"client")
    assert session is not None
    broker.wait_until(lambda: session.retained_delivery is None)


def test_what_is_replaced_during_the_walk_never_comes_back_old(start_broker) -> None:
    broker = start_broker(max_inflight_messages=10, sys_interval=0)
    fill(broker, 5000, 1, b"old")
    with Peer(broker.port) as client, Peer(broker.port) as publisher:
        client.connect(b"client")
        publisher.connect(b"publisher")
        client.subscribe(b"wide/#", 1)
        for number in (1, 2501, 4999):
            publisher.publish(b"wide/%d" % number, b"new", 1, retain=True)
        publisher.publish(b"wide/4998", b"", 1, retain=True)
        last: dict[bytes, Packet] = {}
        while len(last) < 4500:
            message = client.receive_message()
            # Once the new one has come, the old one does not.
            assert message.payload != b"old" or message.topic_name not in last
            last[message.topic_name] = message
        while more := [packet for packet in client.flush() if packet.kind == PUBLISH]:
            for message in more:
                assert message.payload != b"old"
                last[message.topic_name] = message
                client.send(encoder.acknowledgement(PUBACK, message.packet_id))
        assert {last[b"wide/%d" % number].payload for number in (1, 2501, 4999)} == {b"new"}


@pytest.mark.parametrize("clean_session", [True, False])
def test_retained_messages_go_on_where_they_were_for_a_persistent_session_and_ends_with_a_clean_one(
    broker: BrokerThread, peer: MakePeer, clean_session: bool
) -> None:
    fill(broker, 5000, 1)
    client = peer(b"client", clean_session=clean_session)
    client.subscribe(b"#", 1)
    names = {client.receive_message().topic_name for _ in range(100)}
    client.reset()
    broker.wait_until(lambda: broker.stats.connections == 0)
    client = peer(b"client", clean_session=clean_session)
    if clean_session:
        assert client.flush() == []
    else:
        while len(names) < 5000:
            names.add(client.receive_message().topic_name)


def test_unsubscribing_ends_the_retained_messages(start_broker) -> None:
    broker = start_broker(max_inflight_messages=10)
    fill(broker, 5000, 1)
    with Peer(broker.port) as client:
        client.connect(b"client")
        client.subscribe(b"#", 1)
        client.send(encoder.unsubscribe(2, b"#"))
        while (packet := client.receive()).kind != UNSUBACK:
            assert packet.kind == PUBLISH
        # What was in the queue by then still comes; nothing follows it.
        session = broker.view.session(b"client")
        assert session is not None and broker.call(lambda: session.queued) <= 1000
        while found := client.flush():
            for packet in found:
                client.send(encoder.acknowledgement(PUBACK, packet.packet_id))
        assert broker.call(lambda: broker.stats.messages_out) <= 1010


def test_a_client_that_does_not_read_gets_no_more_than_its_buffer_until_it_does(start_broker) -> None:
    broker = start_broker(max_output_buffer=65536, sys_interval=0)
    fill(broker, 2000, 0, bytes(4096))
    with Peer(broker.port, receive_buffer=4096) as slow:
        slow.connect(b"slow")
        slow.subscribe(b"#", 0)
        session = broker.view.session(b"slow")
        assert session is not None and session.connection is not None
        connection = session.connection
        broker.wait_until(lambda: connection.congested)
        assert broker.call(connection.transport.get_write_buffer_size) < 8 * 65536
        assert len({slow.receive().topic_name for _ in range(2000)}) == 2000
        assert broker.stats.dropped == 0
