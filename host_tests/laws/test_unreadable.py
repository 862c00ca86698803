"""A message that the store can no longer read does not block the others."""

from world import World

from umqtt_robust.policy import UNREADABLE
from umqtt_robust.store import MemoryStore

HEAP = "512K"


class Damaged(MemoryStore):
    def load(self, slot):
        return (b"", b"") if slot == 0 else MemoryStore.load(self, slot)


def test_a_message_that_cannot_be_read_is_reported_and_the_others_are_sent():
    # Planted: an unreadable message is sent as an empty one.
    for qos in (1, 2):
        world = World(store=Damaged())
        dropped = []
        world.client.on_dropped = lambda *what: dropped.append(what)
        first = world.client.publish("t", b"one", qos)
        world.client.publish("t", b"two", qos)
        assert world.run(lambda: not world.client.pending), "the outbox is held up"
        assert world.brokers[0].taken == [(b"t", b"two")]
        assert dropped == [(first, b"", b"", UNREADABLE)]
        assert world.client.discarded == 1
        assert not world.faults()
