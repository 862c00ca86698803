"""When messages and sessions are too old. Time is told by `clock`, in seconds since 1970: it must outlive a restart."""

import time
from collections.abc import Callable

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
        """Look at the clock, and at the setting: it may change while the broker runs."""
        expiry = self._config.message_expiry
        # Up to the next tick: a message never lives shorter than it was promised.
        self.deadline = self.now() + expiry + 1 if expiry else 0

    def now(self) -> int:
        """Return the time in whole seconds."""
        return int(self.clock())
