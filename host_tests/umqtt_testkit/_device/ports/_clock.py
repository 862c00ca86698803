"""The `time` module of a board that plays esp32 or rp2: the port's epoch, and a calendar that is not set yet.

esp32 counts from 2000 and starts there; its clock keeps running over resets and deep sleep. rp2 counts from 1970 and
starts at 2021-01-01 after each reset (ports/rp2/main.c). ticks_ms() and the sleeps are the host's.
"""

import os

import utime as _utime
from _virtual import IS_RP2, tell
from utime import *  # noqa: F403 - all but what is defined here

EPOCH_UNIX_S = 0 if IS_RP2 else 946684800
_WAKE_UNIX_S = 1609459200 if IS_RP2 else 946684800
_SOFT_RESET = "5"

_NS = 1000000000


def set_unix_s(seconds):
    """Set the clock to this Unix time. Only virtual boards have this function; machine.RTC calls it."""
    global _offset_ns
    _offset_ns = int(seconds) * _NS - _utime.time_ns()
    tell("clock %d" % _offset_ns)


def time():
    return (_utime.time_ns() + _offset_ns) // _NS - EPOCH_UNIX_S


def time_ns():
    return _utime.time_ns() + _offset_ns - EPOCH_UNIX_S * _NS


def gmtime(secs=None):
    return _utime.gmtime((time() if secs is None else secs) + EPOCH_UNIX_S)[:8]


localtime = gmtime


def mktime(fields):
    # The host's mktime() may apply daylight saving time; UTC has none.
    year, month, day, hour, minute, second = fields[:6]
    return _unix_s(year, month, day) + hour * 3600 + minute * 60 + second - EPOCH_UNIX_S


def _unix_s(year, month, day):
    # Days since 1970 by the calendar's 400-year cycle, counted from March so that the leap day comes last.
    year -= month < 3
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day - 719469
    return days * 86400


_offset_ns = int(os.getenv("UMQTT_BOARD_CLOCK") or 0)


def begin():
    """Start the clock; called once the pipe to the supervisor is open."""
    if not _offset_ns or (IS_RP2 and os.getenv("UMQTT_BOARD_RESET_CAUSE") != _SOFT_RESET):
        set_unix_s(_WAKE_UNIX_S)
