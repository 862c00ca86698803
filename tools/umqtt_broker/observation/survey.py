"""Sums over all sessions, computed a slice at a time and shared by all callers."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..sessions.queue import MessageQueue
from ..sessions.session import Session
from .readings import is_slow, listener_name
from .slices import slices

# Seconds after which sums are outdated, and the largest share of the loop's time that counting may take: with very many
# sessions the sums get older instead of taking more time.
_MAX_AGE = 0.9
_MAX_SHARE = 0.02


@dataclass(slots=True)
class Totals:
    """The sums over all sessions. A message counts once for each session that it waits for.

    connected, away: sessions with and without a connection. slow: connected sessions that take messages more slowly
    than they come. held_back: connected clients whose packets the broker holds back. queued, queued_bytes: messages
    that wait in queues, of sessions and of groups, and their payload bytes. in_flight: messages sent and not
    acknowledged. by_listener: connected sessions by the name of their listener.
    """

    connected: int = 0
    away: int = 0
    slow: int = 0
    held_back: int = 0
    queued: int = 0
    queued_bytes: int = 0
    in_flight: int = 0
    by_listener: Counter[str] = field(default_factory=Counter)


class Survey:
    """Counts sessions and waiting messages when asked. latest: the last sums.

    sessions, groups: return all sessions, and the queues of all shared subscriptions. window: returns the number of
    messages in flight at which a session's window is full. clock: returns a monotonic time in seconds.
    """

    def __init__(
        self,
        sessions: Callable[[], Iterable[Session]],
        groups: Callable[[], Iterable[MessageQueue]],
        window: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._sessions = sessions
        self._groups = groups
        self._window = window
        self._clock = clock
        self._lock = asyncio.Lock()
        self._next = -math.inf
        self.latest = Totals()

    async def update(self) -> Totals:
        """Return sums that are at most a second old; with very many sessions they may be older."""
        async with self._lock:
            if self._clock() >= self._next:
                self.latest, busy = await self._count()
                self._next = self._clock() + max(_MAX_AGE, busy / _MAX_SHARE)
            return self.latest

    async def _count(self) -> tuple[Totals, float]:
        """Return the sums and the seconds of work they took."""
        totals, busy = Totals(), 0.0
        window = self._window()
        async for part in slices(self._sessions()):
            began = time.perf_counter()
            for session in part:
                connection = session.connection
                if connection is None:
                    totals.away += 1
                else:
                    totals.connected += 1
                    totals.by_listener[listener_name(connection.listener)] += 1
                    totals.held_back += connection.is_held_back
                    totals.slow += is_slow(session, window)
                totals.queued += session.queued
                totals.queued_bytes += session.queued_bytes
                totals.in_flight += len(session.in_flight)
            busy += time.perf_counter() - began
        for group in self._groups():
            totals.queued += group.queued
            totals.queued_bytes += group.queued_bytes
        return totals, busy
