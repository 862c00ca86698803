"""What is due at some time, the next first."""

from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")


class DueTimes(Generic[Item]):
    """A heap. What is noted cannot be taken back: whoever asks looks whether it still holds."""

    def __init__(self) -> None:
        # The number keeps items of one time in the order of their coming, and from being compared.
        self._heap: list[tuple[int, int, Item]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, time: int, item: Item) -> None:
        """Note that something of `item` is due at `time`."""
        heappush(self._heap, (time, next(self._numbers), item))

    def pop(self, now: int, most: int) -> list[Item]:
        """Return what is due by `now`, as many at most, and forget it."""
        items: list[Item] = []
        while self._heap and self._heap[0][0] <= now and len(items) < most:
            items.append(heappop(self._heap)[2])
        return items

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
