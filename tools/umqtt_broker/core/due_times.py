"""Items that are due at some time, the next one first."""

from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")


class DueTimes(Generic[Item]):
    """A heap. Items cannot be removed: the caller of pop() checks whether each is still valid."""

    def __init__(self) -> None:
        # The number keeps items of one time in order of arrival, and avoids comparing them.
        self._heap: list[tuple[float, int, Item]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, time: float, item: Item) -> None:
        """Note that `item` is due at `time`, in seconds; an item may be added several times."""
        heappush(self._heap, (time, next(self._numbers), item))

    def pop(self, now: float, most: int) -> list[Item]:
        """Remove and return the items that are due by `now`, `most` at most, the earliest first."""
        items: list[Item] = []
        while self._heap and self._heap[0][0] <= now and len(items) < most:
            items.append(heappop(self._heap)[2])
        return items

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
