"""Two times: milliseconds since boot, always known, and Unix milliseconds, None until they are.

A board wakes in 1970 or 2000. Its own calendar is therefore never believed: the time of day is known only
after synchronised() was told it (by NTP or another source), or where an operating system keeps it.
"""

# 2024-01-01T00:00:00Z: this code did not exist before, so an earlier time of day is a clock that was never
# set.
_EARLIEST_UNIX_MS = 1704067200000
# A shorter time says nothing about drift: answers arrive some 10 ms early or late, 17 ppm of ten minutes.
_SHORTEST_DRIFT_MS = 600_000


class Clock:
    """ticks_ms() and ticks_diff(end, start) are those of MicroPython's module time, wrap included.

    system_ms: a function giving Unix milliseconds, only where an operating system keeps the time of day; else
    None. kept_by_system: bool, whether there is one. drift_ppm: how much this board's clock loses against true time
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
        """Milliseconds since boot. To be called at least once in six days: ticks wrap at 2**30 ms."""
        ticks = self._ticks_ms()
        self._uptime_ms += self._ticks_diff(ticks, self._last_ticks)
        self._last_ticks = ticks
        return self._uptime_ms

    def unix_ms(self):
        """Unix milliseconds, or None while the time of day is not known."""
        if self._unix_ms_at_boot is not None:
            return self._unix_ms_at_boot + self.uptime_ms()
        if self._system_ms is None:
            return None
        now = self._system_ms()
        return now if now >= _EARLIEST_UNIX_MS else None

    def synchronised(self, unix_ms):
        """A trusted source says that it is unix_ms now. Returns by how many ms the time of day was set forward, None
        when it was not known before. Raises ValueError for a time before 2024.
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
        """(uptime_ms, Unix milliseconds at boot or None): what resume() takes after a deep sleep."""
        return self.uptime_ms(), self._unix_ms_at_boot

    def resume(self, uptime_ms, unix_ms_at_boot):
        """Go on after a deep sleep: uptime_ms is what state() gave and the time slept since."""
        self._last_ticks = self._ticks_ms()
        self._uptime_ms = uptime_ms
        self._unix_ms_at_boot = unix_ms_at_boot
        # The time slept was counted by another, coarser oscillator: no measure of drift goes across it.
        self._synchronised_at = uptime_ms


def system_clock(time, platform):
    """The function for Clock's system_ms on this platform (sys.platform), or None where no system keeps time.

    time: the module. time_ns() is used since time() is a 32-bit float on some ports.
    """
    if platform not in ("linux", "darwin"):
        return None
    return lambda: time.time_ns() // 1000000
