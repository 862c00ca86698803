"""A broker's queue for a client survives the client's reset and its changes between the brokers of a list.

A packet id that the broker remembers from before the reset would swallow a new message at QoS 2, so the client makes
the broker forget the id first. test_power_cut_at_every_step.py restarts with memory only between any two ticks.
"""

from umqtt_testkit.portable import equal
from world import Broker, Flash, World, every

HEAP = "2M"
QUEUE = [(b"down/x", b"%d" % i) for i in range(5)]
BEFORE = [(b"up", b"before %d" % i) for i in range(3)]
CUTS = [{"cut_up": at} for at in every(120, 7)] + [{"cut_down": at} for at in every(90, 7)]
AFTER = [(b"up", b"after %d" % i) for i in range(4)]


def up(world):
    world.client.tick()  # the client notices a broken link
    return world.run(lambda: world.client.connected and world.client.subscribed and not world.client.pending)


def reset_with_a_queue(qos=1, broker=None, before=(), **options):
    """Return a world after a reset: messages at QoS 2 were half done, and since then the broker has QUEUE for it."""
    world = World([broker or Broker()], **options)
    world.program = lambda world: world.client.subscribe(b"down/#", qos)
    world.program(world)
    assert up(world)
    broker = world.brokers[0]
    broker.hold_recs = 99
    for topic, payload in before:
        world.client.publish(topic, payload, 2)
    world.client.tick()
    world.wire.break_now()
    broker.lost(world.wire)
    broker.hold_recs = 0
    for topic, payload in QUEUE:
        assert broker.send(b"c", topic, payload, qos)
    if world.flash:  # it was at another broker since, and the packet ids begin again
        world.flash.messages.clear()
        world.flash.inbound.clear()
        world.flash.state["session"] = "elsewhere:1883"
    world.restart()
    return world


def purges(world):
    return [1 for error in world.of_kind("error") if type(error).__name__ == "SessionPurged"]


def test_it_arrives_after_a_reset():
    # Planted: resume.py purges every session that its store does not know.
    for qos in (1, 2):
        for publishes in (None, 0, 1, 2):
            world = reset_with_a_queue(qos)
            if publishes is not None:
                world.client.publish(b"up", b"after", publishes)
            assert up(world)
            world.client.publish(b"up", b"at once", 1)
            assert up(world)
            world.settle()
            equal(world.messages, QUEUE)
            equal(world.of_kind("connect")[-1], True)
            # From now on the session is the client's own.
            world.wire.break_now()
            assert up(world)
            world.brokers[0].send(b"c", b"down/x", b"last", qos)
            world.settle()
            equal(world.messages, QUEUE + [(b"down/x", b"last")])
            equal(purges(world), [])
            equal(world.faults(), [])


def test_no_packet_id_from_before_the_reset_swallows_a_message_at_qos_2():
    # Planted: a message at QoS 2 leaves at once; PUBCOMP is not waited for.
    for late in (False, True):
        for first in (False, True):
            for cut in CUTS:
                for window in (1, 8):
                    world = reset_with_a_queue(2, Broker(late=late), BEFORE, window=window)
                    world.cuts = [cut]
                    if not first:
                        assert world.run(lambda world=world: world.client.connected)
                    for topic, payload in AFTER:
                        world.client.publish(topic, payload, 2)
                    assert up(world)
                    world.settle()
                    assert up(world)
                    equal([one for one in world.taken() if one in AFTER], AFTER, cut)
                    equal([one for one in world.messages if one in QUEUE], QUEUE, cut)
                    equal(purges(world), [])
                    equal(world.faults(), [])


class Deaf(Broker):
    """A broker that ends the link at a PUBREL with an unknown packet id, or, if silent, stops answering."""

    silent = False

    def _released(self, wire, packet_id):
        if packet_id in self.session.inbound:
            return Broker._released(self, wire, packet_id)
        if self.silent:
            wire.mute = True
        else:
            wire.fin = True


def test_a_broker_that_takes_no_pubrel_for_an_id_that_it_does_not_know_is_soon_asked_no_more():
    # Planted: an unanswered PUBREL is sent on every new link, for ever; the broker's session is then purged.
    for silent in (False, True):
        world = reset_with_a_queue(broker=Deaf())
        world.brokers[0].silent = silent
        assert up(world)
        began = world.clock.ticks_ms()
        equal(world.messages, QUEUE)
        world.brokers[0].send(b"c", b"down/x", b"last", 1)
        for topic, payload in AFTER:
            world.client.publish(topic, payload, 2)
        assert up(world)
        assert world.clock.ticks_ms() - began < 40000, "of which 30 s are ack_timeout"
        equal(world.taken(), AFTER)
        world.settle()
        equal(world.messages, QUEUE + [(b"down/x", b"last")])
        equal(purges(world), [])
        equal(world.faults(), [])
        if silent:  # as RabbitMQ does
            assert "ack_timeout" in repr(world.of_kind("disconnect")), world.events


def test_a_reset_while_a_session_is_taken_over_lets_no_packet_id_swallow_a_message():
    # Planted: after the reset the store says that the session is the client's own; a message that was never sent is
    # sent with DUP, without the question first.
    for late in (False, True):
        for ticks in range(16):
            world = reset_with_a_queue(2, Broker(late=late), BEFORE, flash=Flash())
            for topic, payload in AFTER:
                world.client.publish(topic, payload, 2)
            for _ in range(ticks):
                world.client.tick()
                world.clock.advance(100)
            world.restart()
            assert up(world)
            world.settle()
            equal(sorted({one for one in world.taken() if one in AFTER}), AFTER, ticks)
            equal(sorted(set(world.messages)), QUEUE, ticks)
            equal(purges(world), [])


def fails_over(world):
    """Change brokers with messages half done and queues waiting; return the messages sent down and those sent up."""
    down, up_ = [], []
    world.client.subscribe(b"down/#", 2)
    assert up(world)
    for turn in range(5):
        here, there = world.brokers[turn % 2], world.brokers[1 - turn % 2]
        for n in range(3):
            up_.append((b"up", b"%d %d" % (turn, n)))
            world.client.publish(*up_[-1], 1 + n % 2)
            for qos in (1, 2):
                message = b"down/x", b"%d %d %d" % (turn, n, qos)
                # To the broker where the client is, and to the one where it was before.
                for broker in (here, there) if turn and here.sessions is not there.sessions else (here,):
                    assert broker.send(b"c", *message, qos)
                    down.append(message)
        for _ in range(turn):
            world.client.tick()
        here.down = True
        there.down = False
        world.wire.break_now()
        here.lost(world.wire)
        assert up(world)
    world.brokers[0].down = False
    world.settle()
    for broker in world.brokers:  # messages that wait at the other broker arrive from there
        broker.down = broker is world.wire.broker
    world.wire.break_now()
    assert up(world)
    world.settle()
    return down, up_


def test_a_list_of_brokers_loses_nothing_of_what_any_of_them_has_queued():
    # Planted: the session of another broker of the list is purged; it is taken over without a question; the store
    # does not remember the name of a cluster.
    for flash in (None, Flash):
        for late, mqtt31 in ((False, False), (True, False), (False, True)):
            for shared in (False, True):
                for declared in (None, "site")[: 1 + shared]:
                    brokers = [Broker(name, late=late, mqtt31=mqtt31) for name in "ab"]
                    world = World(brokers, flash=flash and flash(16), cluster=declared, allow_mqtt31=True)
                    world.brokers[1].down = True
                    if shared:
                        world.brokers[1].sessions = world.brokers[0].sessions
                    case = flash, late, mqtt31, shared, declared
                    down, sent = fails_over(world)
                    # MQTT 3.1 does not say that the first session of an empty flash is new.
                    equal(len(purges(world)), 1 if mqtt31 and flash else 0, case)
                    equal(sorted(set(down) - set(world.messages)), [], case)
                    equal(sorted(set(sent) - set(world.taken())), [], case)
                    if declared and not mqtt31:  # with MQTT 3.1 the first CONNACK does not say whose session it is
                        equal(sorted({m for m in down if m[1][-1:] == b"2" and world.messages.count(m) > 1}), [], case)
                        at_2 = [m for m in sent if m[1][-1:] == b"1"]
                        equal([m for m in at_2 if world.taken().count(m) > 1], [], case)
                        equal(world.faults(), [], case)


def test_the_session_of_another_broker_is_purged_where_the_program_says_so():
    # The store's session is that of the other broker: its messages at QoS 2 were handed over when the client left it.
    # Planted: every broker's session is taken over.
    world = World([Broker("a"), Broker("b")], keep_broker_queue=False)
    world.client.subscribe(b"down/#", 2)
    assert up(world)
    for down in (0, 1):
        world.brokers[down].down = True
        world.brokers[1 - down].down = False
        world.wire.break_now()
        assert up(world)
    equal(len(purges(world)), 1)
