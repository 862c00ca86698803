"""Shares time between connections: each processes its input in slices, and others get their turn in between."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

# Seconds of work after which a connection checks whether others wait. Also the seconds that all waiting connections get
# together before the event loop polls all sockets again.
SLICE = 0.005

# Seconds that one connection may continue if no other waits: until then, timers and other threads have to wait.
LONGEST = 0.02

_log = logging.getLogger(__name__)


class Job(NamedTuple):
    """The work of one packet that may take more than one turn.

    recorded: the store's count of recorded changes before it. steps: does one short step for each item. finish: called
    after the last step, with the list to which it appends the acknowledgement.
    """

    recorded: int
    steps: Iterator[None]
    finish: Callable[[list[bytes]], None]


class TurnTaker(Protocol):
    """A connection whose received data takes more than one slice of work."""

    def on_turn(self) -> None:
        """Continue for one slice, and ask for another turn if that is not enough."""

    def abort(self, ending: str) -> None:
        """Close at once, for a reason in the words of the log."""


class Turns:
    """The queue of connections that wait for another turn. taken: the number of turns so far."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[TurnTaker] = deque()
        self._is_scheduled = False
        self.taken = 0

    def wait(self, taker: TurnTaker) -> None:
        """Call taker.on_turn() once, after the event loop has served the other connections."""
        self._waiting.append(taker)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        until = self._loop.time() + SLICE
        # Connections that ask again meanwhile wait for the next round.
        for _ in range(len(self._waiting)):
            taker = self._waiting.popleft()
            self.taken += 1
            try:
                taker.on_turn()
            except Exception:  # noqa: BLE001 - a mistake may be anything, and is logged
                _log.exception("a defect of the broker ends a connection: please report this traceback")
                taker.abort("a defect of the broker, which is in the log")
            if self._loop.time() >= until:
                break
        self._is_scheduled = False
        self._schedule()
