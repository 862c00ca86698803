"""The `machine` module of a virtual board: what the documentation says of a real one, as far as a host process can.

A reset, a deep sleep or the watchdog is reported to the supervisor, which kills this process at once: as on a board,
no `finally` runs and nothing is flushed. Pins are in _pins, buses in _buses. Names that a port does not have are
missing here too, when the virtual board plays that port.
"""

import os
import time

from _buses import I2C, SPI, UART, SoftI2C, SoftSPI  # noqa: F401 - this is where programs find them
from _pins import ADC, PWM, Pin, Signal, Timer  # noqa: F401
from _virtual import IS_RP2, tell
from umachine import *  # noqa: F403 - shadows the built-in module and keeps what that has

PWRON_RESET = 1
WDT_RESET = 3
if not IS_RP2:
    HARD_RESET = 2
    DEEPSLEEP_RESET = 4
    SOFT_RESET = 5
    PIN_WAKE = 2
    EXT0_WAKE = 2
    EXT1_WAKE = 3
    TIMER_WAKE = 4
    TOUCHPAD_WAKE = 5
    ULP_WAKE = 6
    SLEEP = 2
    DEEPSLEEP = 4


def _from_hex(text):
    return bytes(int(text[i : i + 2], 16) for i in range(0, len(text), 2))


_UNIQUE_ID = os.getenv("UMQTT_BOARD_ID") or "020000000001"
_RESET_CAUSE = int(os.getenv("UMQTT_BOARD_RESET_CAUSE") or PWRON_RESET)
_HARD_CAUSE = int(os.getenv("UMQTT_BOARD_HARD_CAUSE") or PWRON_RESET)
_RP2_LONGEST_WDT_MS = 8388
_RP2_SLEEP_TOO_LONG_MS = (1 << 32) // 1000
_rtc_memory = [_from_hex(os.getenv("UMQTT_BOARD_RTC") or "")]
_frequency = [125000000 if IS_RP2 else 160000000]


def _end_life():
    """Wait for the supervisor's SIGKILL."""
    while True:
        time.sleep(60)


def _exit():
    """End the process after a SystemExit left main.py, where the port's main() would start the soft reboot."""
    tell("exit")
    _end_life()


def unique_id():
    """Return the same id at every boot of this board.

    It has 6 bytes, the factory MAC (esp32), or 8, the number of the flash chip (rp2).
    """
    own = _from_hex(_UNIQUE_ID)
    return (b"\xe6\x61" + own if len(own) == 6 else own) if IS_RP2 else own


def reset_cause():
    if IS_RP2:
        # The chip knows two causes: every reset() counts as a watchdog reset, and a soft reset changes nothing.
        return PWRON_RESET if _HARD_CAUSE == PWRON_RESET else WDT_RESET
    return _RESET_CAUSE


def reset():
    tell("reset")
    _end_life()


def soft_reset():
    # Unwinds as on a board, where it is a SystemExit for the port's main().
    raise SystemExit


def bootloader(timeout=None):
    """Wait for the power to be cut; a board would wait for an image on its USB port."""
    tell("deepsleep -1")
    _end_life()


def lightsleep(time_ms=None):
    if time_ms is None:
        _end_life()  # nothing but the power button could wake it here
    if not IS_RP2:
        time.sleep_ms(time_ms)
        return
    if time_ms >= _RP2_SLEEP_TOO_LONG_MS:
        raise ValueError("sleep too long")
    # Report the sleep, because the watchdog keeps running; board_life.py knows what it does to a sleeping chip.
    tell("asleep")
    time.sleep_ms(time_ms)
    tell("awake")


def deepsleep(time_ms=None):
    if IS_RP2:
        # rp2 has no deep sleep (modmachine.c), and its reset_cause() cannot tell it from other resets.
        lightsleep(time_ms)
        reset()
    tell("deepsleep -1" if time_ms is None else "deepsleep %d" % time_ms)
    _end_life()


def freq(hz=None, *peripheral):
    if hz is None:
        return _frequency[0]
    if not IS_RP2 and hz not in (80000000, 160000000, 240000000):
        raise ValueError("frequency must be 20MHz, 40MHz, 80Mhz, 160MHz or 240MHz")
    _frequency[0] = hz


if not IS_RP2:

    def wake_reason():
        return TIMER_WAKE if _RESET_CAUSE == DEEPSLEEP_RESET else 0


class RTC:
    """Real-time clock: datetime() follows the board's clock (see _clock).

    memory() exists on esp32 only: it survives resets and deep sleep, but no power cut.
    """

    def __init__(self, id=0):
        pass

    def datetime(self, value=None):
        import time as clock  # the board's clock, which is not the host's when it plays a port

        if value is not None:
            if not hasattr(clock, "set_unix_s"):
                raise OSError(1)  # EPERM: a board may not set the host's clock
            year, month, day, _, hour, minute, second = value[:7]
            seconds = clock.mktime((year, month, day, hour, minute, second, 0, 0))
            clock.set_unix_s(seconds + clock.EPOCH_UNIX_S)
            return
        year, month, day, hour, minute, second, weekday, _ = clock.gmtime()[:8]
        return (year, month, day, weekday, hour, minute, second, 0)


class _EspRTC(RTC):
    MEMORY_SIZE = 2048

    def init(self, value):
        self.datetime(value)

    def memory(self, data=None):
        if data is None:
            return _rtc_memory[0]
        data = bytes(data)
        if len(data) > self.MEMORY_SIZE:
            raise ValueError("buffer too long")
        _rtc_memory[0] = data
        tell("rtc " + "".join(["%02x" % byte for byte in data]))


if not IS_RP2:
    RTC = _EspRTC


class WDT:
    """Watchdog: the supervisor resets the board if it was not fed for `timeout` ms. It cannot be stopped."""

    def __init__(self, id=0, timeout=5000):
        if id != 0:
            raise ValueError("WDT(%d) doesn't exist" % id if IS_RP2 else None)
        if timeout < 1:
            raise ValueError("WDT timeout too short")
        if IS_RP2 and timeout > _RP2_LONGEST_WDT_MS:
            raise ValueError("timeout exceeds 8388")
        self._timeout = timeout
        self._told = time.ticks_ms()
        tell("wdt %d" % timeout)

    def feed(self):
        # A loop feeds thousands of times a second: reporting once per eighth of the timeout is enough.
        now = time.ticks_ms()
        if time.ticks_diff(now, self._told) * 8 >= self._timeout:
            self._told = now
            tell("feed")
