"""Keeps two times: milliseconds since boot, always known, and Unix milliseconds, None until they are known.

A board starts in 1970 or 2000, so its own calendar is never trusted: the time of day is known only
after a call of synchronised() (by NTP or another source), or if an operating system keeps it.
"""

# 2024-01-01T00:00:00Z: this code did not exist before then, so a clock that shows an earlier time was never
# set.
_EARLIEST_UNIX_MS = 1704067200000
# Drift is not measured over a shorter time: answers are some 10 ms early or late, 17 ppm of ten minutes.
_SHORTEST_DRIFT_MS = 600_000


class Clock:
    """A board's clock. ticks_ms(), ticks_diff(end, start): those of MicroPython's module time, wrap included.

    system_ms: a function that returns Unix milliseconds if an operating system keeps the time of day, else None.
    kept_by_system: bool, True if there is one. drift_ppm: how much this board's clock loses against true time
    (negative: gains), None until measured.
    """

    def __init__(self, ticks_ms, ticks_diff, system_ms=None):
        self._ticks_ms = ticks_ms
        self._ticks_diff = ticks_diff
        self._system_ms = system_ms
        self.kept_by_system = system_ms is not None
        self._last_ticks = ticks_ms()
        self._uptime_ms = 0
        self._unix_ms_at_boot = None
        self._synchronised_at = 0
        self.drift_ppm = None

    def uptime_ms(self):
        """Return the milliseconds since boot. Call it at least once in six days: ticks wrap at 2**30 ms."""
        ticks = self._ticks_ms()
        self._uptime_ms += self._ticks_diff(ticks, self._last_ticks)
        self._last_ticks = ticks
        return self._uptime_ms

    def unix_ms(self):
        """Return Unix milliseconds, or None while the time of day is not known."""
        if self._unix_ms_at_boot is not None:
            return self._unix_ms_at_boot + self.uptime_ms()
        if self._system_ms is None:
            return None
        now = self._system_ms()
        return now if now >= _EARLIEST_UNIX_MS else None

    def synchronised(self, unix_ms):
        """Set the time of day to unix_ms, given by a trusted source. Raises ValueError for a time before 2024.
        Returns by how many ms the time of day was set forward, or None if it was not known before.
        """
        if unix_ms < _EARLIEST_UNIX_MS:
            raise ValueError("time of day %d ms lies before 2024: the source is not synchronised" % unix_ms)
        now = self.uptime_ms()
        step = None
        if self._unix_ms_at_boot is not None:
            step = unix_ms - now - self._unix_ms_at_boot
            elapsed = now - self._synchronised_at
            if elapsed >= _SHORTEST_DRIFT_MS:
                self.drift_ppm = round(step * 1_000_000 / elapsed, 1)
        self._unix_ms_at_boot = unix_ms - now
        self._synchronised_at = now
        return step

    def state(self):
        """Return (uptime_ms, Unix milliseconds at boot or None), which resume() takes after a deep sleep."""
        return self.uptime_ms(), self._unix_ms_at_boot

    def resume(self, uptime_ms, unix_ms_at_boot):
        """Continue after a deep sleep. Both values are those of state(), uptime_ms increased by the time slept."""
        self._last_ticks = self._ticks_ms()
        self._uptime_ms = uptime_ms
        self._unix_ms_at_boot = unix_ms_at_boot
        # Another, coarser oscillator counted the time slept: drift is not measured across it.
        self._synchronised_at = uptime_ms


def system_clock(time, platform):
    """Return Clock's system_ms for this platform (sys.platform), or None if no operating system keeps the time.

    time: the module. It uses time_ns(), because time() is a 32-bit float on some ports.
    """
    if platform not in ("linux", "darwin"):
        return None
    return lambda: time.time_ns() // 1000000
