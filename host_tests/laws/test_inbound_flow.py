"""Messages that the client receives are handed over, kept, or requested again, however many wait.

The handlers of these tests publish. The broker sends all waiting messages at once, as far as MQTT 3.1.1 allows, so
acknowledgements for the client's own messages arrive behind all of them.
"""

import sys

try:
    from micropython import heap_lock, heap_unlock
except ImportError:  # CPython

    def heap_lock():
        pass

    heap_unlock = heap_lock

from umqtt_testkit.portable import Rng, equal
from world import FULL, SHARE, Flash, World

from umqtt_robust.store import MemoryStore

HEAP = "32M" if FULL else "8M"  # the broker records all that it saw
TIMEOUT_S = 170

WAITING = (1, 31, 32, 33, 64, 65, 200) + ((2000,) if FULL else ())
MANY = 2000 if FULL else 200
# (how many messages a handler publishes for each one it gets, their QoS)
PUBLISHES = ((0, 0), (1, 0), (1, 1), (1, 2), (3, 1))


def worlds(qos, publishes, how, kept, waiting, **options):
    """Return a world in which `waiting` messages wait for a client whose handler publishes."""
    flash = Flash(32) if kept else None
    if not kept:
        options["store"] = MemoryStore(32)
    world = World(flash=flash, **options)
    got = world.got = []

    def handler(topic, payload):
        for n in range(publishes):
            world.client.publish(b"out/%d" % n, payload, how)
        got.append(payload)
        if world.client.manual_ack:
            world.client.acknowledge(world.client.packet_id)

    world.program = lambda world: world.client.on(b"in/#", handler)
    world.program(world)
    world.client.subscribe(b"in/#", qos)
    assert world.run(lambda: world.client.connected and world.client.subscribed)
    world.settle()
    if qos:
        world.client.disconnect()
        world.settle()
    for i in range(waiting):
        assert world.brokers[0].send(b"c", b"in/x", b"%d" % i, qos)
    world.client.connect()
    return world


def queue(world):
    """Return the messages at QoS 1 and 2 that the broker has for the client."""
    broker = world.brokers[0]
    session = broker.sessions.get(b"c") or broker.session  # broker.session is that of a clean session, while it lasts
    return session.queue if session else []


def finished(world):
    world.run(lambda: world.client.connected)
    for _ in range(3):
        world.run(lambda: not world.client.pending and not queue(world), 20000)
        world.settle()


def check(world, publishes, waiting, about):
    wanted = [b"%d" % i for i in range(waiting)]
    equal(world.got, wanted, about)
    equal(world.client.dead_letters, 0, about)
    equal(world.faults(), [], about)
    out = {}
    for topic, payload in world.taken():
        if payload not in out.setdefault(topic, []):
            out[topic].append(payload)
    for n in range(publishes):
        equal(out.get(b"out/%d" % n, []), wanted, about)


def test_everything_that_waits_is_handed_over_in_order_and_once():
    # Planted: a full outbox raises; a handler's OutboxFull becomes a dead letter; skipped messages are not fetched.
    for kept in (False, True):
        for qos in (0, 1, 2):
            for publishes, how in PUBLISHES:
                for waiting in WAITING if FULL or publishes == 1 else (33, 65):
                    if not qos and publishes and how and waiting > 32:
                        continue  # see the next test
                    about = repr((kept, qos, publishes, how, waiting))
                    world = worlds(qos, publishes, how, kept, waiting)
                    finished(world)
                    check(world, publishes, waiting, about)


def forgetful(qos, waiting, plenty, **options):
    """Return a world where messages waited that no broker sends again. plenty: bytes of heap that had to stay free."""
    world = worlds(0, 1, 1, False, 0, clean_session=True, **options)
    world.client.part("backpressure").plenty = plenty
    world.client.subscribe(b"in/#", qos)
    world.settle()
    for i in range(waiting):
        assert world.brokers[0].send(b"c", b"in/%d" % i, b"%d" % i, qos)
    finished(world)
    return world


def test_what_no_broker_sends_again_is_kept_while_there_is_plenty_of_heap():
    # Planted: 4 KB of it are kept, however much heap is free.
    for qos in (0, 1, 2):
        world = forgetful(qos, 500, 20480)
        check(world, 1, 500, repr(qos))
        equal((len(world.wires), world.client.discarded), (1, 0), qos)


def test_what_no_broker_sends_again_is_dropped_and_told_when_the_heap_has_no_room():
    # Planted: the link ends, on each link anew, and the broker begins again with what is retained; a message is dropped
    # without being counted or told; it is acknowledged before those that wait in front of it, or never.
    for qos, manual in ((0, False), (1, False), (1, True), (2, False)):
        world = forgetful(qos, MANY, sys.maxsize // 2, manual_ack=manual)
        got, client = world.got, world.client
        assert 32 < len(got) < MANY, (qos, len(got))
        equal(got, sorted(got, key=int))
        equal(len(got) + client.discarded, MANY)
        dropped = [b"in/%d" % i for i in range(MANY) if b"%d" % i not in got]
        equal([error.args[0] for error in world.of_kind("error")], dropped if qos else [])
        equal((queue(world), len(world.wires), client.dead_letters, world.faults()), ([], 1, 0, []))


def test_a_message_that_no_broker_sends_again_and_that_finds_no_memory_is_told():
    # Planted: MemoryError ends the link; a program that acknowledges by hand holds the message twice, and the second of
    # them, which nobody acknowledges, keeps back all acknowledgements behind it.
    for qos, manual in ((1, False), (1, True), (2, False), (2, True)):
        world = worlds(0, 0, 0, False, 0, clean_session=True, manual_ack=manual)
        client = world.client
        client.subscribe(b"in/#", qos)
        world.settle()
        calls = []
        if qos == 1:
            deliver = client._deliver
        else:
            inbound = client.outbox.store.inbound
            deliver = inbound.put

        def poor(*message, deliver=deliver, calls=calls):
            calls.append(1)
            if len(calls) in (2, 3):
                raise MemoryError("planted")
            return deliver(*message)

        if qos == 1:
            client._deliver = poor
        else:
            inbound.put = poor
        for i in range(5):
            world.brokers[0].send(b"c", b"in/%d" % i, b"%d" % i, qos)
        finished(world)
        equal(world.got, [b"0", b"3", b"4"], qos)
        equal([error.args for error in world.of_kind("error")], [(b"in/1",), (b"in/2",)])
        equal((client.discarded, len(world.wires), world.faults()), (2, 1, []))
        equal(len(queue(world)), 0)


def test_a_handler_that_finds_the_outbox_full_gets_its_message_again():
    # The program has filled the outbox itself. Planted: the message becomes a dead letter; what is published at the
    # second call counts as dropped.
    for qos in (0, 1, 2):
        world = World(store=MemoryStore(4))
        tries = []

        def handler(topic, payload, world=world, tries=tries):
            tries.append((payload, world.client.redelivered))
            world.client.publish(b"out", payload, 1)

        world.client.on(b"in", handler)
        world.client.subscribe(b"in", qos)
        assert world.run(lambda world=world: world.client.connected and world.client.subscribed)
        world.brokers[0].acknowledge = False
        for n in range(4):
            world.client.publish(b"own", b"%d" % n, 1)
        world.brokers[0].send(b"c", b"in", b"x", qos)
        world.brokers[0].send(b"c", b"in", b"y", qos)
        world.settle()
        equal(tries, [(b"x", False)])
        world.brokers[0].acknowledge = True
        world.wire.break_now()
        world.settle()
        finished(world)
        equal(tries[1:3], [(b"x", True), (b"y", tries[2][1])], repr(qos))
        equal([payload for topic, payload in world.taken() if topic == b"out"], [b"x", b"y"])
        equal((world.client.dead_letters, world.client.discarded), (0, 0))


def test_cut_at_random_and_with_the_power_cut_nothing_is_lost():
    # QoS 1 and 2 may come again after a cut, flagged; so may what a handler published. Planted: forget() keeps the
    # waiting messages.
    for seed in range(400 if FULL else 40 // SHARE):
        rng = Rng(seed)
        qos, how = rng.between(1, 2), rng.between(1, 2)
        waiting = rng.choice((33, 65, 120))
        power = rng.chance(50)
        world = worlds(qos, 1, how, power, waiting)
        for _ in range(rng.between(1, 4)):
            world.cuts.append({"cut_down": rng.between(5, 4000), "power": power})
        finished(world)
        finished(world)
        about = "seed %d" % seed
        wanted = [b"%d" % i for i in range(waiting)]
        equal([p for i, p in enumerate(world.got) if p not in world.got[:i]], wanted, about)
        if not power and qos == 2:
            equal(world.got, wanted, about)
        out = [payload for topic, payload in world.taken()]
        equal(sorted(set(out), key=int), wanted, about)
        equal(world.faults(), [], about)


def test_a_handler_is_not_called_again_before_something_has_left_the_outbox():
    # The outbox is full by bytes, not by messages. Planted: the handler is called again at once, and for ever.
    world = World(store=MemoryStore(32), max_bytes=100)
    tries = []

    def handler(topic, payload):
        tries.append(payload)
        if len(tries) < 10:
            world.client.publish(b"out", bytes(50), 1)

    world.client.on(b"in", handler)
    world.client.subscribe(b"in", 1)
    assert world.run(lambda: world.client.connected and world.client.subscribed)
    world.brokers[0].acknowledge = False
    world.client.publish(b"own", bytes(80), 1)
    world.brokers[0].send(b"c", b"in", b"x", 1)
    world.settle(3000)
    equal(tries, [b"x"])
    world.brokers[0].acknowledge = True
    world.wire.break_now()
    finished(world)
    equal(tries, [b"x", b"x", b"x"])  # called once more when it came again, before the first PUBACK
    equal([topic for topic, _ in world.taken()][-1], b"out")
    equal(world.client.dead_letters, 0)


class Poor:
    """A store that sometimes has no memory: put() raises MemoryError for every third message."""

    def __init__(self, store):
        self._store = store
        self._calls = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put(self, *message):
        self._calls += 1
        if self._calls % 3 == 0:
            raise MemoryError("planted")
        self._store.put(*message)


def test_a_message_for_which_there_is_no_memory_is_left_to_the_broker():
    # Planted: the link ends before other messages that came with it are answered, and the same ones come again for
    # ever.
    for qos, waiting in ((2, 65), (2, 200)):
        world = worlds(qos, 0, 0, False, waiting)
        store = world.client.outbox.store
        store.inbound = world.client.part("qos2")._inbound = Poor(store.inbound)
        finished(world)
        check(world, 0, waiting, repr(waiting))


def make_poor(client):
    """Make handing over run out of memory at the 2nd and the 31st message."""
    hand_over = client.hand_over
    calls = []

    def poor(topic, payload):
        calls.append(1)
        if len(calls) in (2, 31):
            raise MemoryError("planted")
        hand_over(topic, payload)

    client.hand_over = poor


def test_a_message_that_finds_no_memory_when_it_is_handed_over_comes_again():
    # Planted: at QoS 2 it counts as handed over before its handler is called.
    for qos, publishes, kept in ((1, 1, False), (2, 0, False), (2, 0, True), (2, 1, False)):
        world = worlds(qos, publishes, 1, kept, 65)
        make_poor(world.client)
        finished(world)
        check(world, publishes, 65, repr((qos, publishes, kept)))


def test_a_message_that_nobody_sends_again_waits_until_there_is_memory_to_hand_it_over():
    # Planted: the message is taken off the list before it is handed over.
    world = worlds(0, 0, 0, False, 0)
    for n in range(3):
        world.client.part("backpressure").keep((4, b"in/x", b"%d" % n))
    make_poor(world.client)
    world.run(lambda: len(world.got) == 3, 20000)
    check(world, 0, 3, "")


def test_the_end_of_a_link_needs_no_memory_to_forget_what_comes_again():
    # Planted: the messages that stay are copied to a new list. Without memory for it the link's other state stays too.
    world = worlds(0, 0, 0, False, 0)
    part = world.client.part("backpressure")
    part.set_full(True)
    for head in (0x32, 0x30, 0x34, 0x62):
        part.take(head, 7, b"in/x", bytes((head,)))
    heap_lock()
    try:
        part.forget(False)
    finally:
        heap_unlock()
    equal((len(part._waiting), part._bytes), (1, 69))
    part.set_full(False)
    world.run(lambda: world.got, 20000)
    equal(world.got, [b"0"])


def test_where_there_is_no_memory_for_the_flow_control_no_message_is_lost_or_a_dead_letter():
    # "never": no memory as long as there are messages in the outbox. Planted: a handler that finished counts as failed;
    # at QoS 2 its message counts as handed over; each link ends at the first message, so nothing ever comes.
    for qos in (1, 2):
        for publishes in (1, 3):
            for manual in (False, True):
                for tries in (1, 5, "never"):
                    about = repr((qos, publishes, manual, tries))
                    world = worlds(qos, publishes, 1, False, 65, manual_ack=manual)
                    part = world.client.part
                    calls = []

                    def poor(name, world=world, part=part, calls=calls, tries=tries):
                        if name == "backpressure" and name not in world.client.parts:
                            calls.append(1)
                            if world.client.pending if tries == "never" else len(calls) <= tries:
                                raise MemoryError("planted")
                        return part(name)

                    world.client.part = poor
                    finished(world)
                    assert len(calls) > (0 if tries == "never" else tries), about
                    check(world, publishes, 65, about)
                    equal(world.client.discarded, 0, about)
                    assert len(world.wires) < 70, about


def test_publish_without_memory_is_as_with_a_full_outbox():
    # Planted: a handler's MemoryError makes a dead letter; half of the message stays in the index of the outbox.
    world = worlds(1, 1, 1, False, 65)
    store = world.client.outbox.store
    put = store.put
    calls = []

    def poor(*message):
        calls.append(1)
        if len(calls) % 3 == 0 and world.client.pending:
            raise MemoryError("planted")
        put(*message)

    store.put = poor
    finished(world)
    check(world, 1, 65, "")
    assert len(calls) > 65
    equal((world.client.outbox.slot_of, world.client.discarded), ({}, 0))


def test_in_a_session_that_the_broker_forgets_the_messages_at_qos_2_are_bounded():
    # The broker sends PUBREL late. Planted: all messages are kept until their PUBREL, however many there are.
    world = worlds(2, 0, 0, False, 0, clean_session=True)
    client = world.client
    assert world.run(lambda: client.connected and client.subscribed)
    for i in range(1, 501):
        world.wire.send(bytes((0x34, 9, 0, 4)) + b"in/x" + bytes((i >> 8, i & 255)) + bytes((i & 255,)))
        client.tick()
    equal(len(client.outbox.store.inbound.ids()), 64)
    equal(world.got, [bytes((i & 255,)) for i in range(1, 437)])
    for i in range(1, 501):
        world.wire.send(bytes((0x62, 2, i >> 8, i & 255)))
        client.tick()
    equal(world.got, [bytes((i & 255,)) for i in range(1, 501)])
    equal(client.outbox.store.inbound.ids(), [])


def test_what_cannot_be_kept_does_not_hold_up_what_the_program_publishes():
    """Planted: a link that messages without memory ended at once was made anew before anything was sent on it.

    Programs take messages only after what they publish is acknowledged: neither got on.
    """
    for qos in (1, 2):
        for how in (1, 2):
            world = worlds(qos, 0, 0, False, 5)
            world.run(lambda world=world: world.client.connected)
            world.client.disconnect()
            world.settle()

            def without_memory(*arguments):
                raise MemoryError

            client = world.client
            owner, name = (client, "describe") if qos == 1 else (client.part("qos2")._inbound, "put")
            before = getattr(owner, name)
            setattr(owner, name, without_memory)
            for n in range(5):
                assert world.brokers[0].send(b"c", b"in/x", b"late %d" % n, qos)
            client.publish(b"out", b"mine", how)
            client.connect()
            about = repr((qos, how))
            assert world.run(lambda client=client: not client.pending, 60000), about
            setattr(owner, name, before)
            finished(world)
            equal(world.got[-5:], [b"late %d" % n for n in range(5)], about)
            equal(world.faults(), [], about)
