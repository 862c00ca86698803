"""Deadlines of connections. Most are never reached, so several share one timer of the event loop."""

import asyncio
from typing import Protocol

# Seconds. Deadlines within the same interval of this length share a timer, which expires at its end: never too early.
RESOLUTION = 0.25


class TimerClient(Protocol):
    """A connection that has a deadline."""

    def on_deadline(self) -> None:
        """Handle the deadline: it has passed, and is no longer set."""


class Deadline:
    """One point in time, and the clients whose deadline it is."""

    __slots__ = ("_clients", "_deadlines", "_moment", "_timer")

    def __init__(self, deadlines: "Deadlines", moment: int) -> None:
        self._deadlines = deadlines
        self._moment = moment
        self._clients: dict[TimerClient, None] = {}
        self._timer = deadlines.loop.call_at(moment * RESOLUTION, self._ring)

    def add(self, client: TimerClient) -> None:
        """Register a client for this deadline."""
        self._clients[client] = None

    def cancel(self, client: TimerClient) -> None:
        """Remove a client. Does nothing once the deadline has passed."""
        if self._clients.pop(client, self) is None and not self._clients:
            # Do not keep a distant deadline whose only client has gone.
            self._timer.cancel()
            self._deadlines.forget(self._moment)

    def _ring(self) -> None:
        self._deadlines.forget(self._moment)
        for client in list(self._clients):
            # One client's handler may cancel the deadlines of others.
            if client in self._clients:
                del self._clients[client]
                client.on_deadline()


class Deadlines:
    """All deadlines of one broker."""

    __slots__ = ("_moments", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._moments: dict[int, Deadline] = {}

    def __len__(self) -> int:
        """Return the number of timers that are set in the event loop."""
        return len(self._moments)

    def after(self, seconds: float, client: TimerClient) -> Deadline:
        """Call client.on_deadline() in so many seconds, or up to RESOLUTION later."""
        return self.at(self.loop.time() + seconds, client)

    def at(self, due: float, client: TimerClient) -> Deadline:
        """Call client.on_deadline() at `due`, in the event loop's time, or up to RESOLUTION later."""
        moment = int(due / RESOLUTION) + 1
        deadline = self._moments.get(moment)
        if deadline is None:
            deadline = self._moments[moment] = Deadline(self, moment)
        deadline.add(client)
        return deadline

    def forget(self, moment: int) -> None:
        """Forget a deadline that has passed or that nobody waits for."""
        self._moments.pop(moment, None)
