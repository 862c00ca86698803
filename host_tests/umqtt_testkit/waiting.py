"""The one way in which tests wait: for an event, with one limit that only a broken program reaches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

# Seconds that any wait may take before the test fails. A wait ends when what it waits for happens, so the limit costs
# nothing; it is this long because machines are shared and busy. Give it to join(), communicate(), recv() and the like.
WAIT_LIMIT_S = 60.0

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


class NotInTime(AssertionError):
    """What a test waited for did not happen within WAIT_LIMIT_S."""


def eventually(condition: Callable[[], Found], what: str | Callable[[], object] = "") -> Found:
    """Call `condition` until it returns something true, and return that.

    For what has no event to wait for: a file, another process's state, a figure in a broker's thread. `what` describes
    it, or is called for what to say, when NotInTime is raised after WAIT_LIMIT_S.
    """
    deadline = time.monotonic() + WAIT_LIMIT_S
    pause_s = _FIRST_PAUSE_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise NotInTime(_message(what, found))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return found


async def eventually_async(condition: Callable[[], Found], what: str | Callable[[], object] = "") -> Found:
    """As eventually(), for coroutines: the event loop runs between two calls of `condition`.

    Counts by the loop's clock, so that virtual time works: there the limit passes at once when nothing is left to do.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_LIMIT_S
    pause_s = _FIRST_PAUSE_S
    while not (found := condition()):
        if loop.time() > deadline:
            raise NotInTime(_message(what, found))
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return found


def _message(what: str | Callable[[], object], found: object) -> str:
    said = what if isinstance(what, str) else what()
    return f"not within {WAIT_LIMIT_S:g} s: {said or 'the condition'} (last: {found!r})"
