"""Limits guessing of passwords: who was wrong too often waits, but not a fleet with one misconfigured device.

- An address that was wrong for one user name waits for that name: a second after a few tries, then twice as long each
  time.
- An address that was wrong often, whatever the names were, waits until a second has passed for each.
- A name that was tried often is not tried again by addresses that were wrong for it before; another may try.

A client that waits gets return code 3, and its password is not checked. A password that was right before never gets
here. All times are the event loop's, in seconds.
"""

import logging
from dataclasses import dataclass

# Wrong passwords of one address for one name without a wait, and the longest wait after further ones.
_FREE = 5
_LONGEST_WAIT = 60.0
# Wrong passwords of one address, or for one name, at once; each is forgotten after a second.
_AT_ONCE = 60
# A pair of address and name is forgotten after this time without a wrong password.
_FORGOTTEN_AFTER = 600.0
# Limit for remembered pairs, addresses and names; the oldest are forgotten first.
_MOST = 10_000
# Bytes of a user name that count: a CONNECT may have 65,535, which would be 650 MB of names. Names that begin alike
# wait for each other.
_MOST_NAME = 64

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Wrong:
    """count: wrong passwords; of an address or a name less one a second. at: the last. until: whom it makes wait."""

    count: float
    at: float
    until: float = 0.0


class Guesses:
    """Recent wrong passwords, by address and name."""

    def __init__(self) -> None:
        self._wrong: dict[tuple[str, bytes] | str | bytes, _Wrong] = {}

    def must_wait(self, address: str, username: bytes, now: float) -> bool:
        """Return True if a password must not be checked now."""
        username = username[:_MOST_NAME]
        of_pair = self._wrong.get((address, username))
        if of_pair is not None and (now < of_pair.until or self._is_full(username, now)):
            return True
        return self._is_full(address, now)

    def wrong(self, address: str, username: bytes, now: float) -> None:
        """Count a wrong password."""
        username = username[:_MOST_NAME]
        pair = self._count((address, username), now, 0.0 if self._is_forgotten((address, username), now) else 1.0)
        if pair.count > _FREE:
            wait = min(2.0 ** (pair.count - _FREE - 1), _LONGEST_WAIT)
            pair.until = now + wait
            if wait == 1.0 or wait == _LONGEST_WAIT:
                shown = username.decode(errors="replace")
                _log.warning("%d wrong passwords for user %s from %s: waits %d s", pair.count, shown, address, wait)
        for key in (address, username):
            was_full = self._is_full(key, now)
            found = self._wrong.get(key)
            self._count(key, now, 0.0 if found is None else max(0.0, 1.0 - (now - found.at) / max(found.count, 1.0)))
            if self._is_full(key, now) and not was_full:
                kind, shown = ("from", key) if isinstance(key, str) else ("for user", key.decode(errors="replace"))
                _log.warning("%d wrong passwords %s %s: held to one a second", _AT_ONCE, kind, shown)

    def _is_forgotten(self, key: tuple[str, bytes], now: float) -> bool:
        found = self._wrong.get(key)
        return found is None or now - found.at > _FORGOTTEN_AFTER

    def _is_full(self, key: str | bytes, now: float) -> bool:
        found = self._wrong.get(key)
        return found is not None and found.count - (now - found.at) >= _AT_ONCE

    def _count(self, key: tuple[str, bytes] | str | bytes, now: float, left: float) -> _Wrong:
        """Count one more; of the earlier ones only the share `left` still counts."""
        before = self._wrong.pop(key, None)
        found = self._wrong[key] = _Wrong(1.0 + (before.count * left if before is not None else 0.0), now)
        if len(self._wrong) > _MOST:
            del self._wrong[next(iter(self._wrong))]
        return found
