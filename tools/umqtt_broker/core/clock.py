"""When messages and sessions expire. `clock` gives seconds since 1970, because times must outlive a restart."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..settings.broker import BrokerConfig


class Expiry:
    """deadline: when a message that is published now expires, in whole seconds; 0: never.

    Kept up to date by tick(), once a second, so that a message costs no look at the clock.
    """

    __slots__ = ("_config", "clock", "deadline")

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.clock: Callable[[], float] = time.time
        self.deadline = 0
        self.tick()

    def tick(self) -> None:
        """Read the clock and the setting, which may change while the broker runs."""
        expiry = self._config.message_expiry
        # Counted to the next tick, so that no message expires early.
        self.deadline = self.now() + expiry + 1 if expiry else 0

    def deadline_of(self, expiry: int | None) -> int:
        """Return the deadline of a message published now that may wait so many seconds, as the settings allow."""
        if expiry is None:
            return self.deadline
        return min(self.end_of(expiry), self.deadline) if self.deadline else self.end_of(expiry)

    def end_of(self, seconds: int) -> int:
        """Return the first whole second, since 1970, in which so many seconds from now are over."""
        return math.ceil(self.clock() + seconds)

    @contextmanager
    def set_to(self, deadline: int) -> Iterator[None]:
        """Let messages published meanwhile expire at that deadline."""
        before, self.deadline = self.deadline, deadline
        try:
            yield
        finally:
            self.deadline = before

    def remaining(self, deadline: int) -> int:
        """Return the seconds until `deadline`, one at least: a message that is sent is not too old."""
        return max(1, int(deadline - self.clock()))

    def now(self) -> int:
        """Return the time in whole seconds."""
        return int(self.clock())
