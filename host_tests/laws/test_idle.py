"""A tick that finds nothing to do asks the clock and the transport, and nothing else. Nothing is late because of it."""

from timing import STARTS, elapsed, up
from umqtt_testkit.portable import equal


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
