"""Programs for umqtt.simple and umqtt.robust get every waiting message, in order, whatever their callbacks do.

The broker sends all waiting messages at once, as far as MQTT 3.1.1 allows; test_inbox_heap.py does the same with real
brokers and little memory.
"""

import sys

from picky_broker import PickyBroker
from umqtt_testkit.portable import Clock, Rng, equal, raises
from world import FULL, SHARE, Broker, Wire

from umqtt_robust import robust, simple
from umqtt_robust.inbox import Inbox

HEAP = "64M"
TIMEOUT_S = 170

WAITING = (1, 31, 32, 33, 64, 65, 200, 2000) if FULL else (1, 33) if SHARE > 1 else (1, 33, 200)


class _Wire(Wire):
    idle = 0

    def wait(self, ms, writing):
        self.clock.advance(1)
        self.idle = self.idle + 1 if not self.down and self.alive and not self.fin else 0
        assert self.idle < 20, "the program waits for ever"


class Robust(robust.MQTTClient):
    DELAY = 0


class World:
    """A program's client, called c, its broker, and the clock. cuts: arguments of Wire for the next wires."""

    def __init__(self, kind, clean=False, late=False, broker=None, **options):
        self.broker = broker or Broker(late=late)
        self.cuts = []
        self.wires = []
        self.got = []
        self.client = kind(b"c", "h", ssl=self._make, **options)
        self.client.set_callback(self._arrived)
        self.clock = Clock()
        made = simple._Client
        simple._Client = lambda *values, **options: made(*values, ticks=self.clock.ticks_ms, **options)
        try:
            self.client.connect(clean)
        finally:
            simple._Client = made
        self.on_message = lambda payload: None

    def _make(self, host, port, path):
        self.wires.append(_Wire(self.broker, **(self.cuts.pop(0) if self.cuts else {})))
        self.wires[-1].clock = self.clock
        return self.wires[-1]

    def _arrived(self, topic, payload):
        self.got.append(payload)
        self.on_message(payload)

    @property
    def core(self):
        return self.client._client

    def send(self, count, qos, payload=b"%d"):
        for i in range(count):
            assert self.broker.send(b"c", b"in/x", payload % i, qos)

    def published(self):
        return [payload for topic, payload in self.broker.taken]


def numbers(count):
    return [b"%d" % i for i in range(count)]


def raising(payload):
    raise ValueError(payload)


CALLBACKS = {
    "returns": lambda world: lambda payload: None,
    "sleeps": lambda world: lambda payload: world.clock.advance(10),
    "raises": lambda world: raising,
    "publishes at 0": lambda world: lambda payload: world.client.publish(b"out", payload),
    "publishes at 1": lambda world: lambda payload: world.client.publish(b"out", payload, False, 1),
    "publishes at 2": lambda world: lambda payload: world.client.publish(b"out", payload, qos=2),
}


def test_everything_that_waits_is_handed_over_in_order_and_once():
    # Planted: the socket is read while the inbox is full; messages are not handed over while publish() waits; the
    # program gets an error for the link that fetches the messages for which there was no room.
    for kind in (simple.MQTTClient, Robust):
        for call in ("wait_msg", "check_msg"):
            for clean in (False, True):
                for qos in (0, 1, 2):
                    for name in CALLBACKS:
                        for waiting in WAITING:
                            if kind is Robust and not FULL and waiting > 33:
                                continue
                            about = repr((kind, call, clean, qos, name, waiting))
                            hand_over(kind, call, clean, qos, name, waiting, about)


def hand_over(kind, call, clean, qos, name, waiting, about):
    world = World(kind, clean)
    world.client.subscribe(b"in/#", qos)
    world.on_message = CALLBACKS[name](world)
    world.send(waiting, qos)
    # At QoS 2 this broker's PUBRELs come behind all its messages: 64 have room on a link, the others are read past,
    # one a call, and come again on the next.
    most = 10 * waiting + 10 + (waiting * waiting // 64 if qos == 2 else 0)
    calls = 0
    while len(world.got) + world.core.discarded < waiting:
        before = len(world.got)
        try:
            getattr(world.client, call)()
        except ValueError:
            pass
        if name not in ("publishes at 1", "publishes at 2"):  # these hand over other messages while they wait
            assert len(world.got) <= before + 1, "one a call: " + about
        calls += 1
        assert calls < most, about
        assert world.core._waiting_bytes <= 4096 + 2 * 1024 + 200 * 64, about
    world.client.ping()
    if qos or name not in ("publishes at 1", "publishes at 2"):
        equal(world.got, numbers(waiting), about)
    else:  # a broker drops messages too if its client does not read
        equal(world.got, sorted(world.got, key=int), about)
        assert len(world.got) > 32 or waiting == len(world.got), about
    if name[:9] == "publishes":
        equal(world.published(), world.got, about)
    for _ in range(10):
        world.client.check_msg()
    equal(world.broker.faults, [], about)
    if not clean and qos:
        equal(world.broker.session.queue, [], about)


def test_a_message_at_qos_1_whose_callback_lost_the_link_is_handed_over_again_before_those_behind_it():
    # Planted: the message counts as handed over; it is handed over after those behind it.
    for out_qos in (0, 1, 2):
        for direction in ("cut_up", "cut_down"):
            for cut in range(0, 600, 1 if FULL else 23 * SHARE):
                cut_in_a_callback(out_qos, direction, cut, repr((out_qos, direction, cut)))


def cut_in_a_callback(out_qos, direction, cut, about):
    world = World(simple.MQTTClient)
    world.client.subscribe(b"in/#", 1)
    done = []

    def callback(payload):
        world.client.publish(b"out", payload, False, out_qos)
        if payload not in done:
            done.append(payload)

    world.on_message = callback
    world.send(20, 1)
    wire = world.wires[-1]
    setattr(wire, direction, cut + (wire.up if direction == "cut_up" else wire.down_bytes))
    calls = 0
    while len(done) < 20:
        calls += 1
        assert calls < 100, about
        try:
            world.client.wait_msg()
        except OSError:
            world.client.connect(False)
    equal(done, numbers(20), about)
    equal(world.broker.faults, [], about)


def test_ctrl_c_while_a_packet_is_read_ends_the_link():
    # What was read is handled in part, and would be missing. Planted: packets() drops what it catches.
    for qos in (0, 1, 2):
        for due in (False, True):
            world = World(simple.MQTTClient)
            world.client.subscribe(b"in/#", qos)
            world.send(3, qos)
            world.clock.advance(16 if due else 0)
            core = world.core
            receive = core.receive

            def interrupted(buf, n, core=core, receive=receive):
                if n == 2:  # its length
                    return receive(buf, n)
                core.receive = receive
                raise KeyboardInterrupt

            core.receive = interrupted
            raises(KeyboardInterrupt, world.client.wait_msg)
            raises(OSError, world.client.wait_msg)
            world.client.connect(False)
            while qos and len(world.got) < 3:
                world.client.wait_msg()
            equal(world.got, numbers(3) if qos else [], repr((qos, due)))


def test_messages_that_come_while_a_call_waits_for_its_answer_are_handed_over():
    # umqtt.simple hands them over inside publish() and subscribe(). Planted: they are dropped if the inbox is full.
    for qos in (0, 1, 2):
        world = World(simple.MQTTClient, True)
        world.client.subscribe(b"in/#", qos)
        world.send(2000 if FULL else 300, qos)
        world.client.publish(b"out", b"x", qos=1)
        world.client.subscribe(b"more", 1)
        while len(world.got) < (2000 if FULL else 300):
            world.client.wait_msg()
        equal(world.got, numbers(len(world.got)))
        equal((world.core.discarded, world.broker.faults), (0, []))


def test_what_a_call_leaves_behind_is_in_the_socket_where_a_selector_sees_it():
    # umqtt.simple never reads more than one message either. Planted: bytes that are read ahead wait in the client.
    for call in ("wait_msg", "check_msg", "publish", "subscribe", "in the callback"):
        world = World(simple.MQTTClient)
        world.client.subscribe(b"in/#", 0)
        world.send(10, 0)
        if call == "publish":
            world.client.publish(b"out", b"x", qos=1)
        elif call == "subscribe":
            world.client.subscribe(b"more", 1)
        elif call == "in the callback":
            world.on_message = lambda payload, world=world: world.client.publish(b"out", payload, qos=1)
        while len(world.got) < 10:
            assert world.wires[0].down, call
            getattr(world.client, call if call[-3:] == "msg" else "check_msg")()
            equal((world.core.inbox, world.core._rx_end), ([], 0), call)
        equal(world.got, numbers(10), call)
        assert world.client.check_msg() is None


def test_a_callback_may_ask_for_the_next_message():
    # Planted: wait_msg() in a callback waits for ever.
    world = World(simple.MQTTClient)
    world.client.subscribe(b"in/#", 1)
    world.send(3, 1)
    world.on_message = lambda payload: payload == b"0" and (world.client.wait_msg(), world.client.check_msg())
    world.client.wait_msg()
    equal(world.got, numbers(3))


def test_a_message_without_memory_is_raised_by_name_and_its_buffer_freed():
    # Planted: the message is acknowledged silently; the buffer stays.
    from umqtt_robust.large import MessageTooLarge

    class NoMemory(bytearray):
        def __setitem__(self, key, value):
            raise MemoryError

    for kind in (simple.MQTTClient, Robust):
        world = World(kind)
        core = world.core
        world.client.subscribe(b"in/#", 1)
        world.send(1, 1)
        assert world.broker.send(b"c", b"in/big", bytes(5000), 1)
        world.send(1, 1)
        piece = core.on_large

        def no_memory(topic, offset, size, chunk, core=core, piece=piece):
            piece(topic, offset, size, chunk)
            if offset > 2000 and core._large:
                core._large = NoMemory(size)

        core.on_large = no_memory
        raised = []
        for _ in range(20):
            try:
                world.client.check_msg()
            except MessageTooLarge as error:
                raised.append(error.args)
        equal((world.got, raised), ([b"0", b"0"], [(b"in/big", 5000)]))
        equal((core._large, core.too_large, world.broker.session.queue), (None, 1, []))


def test_keep_alive_does_not_give_up_a_link_that_is_not_read():
    # Planted: unread bytes count as silence; no PINGREQ leaves while the inbox is full.
    world = World(simple.MQTTClient, keepalive=10)
    core = world.core
    world.client.subscribe(b"in/#", 0)
    world.send(300, 0)
    world.client.wait_msg()
    while not Inbox.before_reading(core):
        core.tick()
    pings = len([1 for head, _ in world.broker.seen if head == 0xC0])
    for _ in range(60):
        world.clock.advance(1000)
        core.tick()
    assert len([1 for head, _ in world.broker.seen if head == 0xC0]) >= pings + 10
    while len(world.got) < 300:
        world.client.wait_msg()
        world.clock.advance(1000)
    equal((len(world.wires), world.got), (1, numbers(300)))


def run(world, call, *arguments, until):
    # As a program of umqtt.simple does: it makes a new client when the link is lost.
    while not until():
        try:
            call(*arguments)
        except OSError:
            again(world.client)


def again(client):
    while True:
        try:
            return client.connect(False)
        except OSError:
            pass


def test_cut_at_random_nothing_is_lost_and_qos_2_comes_once():
    # Planted: the packet ids of QoS 2 are forgotten with the link; robust publishes again what may have arrived.
    for seed in range(600 if FULL else 60 // SHARE):
        rng = Rng(seed, True)
        kind = rng.choice((simple.MQTTClient, Robust))
        qos, how = rng.between(1, 2), rng.between(0, 2)
        waiting = rng.choice((33, 65, 120))
        world = World(kind, late=rng.chance(50))
        run(world, world.client.subscribe, b"in/#", qos, until=lambda world=world: b"in/#" in subscribed(world))
        world.on_message = CALLBACKS["publishes at %d" % how](world)
        world.send(waiting, qos)
        for _ in range(rng.between(1, 4)):
            world.cuts.append({rng.choice(("cut_down", "cut_up")): rng.between(5, 4000)})
        world.wires[-1].break_now()
        queue = world.broker.sessions[b"c"].queue
        wanted = numbers(waiting)
        wait_for = waiting if rng.chance(50) else 0

        def receive(world=world, wait_for=wait_for):
            # Nothing comes after the last message, but the broker may still want its PUBCOMP.
            return world.client.wait_msg() if len(set(world.got)) < wait_for else world.client.check_msg()

        run(world, receive, until=lambda world=world, queue=queue: not queue and not world.core.inbox)
        about = "seed %d %r" % (seed, (kind, qos, how, waiting))
        equal([p for i, p in enumerate(world.got) if p not in world.got[:i]], wanted, about)
        if qos == 2:
            equal(world.got, wanted, about)
        out = world.published()
        if how and (kind is Robust or qos == 1):  # at QoS 2 a callback that raised OSError is not called again
            equal(sorted(set(out), key=int), wanted, about)
        if how == 2 and qos == 2 and kind is Robust:
            equal(out, wanted, about)
        equal(world.broker.faults, [], about)


def subscribed(world):
    return world.broker.sessions[b"c"].subscriptions


def test_robust_at_qos_2_publishes_once_wherever_the_link_is_cut():
    # Planted: publish() puts the message into the outbox a second time on the new link.
    for late in (False, True):
        for name in ("cut_up", "cut_down"):
            for at in range(1, 64):
                world = World(Robust, late=late)
                for n in range(3):
                    wire = world.wires[-1]
                    setattr(wire, name, (wire.up if name == "cut_up" else wire.down_bytes) + at)
                    world.client.publish(b"out", b"%d" % n, qos=2)
                equal(world.published(), numbers(3), (late, name, at))
                equal(world.broker.faults, [], (late, name, at))


def test_robust_names_a_message_that_the_broker_does_not_take_and_goes_on():
    # Planted: publish() waits for ever for the acknowledgement of a message that was set aside.
    for way in ("close", "reset", "third byte"):
        for qos in (1, 2):
            world = World(Robust, broker=PickyBroker(way))
            said = raises(simple.MQTTException, world.client.publish, b"bad/1", b"x", False, qos)
            assert "set aside" in str(said), said
            world.client.publish(b"out", b"good", False, qos)
            equal(world.published(), [b"good"])
            world.client.publish(b"out", b"next", False, qos)
            equal(world.published(), [b"good", b"next"])
            equal((world.core.quarantined, world.broker.faults), (1, []))


def test_what_simple_could_not_publish_is_left_to_the_program():
    # Planted: the message stays in the outbox and is sent on the next link as well.
    for qos in (1, 2):
        world = World(simple.MQTTClient)
        world.broker.acknowledge = False
        wire = world.wires[-1]
        wire.wait = lambda ms, writing, wire=wire: wire.break_now()
        try:
            world.client.publish(b"out", b"lost", qos=qos)
            raise AssertionError("no error")
        except OSError:
            pass
        world.broker.acknowledge = True
        again(world.client)
        world.client.publish(b"out", b"next", qos=qos)
        equal(world.published(), [b"lost", b"next"])
        equal(world.broker.faults, [])


def test_a_publish_at_qos_0_is_one_packet_of_its_flags_topic_and_payload():
    # publish() puts a small message to the topic of the one before into the send buffer itself. Planted: it does so
    # with a remaining length of 128; another topic is taken for the one before; a retained message loses its flag.
    world = World(simple.MQTTClient, True)
    expected = world.broker.seen[:]
    for topic in (b"t", b"t" * 100, "s" * 99):
        plain = topic if isinstance(topic, bytes) else topic.encode()
        for size in (0, 1, 124 - len(topic), 125 - len(topic), 126 - len(topic), 300, 5000):
            for payload in (b"x" * size, "y" * size, bytearray(size)):
                for retain in (False, False, True, False):
                    world.client.publish(topic, payload, retain)
                    content = payload.encode() if isinstance(payload, str) else bytes(payload)
                    expected.append((0x31 if retain else 0x30, bytes((0, len(topic))) + plain + content))
    equal(world.broker.seen, expected)
    equal(world.broker.faults, [])


def test_a_publish_goes_after_a_subscription_that_was_asked_for_before_it():
    # A callback or Ctrl-C may end subscribe() before it has sent anything. Planted: publish() does not look at that.
    topic = b"out"
    world = World(simple.MQTTClient, True)
    world.client.publish(topic, b"x")
    world.core.subscribe(b"in/#")
    world.client.publish(topic, b"x")
    equal([head for head, _ in world.broker.seen[1:]], [0x30, 0x82, 0x30])


def test_a_publish_at_qos_0_that_the_link_takes_in_parts_or_late_is_whole():
    # Planted: publish() returns while bytes wait.
    topic = b"out"
    world = World(simple.MQTTClient, True)
    wire = world.wires[0]
    for at in range(1, 16):
        world.client.publish(topic, b"before")
        wire.split_up = wire.up + at
        world.client.publish(topic, b"0123456789")
        equal((world.core.out.end, world.published()[-1]), (0, b"0123456789"), at)
    equal(len(world.published()), 30)
    equal(world.broker.faults, [])


def world_after(messages, topic):
    world = World(simple.MQTTClient, True)
    for _ in range(messages):
        world.client.publish(topic, b"x")
    return world


def test_a_write_that_fails_in_publish_ends_the_link_with_its_error():
    # Planted: the error is kept for the next call; the client stays connected.
    topic = b"out"
    for before in range(3):
        world = world_after(before, topic)
        world.wires[0].break_now()
        try:
            world.client.publish(topic, b"lost")
            raise AssertionError("no error")
        except OSError as error:
            equal(error.args[0], 104)
        assert world.wires[0].closed
        world.client.sock.close()  # as the handlers of many programs do
        raises(OSError, world.client.publish, topic, b"lost")
        world.client.connect()
        world.client.publish(topic, b"next")
        equal(world.published(), [b"x"] * before + [b"next"])
        equal(world.broker.faults, [])


def test_ctrl_c_while_publish_writes_leaves_no_half_packet():
    # Planted: the packet is put into the send buffer again at the next publish().
    topic = b"out"
    for before in range(3):
        world = world_after(before, topic)
        out = world.core.out
        write = out._write

        def interrupted(buf, offset, size, out=out, write=write):
            out._write = write
            raise KeyboardInterrupt

        out._write = interrupted
        raises(KeyboardInterrupt, world.client.publish, topic, b"1")
        world.client.publish(topic, b"2")
        equal(world.published(), [b"x"] * before + [b"1", b"2"])
        equal(world.broker.faults, [])


def test_an_acknowledgement_that_finds_no_room_holds_its_packet_up_and_nothing_else():
    # Planted: the bytes of a large message that wait for that room are lost.
    for size in (10, 5000):
        world = World(simple.MQTTClient)
        world.client.subscribe(b"in/#", 1)
        world.wires[0].full = True
        out = world.core.out
        while out.has_room():
            out.put_ack(0xC0)
        for i in range(3):
            assert world.broker.send(b"c", b"in/x", b"%d" % i + bytes(size), 1)
        for _ in range(5):
            assert world.client.check_msg() is None
        world.wires[0].full = False
        while len(world.got) < 3:
            world.client.wait_msg()
        equal(world.got, [b"%d" % i + bytes(size) for i in range(3)])
        world.client.ping()
        equal((world.broker.session.queue, world.broker.faults), ([], []))


def test_a_message_that_no_broker_sends_again_is_dropped_with_a_line_when_the_heap_has_no_room():
    """Planted: the link ends, and the broker begins again with what is retained; or nothing is printed."""
    lines = []
    printing, simple.print_exception = simple.print_exception, lines.append
    try:
        world = World(simple.MQTTClient, clean=True)
        world.client.subscribe(b"in/#", 1)
        world.core.part("backpressure").plenty = sys.maxsize // 2
        world.on_message = lambda payload: world.client.publish(b"out", payload, qos=1)
        world.send(500, 1)
        for _ in range(600):
            world.client.check_msg()
    finally:
        simple.print_exception = printing
    assert 30 < len(world.got) < 500, len(world.got)
    equal(world.got, sorted(world.got, key=int))
    equal(world.published(), world.got)
    equal(len(lines), 500 - len(world.got))
    equal((len(world.wires), world.broker.session.queue, world.broker.faults), (1, [], []))
