"""How long to wait before the next attempt to reach a broker: exponential, with full jitter."""

import random


class Backoff:
    """Delays in seconds: the first random in 0 to 1, then random up to a bound that doubles from 1.

    Full jitter, since a restarted broker must not meet every client at once.

    :param longest_s: the bound stops doubling here.
    """

    def __init__(self, longest_s: float = 128.0, rng: random.Random | None = None) -> None:
        self.longest_s = longest_s
        self._rng = rng or random.Random()
        self._bound_s = 1.0

    def next_delay(self) -> float:
        """Seconds to wait now; the next call's bound is twice this one's."""
        delay = self._rng.uniform(0.0, min(self._bound_s, self.longest_s))
        self._bound_s = min(self._bound_s * 2, self.longest_s)
        return delay

    def after_refusal(self) -> float:
        """Seconds to wait after a permanent refusal: asking often would not help."""
        self._bound_s = self.longest_s
        return self.longest_s

    def reset(self) -> None:
        """Begin anew, after a link that has been up for a while."""
        self._bound_s = 1.0
