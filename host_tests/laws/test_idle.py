"""A tick that finds nothing to do asks the clock and the transport, and nothing else. Nothing is late because of it."""

from timing import STARTS, elapsed, up
from umqtt_testkit.portable import equal
from world import Broker, World


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
