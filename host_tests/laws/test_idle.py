"""A tick that finds nothing to do asks the clock and the transport, and nothing else. Nothing is late because of it."""

from timing import STARTS, elapsed, up
from umqtt_testkit.portable import Rng, equal
from world import FULL, Broker, World


def counted(calls, name, function):
    def call(*arguments):
        calls.append(name)
        return function(*arguments)

    return call


def test_an_idle_tick_asks_the_clock_and_the_transport_once():
    # Planted: every tick() looks at everything.
    world = up(0)
    world.settle()
    client = world.client
    calls = []
    client.ticks = counted(calls, "ticks", client.ticks)
    client.keep_alive = counted(calls, "keep_alive", client.keep_alive)
    client.transport.read = counted(calls, "read", client.transport.read)
    wait = client.tick()
    calls[:] = []
    for ms in range(1, 4):
        world.clock.advance(1)
        equal(client.tick(), wait - ms)
    equal(calls, ["ticks", "read"] * 3)


def test_poll_after_a_publish_waits_no_longer_than_before():
    # Planted: publish() moves the client's time on, and with it the end of the wait.
    for start in STARTS:
        world = up(start)
        world.settle()
        client = world.client
        waits = []
        client.transport.wait = lambda ms, writing, waits=waits: waits.append(ms)
        wait = client.tick()
        world.clock.advance(3000)
        client.publish(b"t", b"x", 1)
        client.poll(60000)
        equal(waits, [wait - 3000])


def test_a_message_that_waits_for_the_window_expires_in_time():
    # Planted: a tick is idle although a message has a deadline.
    world = up(0, window=1)
    world.brokers[0].acknowledge = False
    client = world.client
    dropped = []
    client.on_dropped = lambda packet_id, topic, payload, reason: dropped.append(payload)
    since = world.clock.ticks_ms()
    client.publish(b"t", b"sent", 1)
    client.publish(b"t", b"waits", 1, expires_in=1000)
    while not dropped:
        client.tick()
        world.clock.advance(100)
        assert elapsed(world, since) <= 2200
    equal(dropped, [b"waits"])


def test_what_a_handler_asks_for_while_waiting_messages_are_handed_over_is_sent_at_once():
    # Planted: tick() returns when the next ping is due, also when a handler has subscribed meanwhile.
    world = up(0)
    world.settle()
    client = world.client
    client.on(b"t", lambda topic, payload: client.subscribe(b"u"))
    client.part("backpressure").keep((4, b"t", b"kept"))
    equal(client.tick(), 0)
    equal(client.subscribed, False)
    world.settle()
    equal(client.subscribed, True)


def end(wire, resets, empty_reads=0):
    """End a link behind the bytes that are on their way to the client; the next reads find nothing yet."""
    read = wire.read
    left = [empty_reads]

    def read_to_the_end(buf, offset):
        if left[0]:
            left[0] -= 1
            return None
        if resets and not wire.down:
            raise OSError(104)
        return read(buf, offset)

    wire.read = read_to_the_end
    wire.fin = True


def test_what_came_before_the_end_of_a_link_is_handled_whichever_tick_reads_it():
    # Planted: what an idle tick has read is dropped if the next read finds that the link has ended.
    for size, count in ((1, 1), (1, 40), (60, 1), (117, 2), (245, 1), (245, 5)):
        for ticks, resets in ((0, False), (1, False), (3, False), (0, True), (1, True)):
            world = up(0, rx_size=256)
            world.client.subscribe(b"t")
            assert world.run(lambda: world.client.subscribed)
            world.settle()
            for _ in range(ticks):
                world.clock.advance(1)
                world.client.tick()
            sent = [bytes([65 + i]) * size for i in range(count)]
            for payload in sent:
                world.brokers[0].send(b"c", b"t", payload, 0)
            end(world.wire, resets)
            assert world.run(lambda: world.of_kind("disconnect"))
            equal([payload for _, payload in world.messages], sent, (size, count, ticks, resets))


class Refusing(World):
    """A world whose broker refuses the client and ends the link at once. resets: by a reset."""

    resets = False

    def _make(self, *address):
        wire = World._make(self, *address)
        end(wire, self.resets, 1)
        return wire


def test_a_refusal_that_comes_with_the_end_of_the_link_is_told():
    # Planted: it counts as a link that was closed without an answer.
    for resets in (False, True):
        world = Refusing([Broker(return_code=5)])
        world.resets = resets
        assert world.run(lambda: world.of_kind("error") or world.of_kind("disconnect"))
        equal([error.args for error in world.of_kind("error")][:1], [("connect", 5)])


def lived(seed, looks_at_everything):
    """Live through a random program, and return what happened when."""
    rng = Rng(seed)
    world = World([Broker()], rx_size=256, tx_size=256, window=1 + rng.below(3), keep_alive=5, queue_qos0=rng.below(2))
    client = world.client
    told, waits, came = [], [], []

    def publishing(topic, payload):
        came.append(len(payload))
        if rng.below(3) == 0:
            client.publish(b"out", payload, rng.below(3))

    client.on(b"in", publishing)
    client.subscribe(b"in", 2)
    for _ in range(300):
        action = rng.below(16)
        if action < 3 and client.pending < 20:
            client.publish(b"t", bytes(rng.below(80)), rng.below(3), expires_in=rng.below(3) * 1000 or None)
        elif action < 6:
            world.brokers[0].send(b"c", b"in", bytes(rng.below(300)), rng.below(3))
        elif action == 6:
            client.subscribe(b"other", rng.below(3))
        elif action == 7:
            client.unsubscribe(b"other")
        elif action == 8 and world.wires:
            world.wire.full = not world.wire.full
        elif action == 9 and world.wires and rng.below(4) == 0:
            world.wire.break_now()
        elif action == 10 and rng.below(8) == 0:
            client.disconnect(rng.below(2) * 1000)
        elif action == 11:
            client.connect()
        for _ in range(1 + rng.below(4)):
            world.clock.advance(rng.below(400))
            if looks_at_everything:
                client.idle = False
            waits.append(client.tick())
            told.append((len(came), client.pending, client.in_flight, client.connected, len(world.taken())))
    told += [(kind, repr(what)) for kind, what in world.events] + came + world.taken()
    return told + [wire.up for wire in world.wires], waits


def test_a_client_that_looks_at_everything_at_each_tick_does_the_same():
    # Planted: after subscribe() or disconnect(), or with bytes that the link did not take, a tick is still idle.
    for seed in range(300 if FULL else 20):
        found, waits = lived(seed, False)
        wanted, longest = lived(seed, True)
        first = [i for i in range(min(len(found), len(wanted))) if found[i] != wanted[i]][:1]
        equal((len(found), first), (len(wanted), []), seed)
        equal([i for i in range(len(waits)) if waits[i] > longest[i]], [], seed)
