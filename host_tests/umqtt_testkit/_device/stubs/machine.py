"""The `machine` of a virtual board: what the documentation says of a real one, as far as a host process can.

What ends a life (reset, deepsleep, the watchdog) is told to the supervisor, which kills this process at once:
like on a board, no `finally` runs and nothing is flushed.
"""

import os
import time

from umachine import *  # noqa: F403 - shadows the built-in module and keeps what that has

PWRON_RESET = 1
HARD_RESET = 2
WDT_RESET = 3
DEEPSLEEP_RESET = 4
SOFT_RESET = 5

PIN_WAKE = 2
TIMER_WAKE = 4

_control = None


def _connect(control):
    global _control
    _control = control


def _tell(text):
    _control.write(text + "\n")


def _end_life():
    """Wait for the supervisor's SIGKILL."""
    while True:
        time.sleep(60)


def _exit():
    """A SystemExit has left main.py: the port's main() would start the soft reboot."""
    _tell("exit")
    _end_life()


def unique_id():
    """6 bytes, like the factory MAC of an esp32; the same at every boot of this board."""
    return bytes(int(_UNIQUE_ID[i : i + 2], 16) for i in range(0, len(_UNIQUE_ID), 2))


def reset_cause():
    return _RESET_CAUSE


def wake_reason():
    return TIMER_WAKE if _RESET_CAUSE == DEEPSLEEP_RESET else 0


def reset():
    _tell("reset")
    _end_life()


def soft_reset():
    # Unwinds like on a board, where it is a SystemExit for the port's main().
    raise SystemExit


def lightsleep(time_ms=None):
    if time_ms is None:
        _end_life()  # nothing here could wake it but the power button
    time.sleep_ms(time_ms)


def deepsleep(time_ms=None):
    _tell("deepsleep -1" if time_ms is None else "deepsleep %d" % time_ms)
    _end_life()


_UNIQUE_ID = os.getenv("UMQTT_BOARD_ID") or "020000000001"
_RESET_CAUSE = int(os.getenv("UMQTT_BOARD_RESET_CAUSE") or PWRON_RESET)


class RTC:
    """The clock is the host's; memory() survives resets and deep sleep, not a power cut (esp32)."""

    _memory = None
    MEMORY_SIZE = 2048

    def __init__(self, id=0):
        if RTC._memory is None:
            RTC._memory = _from_hex(os.getenv("UMQTT_BOARD_RTC") or "")

    def datetime(self, value=None):
        if value is not None:
            raise OSError(1)  # EPERM: the host's clock is not a board's to set
        year, month, day, hour, minute, second, weekday, _ = time.gmtime()[:8]
        return (year, month, day, weekday, hour, minute, second, 0)

    def memory(self, data=None):
        if data is None:
            return RTC._memory
        data = bytes(data)
        if len(data) > self.MEMORY_SIZE:
            raise ValueError("buffer too long")
        RTC._memory = data
        _tell("rtc " + _to_hex(data))


class WDT:
    """Bites: the supervisor resets the board when it was not fed for `timeout` ms. Cannot be stopped."""

    def __init__(self, id=0, timeout=5000):
        if timeout < 1:
            raise ValueError("WDT timeout too short")
        self._timeout = timeout
        self._told = time.ticks_ms()
        _tell("wdt %d" % timeout)

    def feed(self):
        # A loop feeds thousands of times a second: telling an eighth of the timeout apart is enough.
        now = time.ticks_ms()
        if time.ticks_diff(now, self._told) * 8 >= self._timeout:
            self._told = now
            _tell("feed")


class Pin:
    """A pin that is connected to nothing: it reads back what was written."""

    IN = 1
    OUT = 3
    OPEN_DRAIN = 7
    PULL_UP = 2
    PULL_DOWN = 1

    def __init__(self, id, mode=-1, pull=-1, *, value=0):
        self._id = id
        self._value = 1 if value else 0

    def value(self, x=None):
        if x is None:
            return self._value
        self._value = 1 if x else 0

    __call__ = value

    def on(self):
        self._value = 1

    def off(self):
        self._value = 0

    def toggle(self):
        self._value ^= 1

    def __repr__(self):
        return "Pin(%s)" % self._id


def _from_hex(text):
    return bytes(int(text[i : i + 2], 16) for i in range(0, len(text), 2))


def _to_hex(data):
    return "".join(["%02x" % byte for byte in data])
