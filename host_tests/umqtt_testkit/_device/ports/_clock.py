"""The `time` of a board that plays esp32 or rp2: its own epoch, and a calendar that nobody has set yet.

esp32 counts from 2000 and wakes there; its clock goes on over resets and deep sleep. rp2 counts from 1970 and begins
each life at 2021-01-01 (ports/rp2/main.c). ticks_ms() and the sleeps are the host's.
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
    """Of the virtual board alone, used by machine.RTC: it is this Unix time now."""
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
    # The host's mktime() may think of summer time; UTC does not.
    year, month, day, hour, minute, second = fields[:6]
    return _unix_s(year, month, day) + hour * 3600 + minute * 60 + second - EPOCH_UNIX_S


def _unix_s(year, month, day):
    # Days since 1970 by the calendar's own cycles, counted from March so that the leap day comes last.
    year -= month < 3
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day - 719469
    return days * 86400


_offset_ns = int(os.getenv("UMQTT_BOARD_CLOCK") or 0)


def begin():
    """Called once the pipe to the supervisor stands."""
    if not _offset_ns or (IS_RP2 and os.getenv("UMQTT_BOARD_RESET_CAUSE") != _SOFT_RESET):
        set_unix_s(_WAKE_UNIX_S)
