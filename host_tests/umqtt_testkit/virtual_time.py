"""An event loop with virtual time: on a busy machine too, a timer due in an hour fires exactly then."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while there is anything to do, then jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select()
        if found := super().select(0):
            return found
        self._loop.now += max(timeout, 0)
        return []


def run(scenario: Coroutine[object, object, None]) -> None:
    """Run a scenario in a new virtual-time loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario)
