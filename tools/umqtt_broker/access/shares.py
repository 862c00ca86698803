"""What one address may take of something that all clients share: turns go round, and the largest share gives way.

Whoever has not logged in yet costs the broker a socket, a handshake or a place among the passwords to check. All of
these are limited, so one address could use them up. Therefore a limit never refuses a client of an address with a
smaller share: instead, the oldest client of the address with the largest share gives way.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Seconds after which a client that has not logged in gives way even to one of an address with as large a share. Most
# clients need only a few round trips.
GRACE = 1.0


def network(address: str) -> str:
    """Return what an address counts as: itself, of IPv6 its network of 64 bits, in which a client can choose."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address  # the path of a Unix socket
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))


class Shares(Generic[Item]):
    """Items by the address that they belong to, the oldest first. Every method takes constant time.

    An address is any text, usually that of network(). All times are the event loop's, in seconds.
    """

    def __init__(self) -> None:
        # Each address, in the order of their turns, with its items and the time of each.
        self._items: OrderedDict[str, dict[Item, float]] = OrderedDict()
        self._address_of: dict[Item, str] = {}
        # The addresses by the size of their share.
        self._of_size: dict[int, dict[str, None]] = {}
        self._largest = 0

    def __len__(self) -> int:
        return len(self._address_of)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._address_of)

    @property
    def largest(self) -> int:
        """The number of items of the address that has most of them."""
        return self._largest

    def add(self, item: Item, address: str, now: float) -> None:
        """Add a new item."""
        items = self._items.setdefault(address, {})
        items[item] = now
        self._address_of[item] = address
        self._resize(address, len(items) - 1, len(items))

    def discard(self, item: Item) -> None:
        """Remove an item, if it is there."""
        address = self._address_of.pop(item, None)
        if address is None:
            return
        items = self._items[address]
        del items[item]
        if not items:
            del self._items[address]
        self._resize(address, len(items) + 1, len(items))

    def address_of(self, item: Item) -> str:
        """Return the address of an item."""
        return self._address_of[item]

    def next(self) -> Item:
        """Return the oldest item of the address whose turn it is; then it is the next one's turn. Raises IndexError."""
        for address, items in self._items.items():
            self._items.move_to_end(address)
            return next(iter(items))
        raise IndexError("there is nothing")

    def to_yield(self, address: str, now: float, grace: float = GRACE) -> Item | None:
        """Return the item that gives way to one more of `address`, the oldest of the largest share; None: none does.

        It does if that share stays at least as large without it as that of `address` becomes, or if the item is older
        than `grace`.
        """
        if not self._largest:
            return None
        item, since = next(iter(self._items[next(iter(self._of_size[self._largest]))].items()))
        is_smaller = len(self._items.get(address, ())) + 1 < self._largest
        return item if is_smaller or now - since > grace else None

    def _resize(self, address: str, before: int, after: int) -> None:
        if before:
            del self._of_size[before][address]
            if not self._of_size[before]:
                del self._of_size[before]
        if after:
            self._of_size.setdefault(after, {})[address] = None
        if after > self._largest or (before == self._largest and before not in self._of_size):
            self._largest = after
