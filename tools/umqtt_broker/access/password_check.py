"""Checks passwords outside the event loop: a few threads, a bounded and fair queue, and a cache of right passwords.

A deliberately slow hash takes 0.1 s of CPU time. A password that was right before is accepted without hashing it again,
so that a fleet that reconnects at once does not wait, not even while another address floods the broker with wrong
passwords. The addresses whose passwords wait for a thread take turns.
"""

import asyncio
import hashlib
import hmac
import math
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from ..protocol.packets import ACCEPTED, BAD_USER_NAME_OR_PASSWORD, SERVER_UNAVAILABLE
from .guesses import Guesses
from .passwords import PasswordHash
from .shares import Shares, network

# Different passwords that are checked or wait for a thread. For one more, the address with most of them loses its
# oldest, whose clients are refused with return code 3; if all have equally many, the new client is refused.
MAX_WAITING = 4096

# Threads, 1 to 4: one processor is left to the event loop.
_THREADS = max(1, min(4, (os.cpu_count() or 1) - 1))


class _Check:
    """A password to check, and the connections that wait for the answer.

    waiting: each with the address for which a wrong password will be counted; "" for none. job: its hash, once a thread
    computes it.
    """

    __slots__ = ("against", "digest", "job", "password", "stored", "username", "waiting")

    def __init__(
        self, digest: bytes, username: bytes, password: bytes, stored: PasswordHash | None, against: PasswordHash
    ) -> None:
        self.digest = digest
        self.username = username
        self.password = password
        self.stored = stored
        self.against = against
        self.waiting: list[tuple[asyncio.Future[int], str]] = []
        self.job: asyncio.Future[bool] | None = None


class PasswordChecker:
    """Checks passwords and answers with CONNACK return codes. Belongs to one event loop.

    refused_busy: clients refused with return code 3, because too many passwords were waiting.
    """

    def __init__(self, users: Mapping[bytes, PasswordHash], max_waiting: int = MAX_WAITING) -> None:
        self.refused_busy = 0
        self._max_waiting = max_waiting
        self._guesses = Guesses()
        # The key is known only to this process, so a leaked digest tells nothing about a password.
        self._key = secrets.token_bytes(32)
        self._pool: ThreadPoolExecutor | None = None
        self._checks: dict[bytes, _Check] = {}
        # Those that wait for a thread, by the address of the first connection that asked.
        self._queue: Shares[_Check] = Shares()
        self._running = 0
        self.replace(users)

    def replace(self, users: Mapping[bytes, PasswordHash]) -> None:
        """Check against new users from now on, also the passwords whose check has begun."""
        self._users = dict(users)
        self._hashes = tuple(users.values())
        # One digest for each user whose password was right; so never more of them than users.
        self._right: dict[bytes, bytes] = {}

    def check(self, username: bytes, password: bytes, address: str = "") -> int | asyncio.Future[int]:
        """Return the CONNACK return code, or a future of it if the password must be hashed.

        An unknown user's password is hashed too, so that the time of the answer does not tell who is known.
        address: the client's, for which wrong passwords are counted (see Guesses); "": they are not counted.
        """
        loop = asyncio.get_running_loop()
        share = network(address)
        # Before the cache is asked: it would tell an address that must wait whether a guess is right.
        if address and self._guesses.address_must_wait(address, username, loop.time()):
            return SERVER_UNAVAILABLE
        stored = self._users.get(username)
        digest = self._digest(username, password)
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
            if len(self._checks) >= self._max_waiting and not self._make_room(share, loop.time()):
                self.refused_busy += 1
                return SERVER_UNAVAILABLE
            check = self._checks[digest] = _Check(digest, username, password, stored, against)
            self._guesses.begin(username)
            self._queue.add(check, share, loop.time())
            self._begin_checks()
        # Clients that share a user name and a password wait for the same check: it is hashed only once.
        future: asyncio.Future[int] = loop.create_future()
        check.waiting.append((future, address))
        future.add_done_callback(lambda future: self._on_answered(future, check))
        return future

    def _make_room(self, share: str, now: float) -> bool:
        """Refuse the clients of one waiting check for one of another address. Returns False if none gives way."""
        check = self._queue.to_yield(share, now, grace=math.inf)
        if check is None:
            return False
        self.refused_busy += 1
        self._remove(check)
        for future, _ in check.waiting:
            if not future.done():
                future.set_result(SERVER_UNAVAILABLE)
        return True

    def _begin_checks(self) -> None:
        """Begin checks while there are threads: the addresses take turns."""
        while self._running < _THREADS and len(self._queue):
            check = self._queue.next()
            self._queue.discard(check)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "umqtt-passwords")
            self._running += 1
            check.job = asyncio.wrap_future(self._pool.submit(check.against.verify, check.password))
            check.job.add_done_callback(lambda job, check=check: self._on_verified(job, check))

    def _on_verified(self, job: "asyncio.Future[bool]", check: _Check) -> None:
        if job.cancelled():
            return
        self._running -= 1
        self._begin_checks()
        # The file may have been read again meanwhile: a result counts only for the current users.
        is_right = job.result() and check.stored is not None and self._users.get(check.username) == check.stored
        if is_right:
            self._right[check.username] = check.digest
        self._remove(check)
        for future, address in check.waiting:
            if not future.done():
                future.set_result(self._decide(is_right, check.username, address))

    def _on_answered(self, future: "asyncio.Future[int]", check: _Check) -> None:
        """Drop a check for which no client waits any more: a flood of short connections must not fill the queue."""
        if future.cancelled() and check.job is None and all(one.cancelled() for one, _ in check.waiting):
            self._remove(check)

    def _remove(self, check: _Check) -> None:
        """Forget a check that is done or dropped."""
        self._queue.discard(check)
        if self._checks.get(check.digest) is check:
            del self._checks[check.digest]
            self._guesses.end(check.username)

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
        for check in list(self._checks.values()):
            self._remove(check)
            if check.job is not None:
                check.job.cancel()
            for future, _ in check.waiting:
                future.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _digest(self, username: bytes, password: bytes) -> bytes:
        size = len(username).to_bytes(4, "big")
        return hashlib.blake2b(size + username + password, key=self._key, digest_size=32).digest()

    def _decoy(self, username: bytes) -> PasswordHash | None:
        """Return a known user's hash to check an unknown user's password against; None without any users.

        A name always gets the same hash, and slow and fast hashes are as frequent as among the known users. Otherwise
        the time of the answer would tell who is known.
        """
        if not self._hashes:
            return None
        number = int.from_bytes(self._digest(username, b"")[:8], "big")
        return self._hashes[number % len(self._hashes)]
