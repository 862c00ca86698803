"""Delays between attempts to reach a broker; the rules are those of the device client (docs/client.md)."""

import random

_REFUSED_SHARE = 0.75


class Backoff:
    """A generator of random delays between 0 and a bound, which is 1 s for the first two attempts and then doubles.

    The delays have full jitter, so that not every client connects at once after a restart of the broker.

    :param longest_s: the largest bound, in seconds.
    :param rng: the source of randomness; None for a new one.
    """

    def __init__(self, longest_s: float = 128.0, rng: random.Random | None = None) -> None:
        self.longest_s = longest_s
        self._rng = rng or random.Random()
        self.reset()

    def next_delay(self) -> float:
        """Return the seconds to wait before the next attempt, and raise the bound."""
        delay = self._rng.uniform(0.0, min(self._bound_s, self.longest_s))
        if self._first:
            # The first attempt after a lost link does not raise the bound: only its failure shows a real outage.
            self._first = False
        else:
            self._bound_s = min(self._bound_s * 2, self.longest_s)
        return delay

    def after_refusal(self) -> float:
        """Return the seconds to wait after a permanent refusal: 75 to 100 % of the largest bound."""
        self._first, self._bound_s = False, self.longest_s
        return self._rng.uniform(_REFUSED_SHARE * self.longest_s, self.longest_s)

    def reset(self) -> None:
        """Start again with the shortest delays, after a link that was up for a while."""
        self._first, self._bound_s = True, 1.0
