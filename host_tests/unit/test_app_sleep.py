"""A board without deep sleep of its own sleeps as long as it was told, and its watchdog never bites meanwhile."""

import sys

import startup
from app import sleep
from umqtt_testkit.portable import Clock, Rng, equal, new_path


class LockedUp(Exception):
    """The watchdog of an RP2040 has bitten during a light sleep: only a power cut helps."""


class Rp2:
    """The modules machine and sys of rp2, as in ports/rp2/modmachine.c and machine_wdt.c of MicroPython 1.25."""

    platform = "rp2"

    def __init__(self, watchdog_ms, wakes_early=None):
        self.clock = Clock()
        self.watchdog_ms = watchdog_ms
        self._wakes_early = wakes_early
        self._ms = self._fed_at = 0
        self.resets_at = None

    def feed(self):
        self._fed_at = self._ms

    def lightsleep(self, ms):
        if ms >= (1 << 32) // 1000:
            raise ValueError("sleep too long")
        if self._wakes_early:
            ms = self._wakes_early.between(0, ms)
        # The cost of a loop that has nothing left to sleep.
        ms = max(ms, 1)
        if self._ms + ms - self._fed_at >= self.watchdog_ms:
            raise LockedUp
        self._ms += ms
        self.clock.advance(ms)

    def deepsleep(self, ms):
        self.lightsleep(ms)
        self.reset()

    def reset(self):
        self.resets_at = self._ms


def _sleep(chip, seconds):
    modules = sys.modules.get("machine")
    time = sleep.time
    sys.modules["machine"], sleep.sys, sleep.time, startup.watchdog = chip, chip, chip.clock, chip
    try:
        sleep._deepsleep(seconds * 1000, lambda: None)
    finally:
        sleep.sys, sleep.time, startup.watchdog = sys, time, None
        if modules:
            sys.modules["machine"] = modules
        else:
            del sys.modules["machine"]
    return chip.resets_at


def test_rp2_sleeps_as_long_as_told_and_then_resets_whatever_its_watchdog():
    """Planted: machine.deepsleep(); slices of 5 s."""
    for watchdog_ms in (1000, 8388):
        for seconds in (1, 600, 4_295):
            equal(_sleep(Rp2(watchdog_ms), seconds), seconds * 1000)


def test_rp2_sleeps_on_after_an_interrupt_that_woke_it():
    """Planted: an interrupted slice counts as completed."""
    for seed in range(3):
        for seconds in (1, 60):
            ends_at = _sleep(Rp2(1000, Rng(seed, quiet=True)), seconds)
            assert 0 <= ends_at - seconds * 1000 <= 1, (seed, ends_at)


def test_what_a_file_keeps_for_a_wake_is_used_once_and_for_its_boot_alone():
    """Planted: the file stays after the wake, so that a crash uses a seq twice; the boot is not compared."""
    before, sleep._FILE = sleep._FILE, new_path("wake")
    try:
        wake = sleep.Wake(b"12345678", 5, 1000, None)
        for count, wanted in ((7, 5), (7, None), (8, None)):
            if wanted or count == 8:
                sleep.remember(7, wake)
            found = sleep.woken(count)
            equal(found and found.seq, wanted, count)
        equal(sleep.woken(7), None)
    finally:
        sleep._FILE = before
