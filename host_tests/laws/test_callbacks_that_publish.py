"""What a callback publishes needs room like all messages: without it nothing waits for ever, is lost or recurs."""

from umqtt_testkit.portable import equal
from world import Broker, Flash, World, with_mqtt5

from umqtt_robust import policy
from umqtt_robust.base_errors import OutboxFull
from umqtt_robust.store import MemoryStore


def announcing(world):
    """Let the program announce, on each link, that it is online."""

    def on_connect(present):
        world.events.append(("connect", present))
        world.client.publish(b"status", b"online", 1, True)

    world.client.on_connect = on_connect


def test_on_connect_that_finds_the_outbox_full_is_called_again_when_there_is_room():
    """Planted: OutboxFull ends the link, on each link anew, so nothing is ever sent."""
    for slots in (1, 4, 32):
        for flash in (None, Flash(slots)):
            broker = Broker()
            options = {} if flash else {"store": MemoryStore(slots)}
            world = World([broker], flash=flash, program=announcing, **options)
            sent = [b"%d" % n for n in range(slots)]
            for payload in sent:
                world.client.publish(b"t", payload, 1)
            if flash:
                world.restart()
            assert world.run(lambda world=world: world.client.connected)
            assert world.run(lambda world=world: not world.client.pending, 60000), (slots, flash)
            equal([payload for _topic, payload in world.taken()], sent + [b"online"])
            equal(len(world.wires), 1, "one link")
            errors = [what for name, what in world.events if name == "error"]
            assert [type(error) for error in errors] == [OutboxFull], errors
            equal((world.client.discarded, world.faults()), (0, []))


def test_on_connect_is_called_again_on_the_link_of_its_call_alone():
    """Planted: a call that was put off comes on the next link, beside that link's own."""
    world = World(program=announcing, store=MemoryStore(4))
    assert world.run(lambda: world.client.connected)
    world.settle()
    world.client.part("backpressure").connected(True, OutboxFull(4))
    world.wire.break_now()
    assert world.run(lambda: len(world.wires) == 2 and world.client.connected)
    world.settle()
    equal((world.of_kind("connect"), len(world.taken())), ([False, True], 2))


def test_on_dropped_that_publishes_neither_recurs_nor_costs_another_message():
    """Planted: it is called before the message is taken out, so its own message drops the same one again."""
    for what in (policy.DROP_OLDEST, policy.DROP_NEWEST):
        world = World(store=MemoryStore(4), policy=what)
        client = world.client
        dropped = []

        def on_dropped(packet_id, topic, payload, reason, client=client, dropped=dropped):
            dropped.append(payload)
            client.publish(b"notice", b"dropped " + payload, 1)

        client.on_dropped = on_dropped
        for n in range(8):
            client.publish(b"t", b"%d" % n, 1)
        oldest = what == policy.DROP_OLDEST
        equal(dropped, [b"0", b"1", b"2", b"3"] if oldest else [])
        equal(client.discarded, 8 if oldest else 4, "four messages, and the notices about them")
        assert world.run(lambda: not world.client.pending)
        first = 4 if oldest else 0
        equal([payload for _topic, payload in world.taken()], [b"%d" % n for n in range(first, first + 4)])


def test_a_notice_about_an_expired_message_takes_its_place():
    world = World(store=MemoryStore(1))
    client = world.client
    client.on_dropped = lambda packet_id, topic, payload, reason: client.publish(b"notice", b"late " + payload, 1)
    client.publish(b"t", b"0", 1, expires_in=1000)
    world.unreachable = True
    world.settle(5000)
    world.unreachable = False
    assert world.run(lambda: not client.pending)
    equal(world.taken(), [(b"notice", b"late 0")])


test_on_connect_that_finds_the_outbox_full_is_called_again_with_mqtt5 = with_mqtt5(
    test_on_connect_that_finds_the_outbox_full_is_called_again_when_there_is_room
)
