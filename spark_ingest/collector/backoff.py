"""How long to wait before the next attempt to reach a broker: the device client's rules (docs/client.md)."""

import random

_REFUSED_SHARE = 0.75


class Backoff:
    """Delays in seconds: random between 0 and a bound that is 1 twice and then doubles.

    Full jitter, since a restarted broker must not meet every client at once.

    :param longest_s: the bound stops doubling here.
    """

    def __init__(self, longest_s: float = 128.0, rng: random.Random | None = None) -> None:
        self.longest_s = longest_s
        self._rng = rng or random.Random()
        self.reset()

    def next_delay(self) -> float:
        """Seconds to wait now."""
        delay = self._rng.uniform(0.0, min(self._bound_s, self.longest_s))
        if self._first:
            # After a lost link comes one attempt, and only when that fails is the broker really away.
            self._first = False
        else:
            self._bound_s = min(self._bound_s * 2, self.longest_s)
        return delay

    def after_refusal(self) -> float:
        """Seconds to wait after a permanent refusal: asking often would not help."""
        self._first, self._bound_s = False, self.longest_s
        return self._rng.uniform(_REFUSED_SHARE * self.longest_s, self.longest_s)

    def reset(self) -> None:
        """Begin anew, after a link that has been up for a while."""
        self._first, self._bound_s = True, 1.0
