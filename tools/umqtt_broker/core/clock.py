"""When messages and sessions expire. All times are seconds since 1970, because they must stay valid after a restart.

They are the machine's time at the start plus the time that has passed since: a machine without a battery for its clock
sets that by days when it reaches the network, and no session may end by that.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..settings.broker import BrokerConfig

# Seconds by which the machine's clock must have been set to be told and recorded.
_JUMP: Final = 60


class Expiry:
    """Computes when messages and sessions expire.

    clock: returns the seconds since 1970. ahead: seconds by which the machine's clock was set since the start; they are
    added to a time that another process will read. deadline: when a message that is published now expires by the
    settings, in whole seconds since 1970; 0: never. tick() updates it once a second, so that no message has to read the
    clock.
    """

    __slots__ = ("_began", "_config", "ahead", "clock", "deadline")

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.clock: Callable[[], float] = lambda: self._began + time.monotonic()
        self.deadline = 0
        self.begin()
        self.tick()

    def begin(self) -> None:
        """Read the machine's clock, which may have been set since this object was made: a standby waits for long."""
        self._began = time.time() - time.monotonic()
        self.ahead = 0.0

    def tick(self) -> None:
        """Update `deadline` from the clock and from message_expiry, which may change while the broker runs."""
        expiry = self._config.message_expiry
        # Counted from the next tick, so that no message expires early.
        self.deadline = self.now() + expiry + 1 if expiry else 0

    def has_jumped(self) -> bool:
        """Return True, and update `ahead`, if the machine's clock was set by more than a minute since the last call."""
        ahead = time.time() - time.monotonic() - self._began
        if abs(ahead - self.ahead) <= _JUMP:
            return False
        self.ahead = ahead
        return True

    def deadline_of(self, expiry: int | None) -> int:
        """Return the deadline of a message that is published now, not later than the settings allow.

        expiry: its message expiry interval in seconds; None: it has none.
        """
        if expiry is None:
            return self.deadline
        return min(self.end_of(expiry), self.deadline) if self.deadline else self.end_of(expiry)

    def end_of(self, seconds: int) -> int:
        """Return the time `seconds` from now, in seconds since 1970, rounded up."""
        return math.ceil(self.clock() + seconds)

    @contextmanager
    def set_to(self, deadline: int) -> Iterator[None]:
        """Let messages that are published in this context expire at `deadline`, in seconds since 1970."""
        before, self.deadline = self.deadline, deadline
        try:
            yield
        finally:
            self.deadline = before

    def remaining(self, deadline: int) -> int:
        """Return the seconds until `deadline`, at least 1: a message that is sent has not expired."""
        return max(1, int(deadline - self.clock()))

    def now(self) -> int:
        """Return the time in whole seconds since 1970."""
        return int(self.clock())
