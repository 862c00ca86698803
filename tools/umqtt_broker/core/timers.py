"""Timers of connections: most are never reached, so they share those of the event loop."""

import asyncio
from typing import Protocol

# Deadlines within so many seconds share a timer, which rings at the end of them: never too early.
RESOLUTION = 0.25


class Waiting(Protocol):
    """Someone who has a deadline."""

    def on_deadline(self) -> None:
        """The deadline has passed; there is none any more."""


class Deadline:
    """One moment and those whose deadline it is."""

    __slots__ = ("_deadlines", "_moment", "_timer", "_waiting")

    def __init__(self, deadlines: "Deadlines", moment: int) -> None:
        self._deadlines = deadlines
        self._moment = moment
        self._waiting: dict[Waiting, None] = {}
        self._timer = deadlines.loop.call_at(moment * RESOLUTION, self._ring)

    def add(self, waiting: Waiting) -> None:
        """One more."""
        self._waiting[waiting] = None

    def cancel(self, waiting: Waiting) -> None:
        """One less. Of no effect when the deadline has passed."""
        if self._waiting.pop(waiting, self) is None and not self._waiting:
            # A moment far away is not kept for someone who came and went.
            self._timer.cancel()
            self._deadlines.forget(self._moment)

    def _ring(self) -> None:
        self._deadlines.forget(self._moment)
        for waiting in list(self._waiting):
            # What one does may cancel the deadlines of others.
            if waiting in self._waiting:
                del self._waiting[waiting]
                waiting.on_deadline()


class Deadlines:
    """All deadlines of one broker."""

    __slots__ = ("_moments", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._moments: dict[int, Deadline] = {}

    def __len__(self) -> int:
        """How many timers of the event loop there are."""
        return len(self._moments)

    def after(self, seconds: float, waiting: Waiting) -> Deadline:
        """Call waiting.on_deadline() in so many seconds, or up to RESOLUTION later."""
        return self.at(self.loop.time() + seconds, waiting)

    def at(self, due: float, waiting: Waiting) -> Deadline:
        """Call waiting.on_deadline() at `due`, in the event loop's time, or up to RESOLUTION later."""
        moment = int(due / RESOLUTION) + 1
        deadline = self._moments.get(moment)
        if deadline is None:
            deadline = self._moments[moment] = Deadline(self, moment)
        deadline.add(waiting)
        return deadline

    def forget(self, moment: int) -> None:
        """Nobody waits for that moment any more, or it has come."""
        self._moments.pop(moment, None)
