"""Large messages arrive even if they take longer than every deadline, and a link that stops meanwhile is found."""

from timing import STARTS, elapsed, run_until
from umqtt_testkit.portable import equal
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
