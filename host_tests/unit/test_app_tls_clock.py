"""No certificate is checked with a clock that nobody has set."""

import _app_fakes as fakes
from app.tls_clock import AfterClock
from umqtt_testkit.portable import equal, raises

from umqtt_robust.errors import LinkLost

_NOW = 1_795_000_000_000


def test_tls_begins_when_the_time_is_known_whatever_the_calendar_of_the_board_says():
    """Planted: the board's calendar is used, which starts in 2021 on an rp2."""
    _, clock = fakes.clock()
    made = []
    factory = AfterClock(clock, lambda host, port, path: made.append((host, port, path)))
    error = raises(LinkLost, factory, "broker.example", 8883, "")
    equal((error.__class__.__name__, made), ("ClockNotSet", []))
    clock.synchronised(_NOW)
    factory("broker.example", 8883, "")
    equal(made, [("broker.example", 8883, "")])


def test_where_a_system_keeps_the_time_nothing_has_to_be_waited_for():
    _, clock = fakes.clock(lambda: _NOW)
    equal(AfterClock(clock, lambda host, port, path: path)("a", 1, "x"), "x")
