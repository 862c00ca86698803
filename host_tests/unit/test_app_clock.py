"""Uptime does not wrap, and the time of day is null until a reliable source has set it."""

from app.clock import Clock as AppClock
from app.clock import system_clock
from umqtt_testkit.portable import TICKS_PERIOD, Clock, equal, raises

_NOW = 1795000000123


def _clock(ticks, system_ms=None):
    return AppClock(ticks.ticks_ms, ticks.ticks_diff, system_ms)


def test_uptime_goes_on_across_the_wrap_of_the_ticks():
    ticks = Clock(TICKS_PERIOD - 5)
    clock = _clock(ticks)
    for step in range(1, 8):
        ticks.advance(400000000)
        equal(clock.uptime_ms(), step * 400000000)


def test_the_time_of_day_is_unknown_until_told():
    ticks = Clock()
    clock = _clock(ticks)
    equal(clock.unix_ms(), None)
    ticks.advance(5000)
    clock.synchronised(_NOW)
    ticks.advance(250)
    equal(clock.unix_ms(), _NOW + 250)


def test_a_source_that_lives_in_the_past_is_refused():
    clock = _clock(Clock())
    for unix_ms in (0, 946684800000, 1704067199999):
        raises(ValueError, clock.synchronised, unix_ms)
    equal(clock.unix_ms(), None)


def test_a_system_clock_that_was_never_set_is_not_believed():
    equal(_clock(Clock(), lambda: 12345).unix_ms(), None)
    equal(_clock(Clock(), lambda: _NOW).unix_ms(), _NOW)


def test_a_board_without_an_operating_system_has_no_system_clock():
    for platform in ("esp32", "rp2", "samd"):
        equal(system_clock(None, platform), None)
    assert system_clock(None, "linux") is not None


def test_a_deep_sleep_goes_on_where_it_was():
    ticks = Clock(TICKS_PERIOD - 5)
    before = _clock(ticks)
    before.synchronised(_NOW)
    ticks.advance(2000)
    uptime_ms, unix_ms_at_boot = before.state()
    after = _clock(Clock(77))
    after.resume(uptime_ms + 60000, unix_ms_at_boot)
    equal((after.uptime_ms(), after.unix_ms()), (62000, _NOW + 62000))
    unknown = _clock(Clock())
    unknown.resume(*unknown.state())
    equal(unknown.unix_ms(), None)
