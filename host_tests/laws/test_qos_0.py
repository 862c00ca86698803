"""QoS 0: publish() returns and counts only what can be known, and queue_qos0 drops no unsent message."""

from umqtt_testkit.encoder import connack, publish
from umqtt_testkit.portable import FULL, Clock, Rng, equal
from world import Broker, World

from umqtt_robust import Client
from umqtt_robust.base_errors import LinkLost

HEAP = "2M"


def connected(**options):
    world = World([Broker()], tx_size=64, **options)
    assert world.run(lambda: world.client.connected)
    return world


def test_queued_while_the_link_takes_nothing():
    # Planted: with an empty queue, a message that does not fit into the send buffer is dropped.
    for size in (1, 20, 40, 200):
        world = connected(queue_qos0=True)
        world.wire.full = True
        sent = [(b"t", bytes((65 + i,)) * size) for i in range(12)]
        for topic, payload in sent:
            assert world.client.publish(topic, payload) is not None
            world.client.tick()
        equal(world.client.discarded, 0)
        world.wire.full = False
        assert world.run(lambda world=world: not world.client.pending)
        equal(world.taken(), sent)
        equal(world.client.sent, 12)
        equal(world.faults(), [])


def test_a_write_that_fails_has_sent_nothing():
    # Planted: a write that the link refuses counts as sent; a message queued instead is written at once all the same.
    for queued in (False, True):
        world = connected(queue_qos0=queued)
        client = world.client
        client.publish(b"t", b"first")
        world.wire.break_now()
        results = [client.publish(b"t", b"%d" % i) for i in range(4)]
        equal([result is None for result in results], [not queued] * 4)
        equal((client.sent, client.discarded), (1, 0 if queued else 4))
        world.settle()
        assert world.run(lambda client=client: client.connected and not client.pending)
        rest = [(b"t", b"%d" % i) for i in range(4)] if queued else []
        equal(world.taken(), [(b"t", b"first")] + rest)
        equal(world.faults(), [])


# Sizes around the limit of a remaining length of one byte, and of small send buffers.
_SIZES = (0, 1, 5, 10, 20, 40, 100, 119, 120, 121, 122, 123, 124, 125, 300)


class Lived:
    """A session whose program, link and broker do what `rng` says. same_topic: each topic is always one object."""

    def __init__(self, rng, same_topic):
        self.rng = rng
        self.same_topic = same_topic
        self.clock = Clock()
        protocol = 5 if rng.below(4) == 0 else 4
        self.properties = b"\0" if protocol == 5 else b""  # none, as MQTT 5 writes it
        self.wire = b""
        self.takes = None  # bytes that the link takes yet; None: all; -1: it fails once
        self.found = []
        self.client = Client(b"c", "mqtt://h", 60, ticks=self.clock.ticks_ms, tx_size=(32, 64, 140, 1024)[rng.below(4)],
                             queue_qos0=rng.below(4) == 0, protocol=protocol)  # fmt: skip
        self.open()
        for _ in range(40):
            self.step()
        client = self.client
        self.found.append((self.wire, client.sent, client.discarded, client.pending))

    def open(self):
        self.takes = None
        self.client.open(self.write)
        self.give(connack(False, 0, self.properties))
        self.work()

    def write(self, buf, offset, size):
        if self.takes is not None:
            if self.takes < 0:
                self.takes = None
                raise OSError(12)
            size = min(size, self.takes)
            self.takes -= size
        self.wire += bytes(buf[offset : offset + size])
        return size

    def give(self, packet):
        self.handle(self.client.receive, bytearray(packet), len(packet))

    def work(self):
        self.client.advance()
        self.handle(self.client.work)

    def handle(self, function, *arguments):
        try:
            function(*arguments)
        except (OSError, LinkLost) as error:
            self.found.append(error.args[0])
            self.client.close()
            self.open()

    def step(self):
        rng = self.rng
        client = self.client
        what = rng.below(12)
        if what < 7:
            topic = (b"topic", b"t" * 20, b"long/" * 22)[rng.below(3) if rng.below(4) == 0 else 0]
            if not self.same_topic:
                topic = bytes(bytearray(topic))
            payload = bytes((97 + rng.below(26),)) * _SIZES[rng.below(len(_SIZES))]
            if rng.below(4) == 0:
                payload = bytearray(payload) if rng.below(2) else payload.decode()
            self.found.append(client.publish(topic, payload, int(rng.below(8) == 0), rng.below(8) == 0))
        elif what == 7:
            client.subscribe(b"in/%d" % rng.below(3), rng.below(2))
        elif what == 8:  # an acknowledgement waits in the send buffer, unless the link takes it
            self.give(publish(b"in/x", b"p", 1, 7, properties=self.properties))
            for packet_id in sorted(client.subscriptions.requests):
                self.give(b"\x90" + bytes((3 + len(self.properties), 0, packet_id)) + self.properties + b"\0")
        elif what == 9:
            self.takes = (None, 0, 1 + rng.below(150), -1)[rng.below(4)]
        elif what == 10:
            self.clock.advance(rng.below(3000))
            if rng.below(4) == 0:
                client.close()
                topic = b"topic" if self.same_topic else bytes(bytearray(b"topic"))
                self.found.append(client.publish(topic, b"no link"))
                self.open()
        else:
            self.work()


def test_a_message_to_the_topic_of_the_one_before_is_sent_as_any_other():
    # Planted, in put(): a limit one byte higher, or that of a larger send buffer; no look at what waits to be
    # sent, at a subscription that was asked for, at the link, at MQTT 5, at queue_qos0, at the payload's class; and in
    # publish(): `sent` counts a write that failed.
    for seed in range(3000 if FULL else 100):
        equal(Lived(Rng(seed, True), True).found, Lived(Rng(seed, True), False).found, seed)
