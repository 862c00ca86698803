"""Helpers for tests that run unchanged on CPython and MicroPython.

A portable test file contains plain functions `test_*()` without arguments and imports neither pytest nor anything
that only one interpreter has. It may set two module variables: `HEAP = "512K"` (heap of the MicroPython that runs the
file) and `TIMEOUT_S = 100` (seconds after which a silent MicroPython counts as hung).
"""

try:
    from os import getenv as _getenv
except ImportError:
    _getenv = None  # MicroPython on a chip has no environment

# True if sweeps shall be complete, not a sample.
FULL = bool(_getenv and _getenv("UMQTT_FULL_SWEEPS"))

# Seconds that any wait may take before the test fails: see umqtt_testkit.waiting. UMQTT_DELAYS slows everything down.
WAIT_LIMIT_S = 300.0 if _getenv and _getenv("UMQTT_DELAYS") else 60.0

TICKS_PERIOD = 1 << 30  # ticks_ms() of a 32-bit board wraps here
_TICKS_HALF = TICKS_PERIOD >> 1
_TICKS_MASK = TICKS_PERIOD - 1  # the largest small int there: to calculate with the period itself would allocate


class Skip(Exception):
    """Raised by `skip`: the test does not apply here; args[0] says why."""


def skip(reason):
    """End the test as skipped. `reason` (str) is shown in the report."""
    raise Skip(reason)


def raises(error, function, *args, **kwargs):
    """Call `function(*args, **kwargs)`, which must raise `error` (a class or a tuple of them); return the exception.

    Any other exception passes through, so its traceback is kept.
    """
    try:
        result = function(*args, **kwargs)
    except error as caught:
        return caught
    raise AssertionError(f"expected {_names(error)}, but the call returned {result!r}")


def equal(actual, expected, about=""):
    """Assert `actual == expected`. Shows both values, which a bare `assert` does not do on MicroPython.

    about: shown before the values. Raises AssertionError.
    """
    if actual != expected:
        where = str(about) + ": " if about != "" else ""
        raise AssertionError(f"{where}got {actual!r}, expected {expected!r}")


def new_path(name):
    """Return a path in the temporary folder that does not exist yet; `name` (str) is part of it.

    Files that a test leaves there are removed: at its end on CPython, at the end of its file on MicroPython.
    """
    import os
    from binascii import hexlify

    folder = os.getenv("TMPDIR") or "/tmp"
    return f"{folder}/{name}-{hexlify(os.urandom(8)).decode()}"


def _names(error):
    if isinstance(error, tuple):
        return " or ".join([one.__name__ for one in error])
    return error.__name__


class Rng:
    """Random numbers that are the same on both interpreters for the same seed (xorshift32).

    The `random` modules differ, and a failing sweep must be repeatable on the other interpreter. The seed is
    printed (a report shows it when the test fails) unless `quiet`.
    """

    def __init__(self, seed, quiet=False):
        self.seed = seed
        # An xorshift state of 0 would stay 0; the multiplication spreads neighbouring seeds.
        self._state = ((seed * 2654435761) ^ 0x9E3779B9) & 0xFFFFFFFF or 1
        for _ in range(4):
            self.bits32()
        if not quiet:
            print("Rng seed", seed)

    def bits32(self):
        """Return a number in 0..2**32-1 (never 0)."""
        x = self._state
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
        x ^= (x << 5) & 0xFFFFFFFF
        self._state = x
        return x

    def below(self, limit):
        """Return a number in 0..limit-1."""
        return self.bits32() % limit

    def between(self, low, high):
        """Return a number in low..high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent):
        """Return True in `percent` of 100 calls."""
        return self.below(100) < percent

    def choice(self, sequence):
        """Return one element of a sequence that is not empty."""
        return sequence[self.below(len(sequence))]

    def shuffle(self, items):
        """Reorder a list in place."""
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]

    def bytes(self, length):
        """Return `length` random bytes."""
        return bytes([self.below(256) for _ in range(length)])

    def pieces(self, data, most=None):
        """Cut bytes into non-empty pieces of random length (at most `most`), in order."""
        result = []
        start = 0
        while start < len(data):
            left = len(data) - start
            end = start + self.between(1, left if most is None or most > left else most)
            result.append(data[start:end])
            start = end
        return result


class Clock:
    """A clock that moves only when told, with the 2**30 ms wrap of a 32-bit board.

    Has the `ticks_ms`, `ticks_add`, `ticks_diff` and `sleep_ms` of MicroPython's `time`, so that it can stand in for
    the module. Start close to the wrap (`Clock(TICKS_PERIOD - 5)`) to see whether code survives it.
    """

    def __init__(self, now_ms=0):
        self._now = now_ms & _TICKS_MASK

    def ticks_ms(self):
        return self._now

    def set(self, now_ms):
        self._now = now_ms & _TICKS_MASK

    def advance(self, ms):
        """Advance by `ms` and return the new reading."""
        self._now = self._now + ms & _TICKS_MASK
        return self._now

    sleep_ms = advance

    def ticks_add(self, ticks, delta):
        return (ticks + delta) % TICKS_PERIOD

    def ticks_diff(self, end, start):
        """Return end - start as MicroPython computes it: in -2**29 .. 2**29-1."""
        return ((end - start + _TICKS_HALF) % TICKS_PERIOD) - _TICKS_HALF
