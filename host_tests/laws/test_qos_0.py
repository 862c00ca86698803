"""QoS 0: publish() returns and counts only what can be known, and queue_qos0 drops no unsent message."""

from umqtt_testkit.portable import equal
from world import Broker, World

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
