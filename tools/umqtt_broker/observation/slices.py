"""Walks long collections a slice at a time, so that the event loop serves clients in between."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

Item = TypeVar("Item")

# Items in one slice: at 2 to 10 µs of work each, the loop is away for a few milliseconds at most.
SLICE = 500


async def slices(items: Iterable[Item], size: int = SLICE) -> AsyncIterator[list[Item]]:
    """Yield `items` in lists of at most `size`; other work of the event loop runs between two lists."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part
        await asyncio.sleep(0)


async def smallest(
    items: Iterable[Item], count: int, key: Callable[[Item], Any], keep: Callable[[Item], bool]
) -> tuple[list[Item], int]:
    """Return the `count` smallest, by `key`, of the items for which `keep` is true, in order; and how many those are.

    Works in slices: one sort of all items would block the event loop until it ends.
    """
    best: list[Item] = []
    kept = 0
    async for part in slices(items):
        found = [item for item in part if keep(item)]
        kept += len(found)
        if len(best) == count and count:
            worst = key(best[-1])
            found = [item for item in found if key(item) < worst]
        if found:
            best = heapq.nsmallest(count, [*best, *found], key)
    return best, kept
