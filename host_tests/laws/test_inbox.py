"""Messages wait in the inbox until the program takes them: each once at QoS 2 and acknowledged, despite cuts."""

import asyncio
import sys

from umqtt_testkit.portable import equal, raises
from world import Broker, Flash, World, every, publish

from umqtt_robust import aio, simple
from umqtt_robust.errors import LinkLost
from umqtt_robust.inbox import Inbox

HEAP = "4M"


class InboxWorld(World):
    kind = Inbox

    def start(self):
        client = World.start(self)
        client.on_message = client._arrived
        Inbox.subscribe(client, b"down/#", 2)
        return client


class AioWorld(InboxWorld):
    """A world whose client is that for asyncio, driven by hand."""

    kind = aio.Client

    def start(self):
        client = InboxWorld.start(self)
        client.connect()
        return client


def connected(broker=None, **options):
    world = InboxWorld([broker or Broker()], **options)
    assert world.run(lambda: world.client.connected and world.client.subscribed)
    return world


def test_each_once_at_qos_2_and_acknowledged_wherever_the_link_is_cut():
    # Planted: the end of a link makes the inbox forget the packet ids of QoS 2 too.
    for name, total in (("cut_down", 60), ("cut_up", 24)):
        for at in every(total, 1):
            world = connected()
            client = world.client
            broker = world.brokers[0]
            setattr(world.wire, name, (world.wire.up if name == "cut_up" else world.wire.down_bytes) + at)
            sent = [b"%d" % i for i in range(3)]
            for payload in sent:
                broker.send(b"c", b"down/x", payload, 2)
            taken = []
            while len(taken) < 3:
                assert world.run(lambda client=client: client.inbox), (name, at)
                taken.append(client.take()[1])
                world.settle(1000)  # long enough for another link: the program is busy with this message
            client.release()
            assert world.run(lambda session=broker.session: not session.queue), (name, at, "not acknowledged")
            world.settle(1000)
            equal((taken, client.inbox), (sent, []), (name, at))
            equal(world.faults(), [], (name, at))


def test_half_a_large_message_is_let_go_with_its_link():
    # Planted: its pieces stay in RAM until the next large message.
    for qos in (0, 1, 2):
        world = connected(rx_size=64)
        client = world.client
        world.wire.cut_down = world.wire.down_bytes + 300
        world.brokers[0].send(b"c", b"down/x", bytes(500), qos)
        world.brokers[0].down = True
        world.settle()
        assert not client.connected
        equal(client._large, None)
        world.brokers[0].down = False
        assert world.run(lambda client=client: client.connected and client.subscribed)
        world.settle()
        equal([message[:2] for message in client.inbox], [[b"down/x", bytes(500)]] if qos else [])


def test_what_waited_over_a_lost_session_acknowledges_nothing_of_the_new_one():
    # Planted: the inbox keeps packet ids of QoS 2 when the session is lost.
    for qos in (1, 2):
        world = connected()
        client = world.client
        broker = world.brokers[0]
        broker.send(b"c", b"down/x", b"old", qos)
        world.settle()
        broker.lose_sessions = True
        world.wire.break_now()
        world.settle(5000)
        assert client.connected
        broker.send(b"c", b"down/x", b"new", qos)
        world.settle()
        equal(client.take(), (b"down/x", b"old"))
        client.release()
        world.settle()
        equal([one.payload for one in broker.session.queue], [b"new"], "the program has not seen it")
        equal(client.take(), (b"down/x", b"new"))
        client.release()
        world.settle()
        equal(broker.session.queue, [])
        equal(world.faults(), [])


def test_a_stale_id_that_the_program_holds_swallows_no_new_message():
    # Planted: a message that was given up can still be acknowledged.
    # The session was lost, and so was the CONNACK that said so: the broker begins again with the same packet ids.
    world = connected()
    client = world.client
    world.wire.send(publish(b"down/x", b"old", 2, 1))
    client.tick()
    world.wire.send(b"\x62\x02\x00\x01")
    client.tick()
    equal(client.take(), (b"down/x", b"old"))
    world.wire.send(publish(b"down/x", b"new", 2, 1))
    client.tick()
    client.release()
    world.wire.send(b"\x62\x02\x00\x01")
    client.tick()
    equal(client.take(), (b"down/x", b"new"))
    client.release()
    world.settle()
    equal(world.brokers[0].seen[-1], (0x70, b"\x00\x01"))


def test_an_acknowledgement_that_the_store_refuses_ends_the_link_and_not_the_program():
    # Planted: release() ignores a StoreError, so the link stays and the message is handed over again.
    world = connected(flash=Flash())
    client = world.client
    broker = world.brokers[0]
    broker.send(b"c", b"down/x", b"once more", 2)
    world.settle()
    client.take()
    world.flash.fail_at = world.flash.operations + 1
    client.release()
    assert world.run(lambda: world.of_kind("disconnect"))
    equal(type(world.of_kind("disconnect")[0]).__name__, "StoreError")
    world.run(lambda: client.connected)
    world.settle()
    equal(client.inbox, [])  # the program already has the message
    equal(broker.session.queue, [])


class PoorList(list):
    """A list without memory for the second append and for the two after it."""

    calls = 0

    def append(self, message):
        self.calls += 1
        if 1 < self.calls < 5:
            raise MemoryError("planted")
        super().append(message)


def test_a_message_is_not_done_when_there_is_no_memory_to_note_that_it_is_handed_over():
    # Planted: the message counts as handed over at its next PUBREL.
    world = connected()
    world.client.part("qos2")._open = PoorList()
    sent = [b"%d" % i for i in range(5)]
    for payload in sent:
        world.brokers[0].send(b"c", b"down/x", payload, 2)
    taken = []
    while len(taken) < 5:
        assert world.run(lambda: world.client.inbox), taken
        taken.append(world.client.take()[1])
    equal(taken, sent)


def test_a_message_that_the_inbox_has_no_memory_for_comes_again():
    # Planted: it waits for an outbox that is already empty; without memory for flow control it becomes a dead letter.
    for qos in (1, 2):
        for module_fails in (0, 2):
            world = connected()
            client = world.client
            part = client.part
            calls = []

            def poor(name, part=part, calls=calls, module_fails=module_fails):
                if name == "backpressure":
                    calls.append(1)
                    if len(calls) <= module_fails:
                        raise MemoryError("planted")
                return part(name)

            client.part = poor
            client.inbox = PoorList()
            sent = [b"%d" % i for i in range(5)]
            for payload in sent:
                world.brokers[0].send(b"c", b"down/x", payload, qos)
            taken = []
            while len(taken) < 5:
                client.release()  # as all who wait for the next message do
                assert world.run(lambda client=client: client.inbox), (qos, module_fails, taken)
                payload = client.take()[1]
                if qos == 2 or payload not in taken:
                    taken.append(payload)
            client.release()
            world.settle()
            equal((taken, client.inbox, client.dead_letters, world.faults()), (sent, [], 0, []), (qos, module_fails))
            equal(client.handover_limit, client.part("backpressure")._limit)


def test_behind_a_full_inbox_a_message_at_qos_2_leaves_after_a_restart():
    # Before the message leaves, the broker is asked to forget its packet id. Planted: with asyncio the socket is read
    # only if messages are in flight, so the answer stays behind the waiting messages.
    for kind in (InboxWorld, AioWorld):
        world = kind([Broker()])
        assert world.run(lambda world=world: world.client.connected and world.client.subscribed)
        world.restart()
        assert world.run(lambda world=world: world.client.connected and world.client.subscribed)
        client = world.client
        for i in range(20):
            world.brokers[0].send(b"c", b"down/x", b"%d" % i + bytes(400), 1)
        for _ in range(50):
            client.tick()
        assert client.before_reading() and len(client.inbox) < 20
        Inbox.publish(client, b"up", b"x", 2)
        if kind is InboxWorld:
            client.awaited = True  # as simple.py sets it
        for _ in range(200):
            client.tick()
        equal(client.pending, 0, kind)
        equal(world.faults(), [])


def test_messages_that_wait_come_into_the_inbox_as_far_as_it_has_room():
    # Planted: all of them come as soon as there is any room, and the heap has them beside those that come meanwhile.
    world = connected(inbox_size=200)
    client = world.client
    client.awaited = True
    sent = [b"%d" % i + bytes(50) for i in range(30)]
    for payload in sent:
        world.brokers[0].send(b"c", b"down/x", payload, 1)
    for _ in range(50):
        client.tick()
    taken = []
    most = 0
    while len(taken) < len(sent):
        before = len(client.inbox)
        client.tick()
        if len(client.inbox) > before:
            most = max(most, client._waiting_bytes)
        assert client.inbox, taken
        taken.append(client.take()[1])
    equal(taken, sent)
    assert 200 < most < 500, most


def refused(host, port, path):
    raise OSError(111)


def test_what_receiving_needs_is_loaded_before_the_heap_may_be_full():
    """Planted: it is loaded when messages wait already. With 48 KB free in small pieces it never could be.

    Flow control is needed at the first full inbox, and the part for acknowledgements at the first message at QoS 2 that
    the program has taken.
    """
    names = ["umqtt_robust." + name for name in ("backpressure", "manual_ack", "resume")]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    Inbox("c", "mqtt://b", clean_session=False)
    equal([name for name in names if name not in sys.modules], [])
    # Nothing comes before the program subscribes if the broker forgets the session with the link.
    flow_control = names[0]
    del sys.modules[flow_control]
    client = aio.Client("c", "mqtt://b")
    equal(flow_control in sys.modules, False)
    try:
        asyncio.run(client.subscribe("t"))
    except LinkLost:
        pass  # not inside async with
    equal(flow_control in sys.modules, True)
    del sys.modules[flow_control]
    raises(OSError, simple.MQTTClient("c", "b", ssl=refused).connect)  # the next connect() may keep the session
    equal(flow_control in sys.modules, True)
    sys.modules.update(before)
