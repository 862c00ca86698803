"""How long to wait before the next attempt to connect."""

import os

_FIRST = 1000
_LONGEST = 128000


def _random(n):
    return int.from_bytes(os.urandom(4), "big") % n


class Backoff:
    """Full jitter: a wait is drawn evenly between 0 and a limit: 1 s twice, then doubling up to 128 s.

    Even the first wait is random, so that a restarted broker does not meet its whole fleet at once.
    random(n): an even draw from 0 to n - 1.
    """

    def __init__(self, random=_random):
        self._random = random
        self.reset()

    def reset(self):
        """The link has been good for a while: begin again with a short wait."""
        self._limit = 0

    def delay(self):
        """ms to wait before the next attempt."""
        limit = self._limit or _FIRST
        self._limit = min(limit * 2, _LONGEST) if self._limit else _FIRST
        return self._random(limit + 1)

    def longest(self):
        """ms to wait when another attempt is unlikely to fare better: the longest limit, less up to a quarter."""
        self._limit = _LONGEST
        return _LONGEST - self._random(_LONGEST // 4)
