"""What this board measures. A sensor has read(), which returns a dict of names and numbers.

read() raises OSError or ValueError when the hardware does not answer: that is reported, counted, and the
reading goes out without it. A number is measured or left out, never made up.
"""

import gc


class System:
    """mem_free: bytes of heap; uptime_s: seconds since boot; loop_ms: the longest pass since the last."""

    def __init__(self, clock, loop_timer):
        self._clock = clock
        self._loop_timer = loop_timer

    def read(self):
        metrics = {"uptime_s": self._clock.uptime_ms() // 1000, "loop_ms": self._loop_timer.take_longest_ms()}
        # CPython, where the tests run too, has no such figure.
        if hasattr(gc, "mem_free"):
            metrics["mem_free"] = gc.mem_free()
        return metrics


class LoopTimer:
    """How long the passes of the loop take, their waiting left out."""

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
        """The longest pass since the last call, in milliseconds."""
        longest = self._longest
        self._longest = 0
        return longest
