"""How tests wait: until what they wait for happens, with one limit that only a broken program reaches.

Where something can be waited for (a thread, a process, a queue, a socket), wait for it and give WAIT_LIMIT_S as its
timeout. Where nothing can, check repeatedly with `eventually`::

    eventually(lambda: "ready" in log.read_text(), "a line in the log")
    board = eventually(lambda: found.get("board"), lambda: f"the board, among {found}")

Nothing here waits for a time to pass: a test that needs time to pass controls the clock (portable.Clock,
virtual_time).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

# A wait ends when its event happens, so the limit costs nothing; it is long because machines are shared and busy.
# Pass it to join(), communicate(), recv() and the like.
from .portable import WAIT_LIMIT_S as WAIT_LIMIT_S

Found = TypeVar("Found")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


class NotInTime(AssertionError):
    """What a test waited for did not happen within WAIT_LIMIT_S."""


class SecondsClock(Protocol):
    """The functions of the module `time` that eventually() calls."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


def eventually(
    condition: Callable[[], Found], what: str | Callable[[], object] = "", *, clock: SecondsClock = time
) -> Found:
    """Call `condition` until it returns something true, and return that.

    For conditions without an event to wait for: a file, another process's state, a figure in a broker's thread. An
    exception of `condition` ends the wait.

    what: describes what is waited for, for the message of NotInTime; or a function that is called for the
    description. clock: used for sleeping and for counting the limit. Raises NotInTime after WAIT_LIMIT_S.
    """
    deadline = clock.monotonic() + WAIT_LIMIT_S
    pause_s = _FIRST_PAUSE_S
    while not (found := condition()):
        if clock.monotonic() > deadline:
            raise NotInTime(_message(what, found))
        clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return found


async def eventually_async(condition: Callable[[], Found], what: str | Callable[[], object] = "") -> Found:
    """Like eventually(), for coroutines: the event loop runs between two calls of `condition`.

    The limit is counted by the loop's clock. In virtual time it passes at once when nothing else is left to do.
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
