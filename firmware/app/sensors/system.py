"""Metrics of the program itself: heap, uptime, loop and radio."""

import gc


class System:
    """A sensor of the program. mem_free: free bytes of heap; uptime_s: seconds since boot; loop_ms: the longest pass
    of the loop since the last reading; rssi: dBm, while Wi-Fi is joined; clock_drift_ppm: parts in a million by which
    this board's clock is slow, once measured.
    """

    def __init__(self, clock, loop_timer, wifi=None):
        self._clock = clock
        self._loop_timer = loop_timer
        self._wifi = wifi

    def read(self):
        metrics = {"uptime_s": self._clock.uptime_ms() // 1000, "loop_ms": self._loop_timer.take_longest_ms()}
        # CPython, where the tests run too, has no such figure.
        if hasattr(gc, "mem_free"):
            metrics["mem_free"] = gc.mem_free()
        rssi = self._wifi.rssi() if self._wifi else None
        if rssi is not None:
            metrics["rssi"] = rssi
        if self._clock.drift_ppm is not None:
            metrics["clock_drift_ppm"] = self._clock.drift_ppm
        return metrics


class LoopTimer:
    """A stopwatch for the passes of the loop, without their waiting."""

    def __init__(self, clock):
        self._clock = clock
        self._started = 0
        self._longest = 0

    def start(self):
        self._started = self._clock.uptime_ms()

    def stop(self):
        elapsed = self._clock.uptime_ms() - self._started
        if elapsed > self._longest:
            self._longest = elapsed

    def take_longest_ms(self):
        """Return the longest pass since the last call, in milliseconds."""
        longest = self._longest
        self._longest = 0
        return longest
