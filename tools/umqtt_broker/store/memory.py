"""The store that stores nothing: sessions end with the process."""

import asyncio
from collections.abc import Callable

from ..stats import Stats
from .base import CommitWaiter, Recovered, Store, Wakeable


class MemoryStore(Store):
    """Records nothing (`durable` is False) and releases packets at once, since there is no commit to wait for."""

    def __init__(self) -> None:
        self.durable = False
        self.recorded = 0
        self.batch = 1
        self.committed = 0

    def open(self, loop: asyncio.AbstractEventLoop, stats: Stats, flush: Callable[[], None]) -> Recovered:
        """Return nothing: every broker with this store starts empty."""
        del loop, stats, flush
        return Recovered([], [], {}, [])

    async def close(self) -> None:
        """Do nothing: there is nothing to commit."""

    def after_commit(self, waiter: CommitWaiter, packets: list[bytes]) -> None:
        """Release at once."""
        waiter.release(packets)

    def wake(self, session: Wakeable) -> None:
        """Wake at once."""
        session.on_commit()
