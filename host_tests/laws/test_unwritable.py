"""With a store that cannot write, the client connects, reports it, and does everything that needs no store."""

from umqtt_testkit.portable import equal, raises
from world import Broker, Flash, World

from umqtt_robust.errors import StoreError
from umqtt_robust.policy import DROP_OLDEST

HEAP = "2M"


def subscribing(world):
    world.client.subscribe(b"down/#", 2)


def up(world):
    world.client.tick()  # the client notices a broken link
    return world.run(lambda: world.client.connected and world.client.subscribed)


def world_of(unwritable, session=None, brokers=None):
    """Return a device whose flash says that its session belongs to a broker, and cannot write some of its files."""
    flash = Flash()
    flash.state = {"session": session} if session else {}
    flash.unwritable = unwritable
    return World(brokers, flash=flash, program=subscribing)


def store_errors(world):
    return [1 for error in world.of_kind("error") if isinstance(error, StoreError)]


def test_it_connects_and_goes_on_with_what_works():
    # Planted: a broker's name that cannot be written ends the link; so does one that cannot be cleared.
    for unwritable in ("session", "everything"):
        for session in (None, "host0:1883", "elsewhere:1883"):
            world = world_of(unwritable, session)
            broker = world.brokers[0]
            assert up(world), (unwritable, session, world.events)
            assert store_errors(world)
            for link in range(4):
                equal(world.client.publish(b"up", b"%d" % link), 0)
                if unwritable == "session":
                    world.client.publish(b"up", b"at 1: %d" % link, 1)
                else:
                    raises(StoreError, world.client.publish, b"up", b"x", 1)
                assert broker.send(b"c", b"down/x", b"%d" % link, 2 if unwritable == "session" else 1)
                world.settle()
                assert broker.session, "still connected"
                equal(world.messages.count((b"down/x", b"%d" % link)), 1)
                world.wire.break_now()
                assert broker.send(b"c", b"down/x", b"queued %d" % link, 1)
                assert up(world)
                world.settle()
                equal(world.messages.count((b"down/x", b"queued %d" % link)), 1, "not purged in the same life")
            equal([payload for _, payload in world.taken() if len(payload) == 1], [b"%d" % i for i in range(4)])
            equal(len(broker.connects), 5)
            equal(world.faults(), [])
            # The flash works again: the next link records its name.
            world.flash.unwritable = None
            world.wire.break_now()
            assert up(world)
            equal(world.flash.state["session"], "host0:1883")


def test_what_on_error_publishes_is_sent_once():
    # Planted: the link is up while its session is being set up, so that a message is sent twice under one packet id.
    for session in (None, "host0:1883", "elsewhere:1883"):
        world = world_of("session", session)
        client = world.client
        client.on_error = lambda error, client=client: client.publish(b"log", str(error), 1)
        assert up(world)
        world.settle()
        assert world.taken() and not client.pending
        equal(len(world.taken()), len(world.brokers[0].seen) - 2, "besides CONNECT and SUBSCRIBE")
        equal(world.faults(), [])


def test_what_was_stored_goes_once_and_the_link_stays():
    # Planted: a message that cannot be removed ends the link, and is sent again on every new one.
    flash = Flash()
    world = World([Broker()], flash=flash, program=subscribing)
    for i in range(3):
        world.client.publish(b"up", b"%d" % i, 1)
    flash.unwritable = "everything"
    assert up(world)
    world.settle(200000)
    equal(world.taken(), [(b"up", b"%d" % i) for i in range(3)])
    equal((world.client.pending, world.client.reconnects), (0, 0))
    assert len(store_errors(world)) >= 3
    equal(sorted(flash.messages), [0, 1, 2], "as they were: they go again after a reset")
    flash.unwritable = None
    for i in range(3):
        world.client.publish(b"up", b"new %d" % i, 1)
    world.settle()
    equal((flash.messages, world.client.pending), ({}, 0))


def test_no_step_of_qos_2_is_stored_for_a_broker_whose_name_is_not():
    # Planted: the record of a PUBREC is written although the name of its broker could not be, so after a restart it
    # counts as that of the other broker, and PUBREL goes there.
    brokers = [Broker("a"), Broker("b")]
    world = world_of(None, None, brokers)
    assert up(world)
    world.client.publish(b"up", b"before", 2)
    brokers[0].down = True
    world.wire.break_now()
    world.flash.unwritable = "session"
    assert up(world)
    world.settle(5000)
    assert world.run(lambda: world.client.connected)
    raises(StoreError, world.client.publish, b"up", b"x", 2)
    equal(world.client.publish(b"up", b"y"), 0)
    assert not [1 for head, _ in brokers[1].seen if head == 0x62], "PUBREL"
    brokers[0].down = False
    brokers[1].down = True
    world.restart()
    world.flash.unwritable = None
    assert up(world)
    assert world.run(lambda: not world.client.pending)
    equal(brokers[0].taken, [(b"up", b"before")])


def test_what_comes_at_qos_2_waits_at_the_broker_and_the_link_stays():
    # Planted: a message at QoS 2 that cannot be stored ends the link, and every new link again.
    for rx_size in (1024, 64):  # the message arrives whole, and in pieces
        world = World([Broker()], flash=Flash(), program=subscribing, rx_size=rx_size)
        got = []
        world.client.on_large = lambda topic, offset, size, chunk, got=got: got.append((offset, bytes(chunk)))
        assert up(world)
        broker = world.brokers[0]
        world.flash.unwritable = "everything"
        sent = [b"%d " % i + bytes(80) for i in range(3)]
        for payload in sent:
            broker.send(b"c", b"down/x", payload, 2)
        broker.send(b"c", b"down/y", b"at 1", 1)
        world.settle(30000)
        broker.send(b"c", b"down/y", b"at 0", 0)
        world.settle(1000)
        equal((world.client.connected, world.client.reconnects), (True, 4))
        equal(world.messages, [(b"down/y", b"at 1"), (b"down/y", b"at 0")])
        equal(len(store_errors(world)), 1)
        # The client tries again now and then, each time on a new link.
        world.settle(600000)
        assert 7 < world.client.reconnects < 16
        equal(len(world.messages), 2)
        world.flash.unwritable = None
        world.settle(120000)
        if rx_size == 64:  # the first message was handed over before its id could not be stored
            equal(len([1 for offset, _ in got if offset == 0]), world.client.reconnects + 3)
        else:
            equal(world.messages[2:], [(b"down/x", payload) for payload in sent])
        equal((broker.session.queue, world.faults()), ([], []))


def test_what_cannot_be_dropped_is_not_counted_as_dropped():
    # Planted: a message is counted before the store has forgotten it.
    dropped = []
    world = World(flash=Flash(2), policy=DROP_OLDEST)
    client = world.client
    client.on_dropped = lambda *dropping: dropped.append(dropping[2])
    for i in range(2):
        client.publish(b"up/0", b"%d" % i, 2)
    world.flash.unwritable = "everything"
    for _ in range(3):
        raises(StoreError, client.publish, b"up/0", b"new", 2)
    equal((client.discarded, dropped, client.pending), (0, [], 2))
    world.flash.unwritable = None
    client.publish(b"up/0", b"new", 2)
    equal((client.discarded, dropped, client.pending), (1, [b"0"], 2))
