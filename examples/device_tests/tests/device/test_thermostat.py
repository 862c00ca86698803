"""Each test runs twice: under CPython and under real MicroPython. It needs no board and does not wait."""

from thermostat import Thermostat
from umqtt_testkit.portable import TICKS_PERIOD, Clock, Rng, equal


def test_it_switches_at_the_edges_of_the_hysteresis():
    clock, states = Clock(), []
    thermostat = Thermostat(states.append, shortest_ms=0)
    for temperature in (20.0, 19.6, 19.4, 19.9, 20.4, 20.6, 20.0):
        thermostat.update(temperature, clock)
    equal(states, [True, False])


def test_the_relay_is_spared_also_where_the_clock_wraps():
    clock = Clock(TICKS_PERIOD - 30_000)
    switched = []
    thermostat = Thermostat(lambda on: switched.append(clock.ticks_ms()))
    rng = Rng(1)
    for _ in range(1000):
        clock.advance(1000)
        thermostat.update(rng.between(15, 25), clock)
    assert len(switched) > 5
    for earlier, later in zip(switched, switched[1:]):
        assert clock.ticks_diff(later, earlier) >= 60_000
