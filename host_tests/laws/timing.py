"""Waiting in virtual time, for exactly as long as the client asks."""

from umqtt_testkit.portable import TICKS_PERIOD
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
    """Tick exactly when the client asks until condition(); return the ms that passed. Fails after `limit` ms."""
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
