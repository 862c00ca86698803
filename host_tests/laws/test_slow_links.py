"""Large messages arrive even if they take longer than every deadline, and a link that stops meanwhile is found."""

import sys

from timing import STARTS, elapsed, run_until
from umqtt_testkit.portable import equal, skip
from world import Broker, World, publish

HEAP = "4M"
TIMEOUT_S = 100
BODY = bytes([i * 7 & 255 for i in range(3000)])  # takes two minutes


class SlowWorld(World):
    """A world whose link carries 25 bytes a second each way."""

    def __init__(self, start, **options):
        self.slow = False
        World.__init__(self, [Broker()], start, rx_size=64, tx_size=64, **options)
        self.client.on_large = self._piece
        self.whole = []
        self.client.subscribe(b"down/#", 1)
        assert self.run(lambda: self.client.connected and self.client.subscribed)
        self.settle()
        self.slow = True

    def _piece(self, topic, offset, size, chunk):
        if offset + len(chunk) == size:
            self.whole.append(topic)

    def _more(self):
        return (not self.slow or not self.wire.alive) and World._more(self)

    def _make(self, host, port, path):
        wire = World._make(self, host, port, path)
        read, write = wire.read, wire.write
        moved = {read: 0, write: 0}
        since = self.clock.ticks_ms()

        def slowly(do, buf, offset, size):
            if self.slow:
                size = min(size, elapsed(self, since) // 40 - moved[do])
            if size <= 0:
                return None
            n = write(buf, offset, size) if do is write else read(memoryview(buf)[: offset + size], offset)
            moved[do] += n or 0
            return n

        wire.write = lambda buf, offset, size: slowly(write, buf, offset, size)
        wire.read = lambda buf, offset: slowly(read, buf, offset, len(buf) - offset)
        return wire


def test_a_large_message_that_takes_longer_than_every_deadline_is_delivered():
    # Planted: sending a large message does not extend the deadlines.
    for start in STARTS:
        for qos in (0, 1, 2):
            for keep_alive in (10, 0):
                world = SlowWorld(start, keep_alive=keep_alive)
                world.client.publish(b"up/large", BODY, qos)
                world.client.publish(b"up/small", b"x", 1)
                assert world.run(lambda world=world: len(world.taken()) == 2 and not world.client.pending), qos
                equal(world.of_kind("disconnect"), [])


def test_what_waits_for_its_acknowledgement_behind_a_large_message_is_not_given_up():
    # Planted: receiving a large message does not extend the acknowledgement timeout.
    for start in STARTS:
        for keep_alive in (10, 0):
            world = SlowWorld(start, keep_alive=keep_alive)
            broker = world.brokers[0]
            broker.send(b"c", b"down/large", BODY, 1)
            world.settle(1000)
            world.client.publish(b"up/small", b"x", 1)
            world.client.subscribe(b"more")
            assert world.run(lambda client=world.client: not client.pending and client.subscribed)
            equal((world.whole, world.of_kind("disconnect")), ([b"down/large"], []))
            world.settle(1000)
            equal(broker.session.queue, [])


def test_a_link_that_stops_in_the_middle_of_a_large_message_is_found():
    # Planted: a large message extends the deadlines even if the link takes none of it.
    for start in STARTS:
        for keep_alive, within in ((10, 10000), (0, 30000)):
            for up in (True, False):
                world = SlowWorld(start, keep_alive=keep_alive)
                if up:
                    world.client.publish(b"up/large", BODY, 1)
                else:
                    world.wire.send(publish(b"down/large", BODY))
                    world.settle(1000)
                    world.client.publish(b"up/small", b"x", 1)
                world.settle(60000)
                assert world.client.connected
                world.wire.full = world.wire.mute = True
                took = run_until(world, lambda world=world: not world.client.connected, 60000)
                assert took <= within, (took, keep_alive, up)


class QueuedWorld(World):
    """A world whose system takes all bytes at once, as a computer does, and sends them at 1,000 bytes a second."""

    def __init__(self, start=0, **options):
        if sys.implementation.name == "micropython":
            skip("a board's system takes a few KB, and does not tell what it has sent")
        self.stopped = self.hung = False
        World.__init__(self, [Broker()], start, **options)
        assert self.run(lambda: self.client.connected)

    def _make(self, host, port, path):
        wire = World._make(self, host, port, path)
        write, read = wire.write, wire.read
        queued = bytearray()
        state = {"confirmed": 0, "at": self.clock.ticks_ms()}

        def drain():
            n = 0 if self.stopped else min(elapsed(self, state["at"]), len(queued))
            state["at"] = self.clock.ticks_ms()
            state["confirmed"] += n
            if n and not self.hung:
                write(bytes(queued), 0, n)
            del queued[:n]

        def take(buf, offset, size):
            drain()
            queued.extend(buf[offset : offset + size])
            return size

        def look():
            drain()
            return state["confirmed"], len(queued)

        def receive(buf, offset):
            drain()
            return read(buf, offset)

        wire.write, wire.read, wire.queue = take, receive, look
        return wire


def test_what_takes_longer_than_every_deadline_in_the_systems_queue_is_delivered_once():
    # Planted: an acknowledgement is awaited from the moment on when the system has taken the message.
    for start in STARTS:
        for qos in (1, 2):
            for keep_alive in (10, 60, 0):
                world = QueuedWorld(start, keep_alive=keep_alive)
                world.client.subscribe(b"down/#", 1)
                world.client.publish(b"up/large", bytes(40000), qos)
                world.client.subscribe(b"more/#", 1)
                world.client.publish(b"up/small", b"x", 1)
                client = world.client
                assert world.run(lambda client=client: not client.pending and client.subscribed), (qos, keep_alive)
                equal((len(world.taken()), world.of_kind("disconnect")), (2, []), (qos, keep_alive))


def test_messages_above_the_rate_of_the_line_are_delivered_once():
    # Planted: a message that leaves the queue late has the time of those before it.
    for qos in (1, 2):
        world = QueuedWorld(keep_alive=60)
        for _ in range(20):
            world.client.publish(b"up/large", bytes(8000), qos)
            world.settle(3000)
        assert world.run(lambda world=world: not world.client.pending)
        equal((len(world.taken()), world.of_kind("disconnect")), (20, []), qos)


def test_a_link_that_stops_with_bytes_in_the_systems_queue_is_found_in_time():
    # Planted: bytes in the queue extend the deadlines even if none of them leaves it.
    for start in STARTS:
        for keep_alive, within in ((10, 11200), (60, 41200), (0, 31200)):
            world = QueuedWorld(start, keep_alive=keep_alive)
            world.client.publish(b"up/large", bytes(100000), 1)
            world.settle(45000)
            assert world.client.connected
            world.stopped = True
            took = run_until(world, lambda world=world: not world.client.connected, 60000)
            assert took <= within, (took, keep_alive)


def test_a_broker_that_hangs_is_found_in_time_though_its_system_takes_bytes():
    # Planted: bytes that leave the queue count as bytes that arrive.
    for start in STARTS:
        for keep_alive, within in ((10, 11200), (60, 41200), (0, 31200)):
            world = QueuedWorld(start, keep_alive=keep_alive)
            world.hung = True
            since = world.clock.ticks_ms()
            world.client.publish(b"up/small", b"x", 1)
            while world.client.connected:
                world.client.publish(b"up/0", bytes(50))
                world.client.tick()
                world.clock.advance(100)
                assert elapsed(world, since) <= within, keep_alive


def test_a_lost_acknowledgement_is_noticed_in_a_steady_flow_through_the_systems_queue():
    # Planted: every byte that leaves the queue is progress of every message.
    world = QueuedWorld(keep_alive=60)
    world.client.publish(b"up/large", bytes(8000), 1)
    world.brokers[0].acknowledge = False
    world.client.publish(b"up/lost", b"x", 1)
    since = world.clock.ticks_ms()
    while world.client.connected:
        if len(world.taken()) == 2:
            world.brokers[0].acknowledge = True
        world.client.publish(b"up/0", bytes(300))
        world.client.tick()
        world.clock.advance(300)
        assert elapsed(world, since) <= 43000
    assert elapsed(world, since) >= 37000
