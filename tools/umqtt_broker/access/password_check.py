"""Checks passwords outside the event loop: a few threads, a bounded queue, and a cache of right passwords.

A deliberately slow hash takes 0.1 s of CPU time. A password that was right before is accepted without hashing it again,
so that a fleet that reconnects at once does not wait, not even while another address floods the broker with wrong
passwords.
"""

import asyncio
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ..protocol.packets import ACCEPTED, BAD_USER_NAME_OR_PASSWORD, SERVER_UNAVAILABLE
from .guesses import Guesses
from .passwords import StoredPassword
from .scram import ScramExchange, ScramKeys, decoy, normalize

# Different passwords that may wait for a thread. Further clients are refused with return code 3.
MAX_WAITING = 4096


class _Check(NamedTuple):
    """A password check in a thread, and the connections that wait for its answer.

    waiting: each with the address for which a wrong password will be counted; "" for none.
    """

    job: "asyncio.Future[bool]"
    waiting: "list[tuple[asyncio.Future[int], str]]"


class PasswordChecker:
    """Checks passwords and answers with CONNACK return codes. Belongs to one event loop.

    refused_busy: clients refused with return code 3, because too many passwords were waiting.
    """

    def __init__(self, users: Mapping[bytes, StoredPassword], max_waiting: int = MAX_WAITING) -> None:
        self.refused_busy = 0
        self._max_waiting = max_waiting
        self._guesses = Guesses()
        # The key is known only to this process, so a leaked digest tells nothing about a password.
        self._key = secrets.token_bytes(32)
        self._pool: ThreadPoolExecutor | None = None
        self._checks: dict[bytes, _Check] = {}
        self.replace(users)

    def replace(self, users: Mapping[bytes, StoredPassword]) -> None:
        """Check against new users from now on, also the passwords whose check has begun."""
        self._users = dict(users)
        self._hashes = tuple(users.values())
        self._scram = tuple(one for one in users.values() if isinstance(one, ScramKeys))
        # One digest for each user whose password was right; so never more of them than users.
        self._right: dict[bytes, bytes] = {}

    def check(self, username: bytes, password: bytes, address: str = "") -> int | asyncio.Future[int]:
        """Return the CONNACK return code, or a future of it if the password must be hashed.

        An unknown user's password is hashed too, so that the time of the answer does not tell who is known.
        address: the client's, for which wrong passwords are counted (see Guesses); "": they are not counted.
        """
        loop = asyncio.get_running_loop()
        # Before the cache is asked: it would tell an address that must wait whether a guess is right.
        if address and self._guesses.address_must_wait(address, username, loop.time()):
            return SERVER_UNAVAILABLE
        stored = self._users.get(username)
        digest = self._digest(username, normalize(password) if isinstance(stored, ScramKeys) else password)
        right = self._right.get(username)
        if right is not None and hmac.compare_digest(right, digest):
            if address:
                self._guesses.right(address, username)
            return ACCEPTED
        must_wait = bool(address) and self._guesses.name_must_wait(address, username, loop.time())
        if address and right is not None:
            # Whatever happens now, even if the client leaves before it is answered, it can tell that this password is
            # wrong: the right one would have been accepted at once. So it is counted now.
            self._guesses.wrong(address, username, loop.time(), of_name=not must_wait)
            address = ""
        if must_wait:
            return SERVER_UNAVAILABLE
        against = stored or self._decoy(username)
        if against is None:
            return BAD_USER_NAME_OR_PASSWORD
        check = self._checks.get(digest)
        if check is None:
            if len(self._checks) >= self._max_waiting:
                self.refused_busy += 1
                return SERVER_UNAVAILABLE
            check = self._checks[digest] = _Check(self._submit(against, password), [])
            self._guesses.begin(username)
            check.job.add_done_callback(lambda _: self._guesses.end(username))
            check.job.add_done_callback(lambda job: self._on_verified(job, username, stored, digest))
        # Clients that share a user name and a password wait for the same check: it is hashed only once.
        future: asyncio.Future[int] = loop.create_future()
        check.waiting.append((future, address))
        future.add_done_callback(lambda future: self._on_answered(future, digest))
        return future

    def begin_scram(self, check: Callable[[bytes], int], address: str) -> ScramExchange | None:
        """Begin an exchange; return None if no user has a password for it. check: see ScramExchange."""
        return ScramExchange(self._scram_keys, check, self._guesses, address) if self._scram else None

    def _scram_keys(self, username: bytes) -> ScramKeys | None:
        found = self._users.get(username)
        if isinstance(found, ScramKeys):
            return found
        return decoy(username, self._scram) if self._scram else None

    def _submit(self, against: StoredPassword, password: bytes) -> "asyncio.Future[bool]":
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_threads(), "umqtt-passwords")
        return asyncio.wrap_future(self._pool.submit(against.verify, password))

    def _on_verified(
        self, job: "asyncio.Future[bool]", username: bytes, stored: StoredPassword | None, digest: bytes
    ) -> None:
        if job.cancelled():
            return
        # The file may have been read again meanwhile: a result counts only for the current users.
        is_right = job.result() and stored is not None and self._users.get(username) == stored
        if is_right:
            self._right[username] = digest
        for future, address in self._checks.pop(digest).waiting:
            if not future.done():
                future.set_result(self._decide(is_right, username, address))

    def _on_answered(self, future: "asyncio.Future[int]", digest: bytes) -> None:
        """Cancel the check if no client waits for it any more: a flood of short connections must not fill the queue."""
        check = self._checks.get(digest)
        if future.cancelled() and check is not None and all(one.cancelled() for one, _ in check.waiting):
            del self._checks[digest]
            check.job.cancel()

    def _decide(self, is_right: bool, username: bytes, address: str) -> int:
        """Return the return code for a password that has been hashed, and count it for its address."""
        if address:
            now = asyncio.get_running_loop().time()
            # Asked again, because many guesses may begin before the first of them is found to be wrong.
            if self._guesses.address_must_wait(address, username, now):
                return SERVER_UNAVAILABLE
            if is_right:
                self._guesses.right(address, username)
            else:
                self._guesses.wrong(address, username, now)
        return ACCEPTED if is_right else BAD_USER_NAME_OR_PASSWORD

    def close(self) -> None:
        """End the threads; pending answers are dropped."""
        checks, self._checks = self._checks, {}
        for check in checks.values():
            check.job.cancel()
            for future, _ in check.waiting:
                future.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _digest(self, username: bytes, password: bytes) -> bytes:
        size = len(username).to_bytes(4, "big")
        return hashlib.blake2b(size + username + password, key=self._key, digest_size=32).digest()

    def _decoy(self, username: bytes) -> StoredPassword | None:
        """Return a known user's hash to check an unknown user's password against; None without any users.

        A name always gets the same hash, and slow and fast hashes are as frequent as among the known users. Otherwise
        the time of the answer would tell who is known.
        """
        if not self._hashes:
            return None
        number = int.from_bytes(self._digest(username, b"")[:8], "big")
        return self._hashes[number % len(self._hashes)]


def _threads() -> int:
    """Return the number of threads, 1 to 4: one processor is left to the event loop."""
    return max(1, min(4, (os.cpu_count() or 1) - 1))
