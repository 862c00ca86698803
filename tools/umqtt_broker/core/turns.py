"""Shares time between connections: each one's input is processed in slices, with turns of others in between."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

# Seconds of work after which a connection looks whether others wait, and that all who wait for another turn have
# together before the event loop looks at everyone again.
SLICE = 0.005

# Seconds that one connection may go on if nobody waits: timers and other threads are not seen before.
LONGEST = 0.02

_log = logging.getLogger(__name__)


class Job(NamedTuple):
    """The work of one packet that may take more than one turn. recorded: the store's count of changes before it.

    steps: short ones, to be taken one after the other; then `finish` appends the acknowledgement.
    """

    recorded: int
    steps: Iterator[None]
    finish: Callable[[list[bytes]], None]


class TurnTaker(Protocol):
    """A connection whose read was more than one slice of work."""

    def on_turn(self) -> None:
        """Continue for one slice, and ask for another turn if that is not enough."""

    def abort(self) -> None:
        """Close at once."""


class Turns:
    """The connections that wait for another turn, in the order of asking. taken: turns so far."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[TurnTaker] = deque()
        self._is_scheduled = False
        self.taken = 0

    def wait(self, taker: TurnTaker) -> None:
        """Call taker.on_turn() once, when the event loop has looked at everyone else."""
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
                _log.exception("a mistake of the broker ends a connection")
                taker.abort()
            if self._loop.time() >= until:
                break
        self._is_scheduled = False
        self._schedule()
