"""Lets a coroutine wait until recorded changes are safe."""

import asyncio

from ..store import Store


class StoreFailed(Exception):
    """The transaction that held the change failed; the store tries it again."""


class _Waiter:
    """A stand-in for a connection that waits for a commit. awaiting_commit: counted by the store."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.awaiting_commit = 0
        self._done = done

    def release(self, packets: list[bytes]) -> None:
        """Note that the commit has succeeded."""
        del packets
        if not self._done.done():
            self._done.set_result(None)

    def commit_failed(self) -> None:
        """Note that the commit has failed."""
        if not self._done.done():
            self._done.set_exception(
                StoreFailed("the store could not write it and tries again — see the broker's log for the cause")
            )


async def committed(store: Store) -> None:
    """Wait until everything recorded so far is safe. Raises StoreFailed."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    store.after_commit(_Waiter(done), [])
    await done
