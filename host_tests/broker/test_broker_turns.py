"""Whatever one client sends is processed in turns; others are served in between; nothing is lost, doubled or moved.

The test owns the clock: each reading of it takes some milliseconds, so that turns end where the test wants.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest
from broker_peer import Packet, decode
from broker_wire import Transport
from umqtt_broker import Broker, BrokerConfig
from umqtt_broker.clients.backpressure import Backpressure
from umqtt_broker.clients.connection import Connection
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PINGRESP, PUBACK, PUBLISH, SUBACK, UNSUBACK
from umqtt_testkit.virtual_time import VirtualLoop

pytestmark = pytest.mark.tier(1)


class LookedAtLoop(VirtualLoop):
    """A loop whose time passes only when its clock is read. look: the seconds that a reading takes."""

    def __init__(self) -> None:
        self.look: Callable[[], float] = lambda: 0.0
        super().__init__()

    def time(self) -> float:
        self.now += self.look()
        return self.now


class Client:
    """A connection of the broker without a socket."""

    def __init__(self, broker: Broker, client_id: bytes, *, clean_session: bool = True) -> None:
        self.transport = Transport()
        self.connection = Connection(broker, broker.config.all_listeners()[0])
        self.connection.connection_made(self.transport)
        self.connection.data_received(encoder.connect(client_id, clean_session=clean_session))
        self.take()

    def send(self, data: bytes) -> None:
        """Let the broker read this at once."""
        self.connection.data_received(data)

    def take(self) -> list[Packet]:
        """Return what the broker has sent since the last time."""
        data, packets, at = bytes(self.transport.written), [], 0
        self.transport.written.clear()
        while at < len(data):
            length, begin = 0, at + 1
            for shift in range(0, 28, 7):
                length |= (data[begin] & 127) << shift
                begin += 1
                if data[begin - 1] < 128:
                    break
            packets.append(decode(data[at], data[begin : begin + length]))
            at = begin + length
        return packets


def in_broker(scenario: Callable[[Broker, LookedAtLoop], Awaitable[None]], **settings: object) -> None:
    """Run a scenario in the event loop of a broker that uses the test's clock."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LookedAtLoop)
        async with Broker(BrokerConfig(**{"port": 0, "sys_interval": 0} | settings)) as broker:
            await scenario(broker, loop)
            loop.look = lambda: 0.0

    with asyncio.Runner(loop_factory=LookedAtLoop) as runner:
        runner.run(main())


def a_millisecond() -> float:
    return 0.001


async def until_done(*clients: Client) -> int:
    """Let the event loop run until nothing waits for a turn. Returns the number of rounds."""
    rounds = 0
    while any(client.connection.is_waiting for client in clients):
        await asyncio.sleep(0)
        rounds += 1
    return rounds


def many_filters(kind: str) -> bytes:
    filters = [b"a/%d" % number for number in range(1000)]
    if kind == "SUBSCRIBE":
        return encoder.subscribe(1, *((each, 0) for each in filters))
    return encoder.unsubscribe(1, *filters)


@pytest.mark.parametrize(("kind", "answer"), [("SUBSCRIBE", SUBACK), ("UNSUBSCRIBE", UNSUBACK)])
@pytest.mark.parametrize("rate", [0, 1000])
def test_a_packet_of_very_many_filters_takes_turns(kind: str, answer: int, rate: int) -> None:
    # Planted: do_job() continues without reading the clock.
    async def scenario(broker: Broker, loop: LookedAtLoop) -> None:
        attacker, bystander = Client(broker, b"attacker"), Client(broker, b"bystander")
        loop.look = a_millisecond
        attacker.send(many_filters(kind) + encoder.pingreq())
        if rate:
            # This answer never waits for what is held back.
            assert [packet.kind for packet in attacker.take()] == [PINGRESP]
        served = 0
        while attacker.connection.is_waiting:
            assert attacker.take() == []
            bystander.send(encoder.pingreq())
            served += [packet.kind for packet in bystander.take()] == [PINGRESP]
            await asyncio.sleep(0)
        assert served >= 2000 / 10  # a filter is visited twice, and each reading of the clock is a fifth of a slice
        assert [packet.kind for packet in attacker.take()] == ([answer] if rate else [answer, PINGRESP])

    in_broker(scenario, max_receive_rate=rate)


@pytest.mark.parametrize(("kind", "left"), [("SUBSCRIBE", 0), ("UNSUBSCRIBE", 1000)])
def test_the_filters_of_a_client_that_has_gone_are_not_worked_off_but_the_packets_behind_them_are(
    kind: str, left: int
) -> None:
    # Planted: a job goes on when its client has gone; what came behind it is dropped with it.
    async def scenario(broker: Broker, loop: LookedAtLoop) -> None:
        client, watcher = Client(broker, b"client", clean_session=False), Client(broker, b"watcher")
        watcher.send(encoder.subscribe(1, (b"behind", 0)))
        watcher.take()
        if left:
            client.send(many_filters("SUBSCRIBE"))
            await until_done(client)
        loop.look = a_millisecond
        client.send(many_filters(kind) + encoder.publish(b"behind", b"x"))
        client.connection.connection_lost(None)
        # Checking that the filters are valid alone takes 200.
        assert await until_done(client) < 20
        assert [packet.payload for packet in watcher.take()] == [b"x"]
        assert client.connection not in broker.view.connections
        assert abs(broker.stats.subscriptions - 1 - left) < 100

    in_broker(scenario)


def test_a_broken_subscribe_of_very_many_filters_leaves_nothing() -> None:
    # Planted: a SUBSCRIBE is carried out while it is checked.
    async def scenario(broker: Broker, loop: LookedAtLoop) -> None:
        attacker = Client(broker, b"attacker", clean_session=False)
        loop.look = a_millisecond
        attacker.send(encoder.subscribe(1, *((b"a/%d" % number, 0) for number in range(1000)), (b"a/#/b", 0)))
        await until_done(attacker)
        assert attacker.transport.closed and broker.view.subscription_nodes == 0

    in_broker(scenario)


def test_a_session_with_very_many_subscriptions_ends_in_slices_and_gets_nothing_meanwhile() -> None:
    """Planted: remove_session() does it all at once; an ended session is still matched."""

    async def scenario(broker: Broker, loop: LookedAtLoop) -> None:
        leaver, bystander = Client(broker, b"leaver"), Client(broker, b"bystander")
        for shape in (b"a/%d", b"$share/g/s/%d"):
            leaver.send(encoder.subscribe(1, *((shape % number, 1) for number in range(1000))))
        await until_done(leaver)
        bystander.send(encoder.subscribe(1, (b"a/1", 1)))
        bystander.take()
        loop.look = a_millisecond
        leaver.connection.connection_lost(None)
        assert broker.view.session(b"leaver") is None
        rounds = 0
        while broker.stats.subscriptions > 1:
            bystander.send(encoder.publish(b"a/999", b"", 1, 1) + encoder.publish(b"a/1", b"", 1, 2))
            assert sorted(packet.kind for packet in bystander.take()) == [PUBLISH, PUBACK, PUBACK]
            bystander.send(encoder.acknowledgement(PUBACK, rounds + 1))
            await asyncio.sleep(0)
            rounds += 1
        assert rounds >= 2000 / 10  # the clock is read for each, and each reading is a fifth of a slice
        assert broker.view.subscription_nodes == 1 and not broker.view.groups and broker.stats.dropped == 0
        assert broker.context.limits is not None and broker.context.limits.messages == 0

    in_broker(scenario)


def test_a_broker_that_stops_leaves_what_ended_sessions_had_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # Planted: the subscriptions of ended sessions, and their records in the store, are removed while the store closes.
    async def scenario(broker: Broker, loop: LookedAtLoop) -> None:
        leaver = Client(broker, b"leaver")
        leaver.send(many_filters("SUBSCRIBE"))
        await until_done(leaver)
        loop.look = a_millisecond
        leaver.connection.connection_lost(None)
        close = broker.store.close

        async def close_slowly() -> None:
            for _ in range(1000):
                await asyncio.sleep(0)
            await close()

        monkeypatch.setattr(broker.store, "close", close_slowly)
        await broker.stop()
        assert broker.stats.subscriptions > 500

    in_broker(scenario)


def test_the_waiting_messages_of_a_session_that_ends_are_released_in_slices() -> None:
    # Planted: the queue of an ended session is released at once: a million messages take 0.1 s.
    async def scenario(broker: Broker, loop: LookedAtLoop) -> None:
        leaver, writer = Client(broker, b"leaver"), Client(broker, b"writer")
        leaver.send(encoder.subscribe(1, (b"a", 1)))
        for _ in range(50):
            writer.send(encoder.publish(b"a", b"", 1, 1) * 1000)
            await until_done(writer)
        session = broker.view.session(b"leaver")
        assert session is not None and len(session.queue) == 50_000 - 1
        loop.look = a_millisecond
        leaver.connection.connection_lost(None)
        assert broker.view.session(b"leaver") is None and broker.stats.queued == 0
        assert broker.context.limits is not None and broker.context.limits.messages == 0
        rounds = 0
        while len(session.queue) > 1000:
            before = len(session.queue)
            await asyncio.sleep(0)
            rounds += 1
            assert before - len(session.queue) <= 6000
        assert rounds >= 50 / 6
        writer.send(encoder.publish(b"a", b"", 1, 1))
        await asyncio.sleep(0)
        assert broker.stats.subscriptions == 0

    in_broker(scenario, max_inflight_messages=1)


def test_those_who_send_much_take_turns_with_each_other() -> None:
    # Planted: Turns.wait() continues with the same connection first.
    async def scenario(broker: Broker, loop: LookedAtLoop) -> None:
        watcher = Client(broker, b"watcher")
        watcher.send(encoder.subscribe(1, (b"#", 0)))
        watcher.take()
        clients = [Client(broker, b"client %d" % number) for number in range(3)]
        loop.look = a_millisecond
        for number, client in enumerate(clients):
            client.send(encoder.publish(b"%d" % number, bytes(100)) * 3000)
        rounds = await until_done(*clients)
        names = [packet.topic_name for packet in watcher.take()]
        changes = sum(one != other for one, other in pairwise(names))
        assert len(names) == 9000 and changes >= 20 and rounds >= 20

    in_broker(scenario)


def random_packets(rng: random.Random) -> bytes:
    """Return what a client may send in one read, including complete QoS 2 exchanges."""
    packets = b""
    for number in range(1, 60):
        name, payload = b"t/%d" % rng.randrange(3), b"%d" % number + bytes(rng.choice((0, 30, 3000)))
        kind = rng.randrange(6)
        if kind < 3:
            packets += encoder.publish(name, payload, kind, number, retain=rng.random() < 0.2)
            if kind == 2:
                packets += encoder.acknowledgement(encoder.PUBREL, number)
        elif kind == 3:
            packets += encoder.subscribe(number, *((b"t/%d/%d" % (number, each), 1) for each in range(20)), (b"t/+", 2))
        elif kind == 4:
            packets += encoder.unsubscribe(number, b"t/%d" % number, b"t/+")
        else:
            packets += encoder.pingreq()
    return packets


@pytest.mark.parametrize("seed", range(40) if os.environ.get("UMQTT_FULL_SWEEPS") else range(3))
@pytest.mark.parametrize("settings", [{}, {"max_receive_rate": 50}, {"max_queued_messages": 3}])
@pytest.mark.parametrize("is_lost", [False, True])
def test_turns_change_nothing_of_what_is_answered_and_delivered(
    seed: int, settings: dict[str, int], is_lost: bool
) -> None:
    # Planted: process() forgets the rest; connection_lost() ends before the connection has had its turns.
    answers: list[object] = []
    for is_slow in (False, True):
        rng, rng_of_time = random.Random(seed), random.Random(seed)

        async def scenario(
            broker: Broker, loop: LookedAtLoop, rng=rng, rng_of_time=rng_of_time, is_slow=is_slow
        ) -> None:
            watcher, client = Client(broker, b"watcher"), Client(broker, b"client")
            watcher.send(encoder.subscribe(1, (b"t/+", 0)))
            client_got, watcher_got = [], watcher.take()
            loop.look = (lambda: rng_of_time.choice((0.0, 0.001, 0.01))) if is_slow else (lambda: 0.0)
            data = random_packets(rng)
            cuts = sorted(rng.randrange(len(data)) for _ in range(5))
            for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                client.send(data[begin:end])
            if is_lost:
                client.connection.connection_lost(None)
            for _ in range(3000):
                await asyncio.sleep(0.01)
                client_got += client.take()
                watcher_got += watcher.take()
                if len(watcher_got) > 1 and not client.connection.is_waiting and not waits(client):
                    break
            if not is_lost:
                client_got += client.take()
                assert broker.view.session(b"client") is not None
            else:
                assert client.connection not in broker.view.connections
            # Turns may not change the order of messages to the client itself, nor that of answers; between them there
            # is none.
            kinds = [(packet.kind, packet.packet_id) for packet in client_got if packet.kind != PUBLISH]
            messages = [packet.payload for packet in client_got if packet.kind == PUBLISH and not packet.retain]
            answers.append(
                (
                    # What never waits overtakes what is held back.
                    [] if is_lost else sorted(kinds) if settings else kinds,
                    [] if is_lost or settings else messages,
                    [(packet.topic_name, packet.payload) for packet in watcher_got if packet.kind == PUBLISH],
                    sorted(broker.view.retained),
                )
            )

        in_broker(scenario, **settings)
    assert answers[0] == answers[1]


def waits(client: Client) -> bool:
    backpressure = client.connection.backpressure
    return backpressure is not None and bool(backpressure.waiting)


def test_the_end_of_a_large_packet_in_single_bytes_is_not_copied_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # Planted: Backpressure.feed() runs for every byte.
    fed: list[int] = []
    feed = Backpressure.feed
    monkeypatch.setattr(Backpressure, "feed", lambda self, data: (fed.append(len(data)), feed(self, data)))

    async def scenario(broker: Broker, loop: LookedAtLoop) -> None:
        del loop
        client = Client(broker, b"client")
        packet = encoder.publish(b"large", bytes(1_000_000), 1, 1)
        client.send(packet[:-1000])
        for at in range(len(packet) - 1000, len(packet)):
            client.send(packet[at : at + 1])
        assert len(client.take()) == 1
        assert sum(fed) < 2 * len(packet)

    in_broker(scenario, max_receive_rate=100)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_for_very_many_is_written_in_slices_and_acknowledged_when_all_have_it(
    tmp_path: Path, qos: int, durable: bool
) -> None:
    """Planted: all are written at once; the publisher is answered, or read from, before the last; another publisher is
    answered before its message has followed the first one; what is late at the end is not written.
    """

    async def scenario(broker: Broker, loop: LookedAtLoop) -> None:
        everyone = [Client(broker, b"%d" % number) for number in range(1000)]
        publisher, second, bystander = (Client(broker, name) for name in (b"publisher", b"second", b"bystander"))
        if durable:
            keeper = Client(broker, b"keeper", clean_session=False)
            keeper.send(encoder.subscribe(1, (b"a", 1)))
        for one in everyone:
            one.send(encoder.subscribe(1, (b"a", qos)))
            one.take()
        await asyncio.sleep(0)
        loop.look = a_millisecond
        written = [len(one.transport.written) for one in everyone]

        def newly_written() -> int:
            nonlocal written
            before, written = written, [len(one.transport.written) for one in everyone]
            return sum(map(int.__ne__, before, written))

        publisher.send(b"".join(encoder.publish(b"a", b"%d" % each, 1, each + 1) for each in range(2)))
        publisher.send(encoder.pingreq())
        second.send(encoder.publish(b"a", b"2", 1, 1))
        most = served = rounds = 0
        while not publisher.transport.written or not second.transport.written:
            for one, last in ((publisher, b"1"), (second, b"2")):
                assert not one.transport.written or all(last in each.transport.written for each in everyone)
            most = max(most, newly_written())
            bystander.send(encoder.pingreq())
            served += [packet.kind for packet in bystander.take()] == [PINGRESP]
            rounds += 1
            await (asyncio.sleep(0.001) if durable else asyncio.sleep(0))
        assert 0 < most <= 2 * 5 * (20 if durable else 1), "a reading of the clock is a fifth of a slice"
        assert served == rounds
        assert all(b"1" in each.transport.written and b"2" in each.transport.written for each in everyone)
        while not [packet for packet in publisher.take() if packet.kind == PINGRESP]:
            await asyncio.sleep(0)
        for one in everyone:
            assert [packet.payload for packet in one.take()] == [b"0", b"1", b"2"]
        publisher.send(encoder.publish(b"a", b"last", 1, 3))
        assert not all(one.transport.written for one in everyone)
        await broker.stop()
        assert all([packet.payload for packet in one.take()] == [b"last"] for one in everyone)

    in_broker(scenario, **({"store": str(tmp_path / "broker.db")} if durable else {}))


def test_many_messages_for_very_many_are_all_acknowledged_in_order() -> None:
    """Planted: a turn that was asked for before goes on while the acknowledgements still wait."""

    async def scenario(broker: Broker, loop: LookedAtLoop) -> None:
        everyone = [Client(broker, b"%d" % number) for number in range(300)]
        publisher = Client(broker, b"publisher")
        for one in everyone:
            one.send(encoder.subscribe(1, (b"a", 1)))
            one.take()
        loop.look = a_millisecond
        payloads = [b"%0300d" % each for each in range(100)]
        publisher.send(b"".join(encoder.publish(b"a", each, 1, at) for at, each in enumerate(payloads, 1)))
        assert publisher.connection.is_waiting
        acknowledged: list[int] = []
        rounds = 0
        while len(acknowledged) < 100 and rounds < 100_000:
            acknowledged += [packet.packet_id for packet in publisher.take()]
            rounds += 1
            await asyncio.sleep(0)
        assert acknowledged == list(range(1, 101))
        for one in everyone:
            assert [packet.payload for packet in one.take()] == payloads

    in_broker(scenario)
