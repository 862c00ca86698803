"""Keep-alive and reconnect, to the millisecond on a fake clock, also across the wrap of the clock at 2**30 ms."""

from umqtt_testkit.portable import TICKS_PERIOD, equal
from world import PINGREQ, World

STARTS = (0, TICKS_PERIOD - 7000, TICKS_PERIOD - 1)
KEEP_ALIVE = 10


def up(start, **options):
    options.setdefault("keep_alive", KEEP_ALIVE)
    world = World(start=start, **options)
    assert world.run(lambda: world.client.connected)
    return world


def elapsed(world, since):
    return (world.clock.ticks_ms() - since) % TICKS_PERIOD


def run_until(world, condition, limit):
    """Ticks exactly when the client asks; returns the ms that went by."""
    since = world.clock.ticks_ms()
    while not condition():
        wait = world.client.tick()
        if condition():
            break
        assert elapsed(world, since) <= limit, "not within %d ms" % limit
        world.clock.advance(wait or 1)
    return elapsed(world, since)


def pings(world):
    return [head for head, _ in world.brokers[0].seen if head >> 4 == PINGREQ]


def test_ping_leaves_at_half_the_keep_alive():
    for start in STARTS:
        world = up(start)
        equal(run_until(world, lambda: pings(world), 20000), 5000)


def test_a_blackholed_idle_link_is_found_within_keep_alive():
    for start in STARTS:
        world = up(start)
        world.wire.mute = True
        equal(run_until(world, lambda: not world.client.connected, 20000), 10000)


def test_a_link_that_takes_no_bytes_is_found_within_keep_alive():
    for start in STARTS:
        world = up(start)
        world.wire.full = True
        equal(run_until(world, lambda: not world.client.connected, 20000), 10000)


def test_a_half_open_link_is_found_under_a_steady_flow_at_qos_0():
    for start in STARTS:
        world = up(start)
        world.wire.mute = True
        since = world.clock.ticks_ms()
        while world.client.connected:
            world.client.publish(b"t", b"x")
            world.client.tick()
            world.clock.advance(100)
            assert elapsed(world, since) <= 10100
        assert elapsed(world, since) >= 10000


def test_a_broker_that_only_acknowledges_is_alive_and_found_when_it_stops():
    for start in STARTS:
        world = up(start)
        broker = world.brokers[0]
        broker.answer_pings = False
        for _ in range(100):
            world.client.publish(b"t", b"x", 1)
            world.settle()
            world.clock.advance(1000)
            assert world.client.connected
        world.settle()
        last = world.clock.ticks_ms()
        broker.answer = False
        run_until(world, lambda: not world.client.connected, 20000)
        assert elapsed(world, last) <= 10000


def test_a_lost_puback_on_a_live_link_closes_it_and_nothing_is_sent_twice_before():
    world = up(0, ack_timeout=30000)
    broker = world.brokers[0]
    broker.acknowledge = False
    world.client.publish(b"t", b"x", 1)
    equal(run_until(world, lambda: not world.client.connected, 40000), 30000)
    equal(len(broker.taken), 1)
    broker.acknowledge = True
    assert world.run(lambda: not world.client.pending)
    equal(broker.taken, [(b"t", b"x"), (b"t", b"x")])


def test_keep_alive_0_never_pings_and_never_gives_up():
    world = up(0, keep_alive=0)
    world.wire.mute = True
    world.settle(1000000)
    assert world.client.connected and not pings(world)


def test_fin_is_noticed_at_the_next_tick():
    world = up(0)
    world.wire.fin = True
    world.client.tick()
    assert not world.client.connected


def test_a_long_sleep_ends_in_a_new_link_and_no_loss():
    for sleep in (60000, 1 << 28, 1 << 29, (1 << 29) + 5, (1 << 30) - 1000):
        world = up(0)
        world.client.publish(b"t", b"before", 1)
        world.clock.advance(sleep)
        world.wire.break_now()  # no broker waits that long
        world.client.publish(b"t", b"after", 1)
        assert world.run(lambda: not world.client.pending and world.client.connected)
        payloads = [payload for _, payload in world.brokers[0].taken]
        assert payloads.index(b"before") < payloads.index(b"after"), payloads


def test_waits_between_attempts_to_the_millisecond():
    for start in STARTS:
        world = World(start=start)
        attempts = []
        world.unreachable = True
        begin = world.clock.ticks_ms()
        while len(attempts) < 10:
            errors = len(world.of_kind("error"))
            wait = world.client.tick()
            if len(world.of_kind("error")) > errors:
                attempts.append(elapsed(world, begin))
                begin = world.clock.ticks_ms()
            world.clock.advance(wait)
        equal(attempts, [1000, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 128000])


def test_the_wait_is_short_again_only_after_a_good_link():
    world = World()
    for lasted, limit in ((20000, 1000), (1000, 1000), (1000, 2000), (1000, 4000), (20000, 1000)):
        assert world.run(lambda: world.client.connected)
        world.settle(lasted)
        world.wire.break_now()
        world.client.tick()
        equal(world.client.tick(), limit, lasted)
