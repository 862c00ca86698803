"""Limits the guessing of passwords, without blocking a fleet in which one device is misconfigured.

- Address and user name: after 5 wrong passwords from one address for one name, that address must wait before it tries
  that name again: 1 s, then twice as long after each further one, 60 s at most.
- Address: an address with 60 wrong passwords, for whatever names, must wait; one of them is forgotten each second.
- User name: while a name has 60 wrong passwords, those that are being checked included, only addresses that were right
  for it before may try. One of them is forgotten each second, so that other addresses together try once a second.

An IPv6 client can choose its address within its network, so all addresses of a /64 count as one.

A client that must wait gets return code 3, and learns nothing about its password, not even whether it was right before.
A password that was right before passes only the limit of the name. All times are the event loop's, in seconds.
"""

import logging
from collections import Counter
from dataclasses import dataclass

from .shares import network

# Wrong passwords from one address for one name that cause no wait, and the longest wait after further ones, in seconds.
_FREE = 5
_LONGEST_WAIT = 60.0
# Wrong passwords from one address, or for one name, from which on clients must wait; one is forgotten each second.
_AT_ONCE = 60
# Seconds without a wrong password after which a pair of address and name is forgotten.
_FORGOTTEN_AFTER = 600.0
# Limit for remembered pairs, addresses and names; the oldest are forgotten first.
_MOST = 10_000
# Bytes of a user name that are compared: a CONNECT may have 65,535, and so many of each name would take 650 MB. Names
# that begin with the same bytes share their limits.
_MOST_NAME = 64
# Addresses that are remembered for each name whose password was right, the latest ones.
_MOST_RIGHT = 8

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Wrong:
    """Wrong passwords of an address, of a name, or of a pair of both.

    count: how many; for an address or a name, one is forgotten each second. at: the time of the last one. until: the
    time up to which a pair must wait.
    """

    count: float
    at: float
    until: float = 0.0


class Guesses:
    """Recent wrong passwords, by address and name."""

    def __init__(self) -> None:
        self._wrong: dict[tuple[str, bytes] | str | bytes, _Wrong] = {}
        # The passwords that are being checked, by name.
        self._pending: Counter[bytes] = Counter()
        # The addresses from which the password of a name was right: so never more names than users.
        self._right: dict[bytes, tuple[str, ...]] = {}

    def must_wait(self, address: str, username: bytes, now: float) -> bool:
        """Return True if a password must not be checked now. now: the event loop's time."""
        return self.address_must_wait(address, username, now) or self.name_must_wait(address, username, now)

    def address_must_wait(self, address: str, username: bytes, now: float) -> bool:
        """Return True if an address must wait, because of this name or of all names. now: the event loop's time."""
        address, username = network(address), username[:_MOST_NAME]
        of_pair = self._wrong.get((address, username))
        return (of_pair is not None and now < of_pair.until) or self._is_full(address, now)

    def name_must_wait(self, address: str, username: bytes, now: float) -> bool:
        """Return True if a name is at its limit and was not right from this address. now: the event loop's time."""
        address, username = network(address), username[:_MOST_NAME]
        is_full = self._is_full(username, now, self._pending.get(username, 0))
        return is_full and address not in self._right.get(username, ())

    def begin(self, username: bytes) -> None:
        """Count a password whose check begins: many may begin before the first of them is found to be wrong."""
        self._pending[username[:_MOST_NAME]] += 1

    def end(self, username: bytes) -> None:
        """Note that a check has ended: the opposite of begin()."""
        username = username[:_MOST_NAME]
        self._pending[username] -= 1
        if not self._pending[username]:
            del self._pending[username]

    def right(self, address: str, username: bytes) -> None:
        """Remember that the password of a name was right from this address."""
        address, username = network(address), username[:_MOST_NAME]
        known = self._right.get(username, ())
        if address not in known:
            self._right[username] = (*known[1 - _MOST_RIGHT :], address)

    def wrong(self, address: str, username: bytes, now: float, *, of_name: bool = True) -> None:
        """Count a wrong password. now: the event loop's time. of_name: count it for the name too."""
        address, username = network(address), username[:_MOST_NAME]
        pair = self._count((address, username), now, 0.0 if self._is_forgotten((address, username), now) else 1.0)
        if pair.count > _FREE:
            wait = min(2.0 ** (pair.count - _FREE - 1), _LONGEST_WAIT)
            pair.until = now + wait
            if wait == 1.0 or wait == _LONGEST_WAIT:
                shown = username.decode(errors="replace")
                text = "%d wrong passwords for user %s from %s: this address must wait %d s"
                _log.warning(text, pair.count, shown, address, wait)
        for key in (address, username) if of_name else (address,):
            was_full = self._is_full(key, now)
            found = self._wrong.get(key)
            self._count(key, now, 0.0 if found is None else max(0.0, 1.0 - (now - found.at) / max(found.count, 1.0)))
            if self._is_full(key, now) and not was_full:
                kind, shown = ("from", key) if isinstance(key, str) else ("for user", key.decode(errors="replace"))
                _log.warning("%d wrong passwords %s %s: limited to one a second", _AT_ONCE, kind, shown)

    def _is_forgotten(self, key: tuple[str, bytes], now: float) -> bool:
        found = self._wrong.get(key)
        return found is None or now - found.at > _FORGOTTEN_AFTER

    def _is_full(self, key: str | bytes, now: float, pending: int = 0) -> bool:
        found = self._wrong.get(key)
        counted = 0.0 if found is None else max(0.0, found.count - (now - found.at))
        return counted + pending >= _AT_ONCE

    def _count(self, key: tuple[str, bytes] | str | bytes, now: float, left: float) -> _Wrong:
        """Count one more wrong password. left: the share of the earlier ones that still counts, 0 to 1."""
        before = self._wrong.pop(key, None)
        found = self._wrong[key] = _Wrong(1.0 + (before.count * left if before is not None else 0.0), now)
        if len(self._wrong) > _MOST:
            del self._wrong[next(iter(self._wrong))]
        return found
