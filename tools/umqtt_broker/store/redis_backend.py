"""The backend for a Redis or Valkey that several brokers share. One broker at a time has the lease, and writes.

A batch is one script and one round trip. The script checks the epoch first: after another broker has taken the store
over, the old broker can write nothing, however late its batch comes. Redis has a batch on disk before it answers:
`appendfsync always`.
"""

import contextlib
import os
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, LeaseLost, StoreError
from ..settings.redis_url import PASSWORD_VARIABLE, RedisUrl
from . import redis_rows as rows
from .base import DeliveryRow, Recovered, RecoveredSession
from .change_batch import Batch
from .group_commit import Opened
from .redis_rows import Command, key
from .redis_scripts import ACQUIRE, BATCH, RELEASE

if TYPE_CHECKING:
    from redis import Redis

# Milliseconds after which the lease ends unless it is renewed, by the clock of Redis. Batches renew it.
LEASE_MS = 3000

# Seconds until a batch without an answer, and with it the store, is given up: after that, another broker may have the
# store. Each batch makes sure that at least this much of the lease is left (see redis_scripts.BATCH).
_PATIENCE = 0.8 * LEASE_MS / 1000
_CONNECT_TIMEOUT = 1.0
_RETRY_DELAY = 0.1

# Records and messages that one script reads while the store is opened: a few milliseconds of Redis' time.
_SLICE = 2000
# Sessions that one such script reads, and the most records of each; the remaining records are read by further scripts.
_MANY = 100
_FEW = _SLICE // _MANY

# The command that reads each kind of record of a session or shared queue, beside its messages.
_PARTS = (("HSCAN", "subscriptions"), ("SSCAN", "pending"), ("SSCAN", "inbound"))

# Required settings of Redis, and why: with other values, acknowledged messages could be lost.
_SETTINGS = (
    ("appendonly", "yes", "it keeps nothing on disk as it goes"),
    ("appendfsync", "always", "a power cut would take what was acknowledged"),
    ("no-appendfsync-on-rewrite", "no", "a power cut while it rewrites its file would take what was acknowledged"),
    ("maxmemory-policy", "noeviction", "it would drop messages when its memory is full"),
)


class RedisBackend:
    """The backend for Redis: see group_commit.Backend."""

    is_shared = True

    def __init__(self, url: RedisUrl) -> None:
        self.name = f"store {url.shown}"
        self._url = url
        self._redis: Redis | None = None
        self._scripts: dict[str, str] = {}
        self._owner = f"{socket.gethostname()}:{os.getpid()}".encode()
        self._epoch = 0
        # The number of the next batch that changes something.
        self._number = 1

    # The connection

    def _connect(self) -> "Redis":
        """Return the connection, a new one after a failure. Raises RedisError and StoreError."""
        if self._redis is not None:
            return self._redis
        try:
            from redis import Connection, ConnectionPool, Redis
            from redis.backoff import NoBackoff
            from redis.exceptions import ResponseError
            from redis.retry import Retry
        except ImportError as error:
            raise StoreError(f"{self.name} needs redis-py — pip install 'umqtt-robust[redis]'") from error
        url = self._url
        try:
            password = url.password()
            kind = _tls_connection(url) if url.tls else Connection
        except ConfigError as error:
            raise StoreError(f"{self.name}: {error}") from error
        pool = ConnectionPool(
            kind,
            host=url.host,
            port=url.port,
            db=url.database,
            username=url.username or None,
            password=password,
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_CONNECT_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        redis = Redis(connection_pool=pool, single_connection_client=True)
        # Makes close() close the connection, and not only return it to the pool.
        redis.auto_close_connection_pool = True
        try:
            self._check_server(redis)
            self._scripts = {text: redis.script_load(text) for text in (ACQUIRE, RELEASE, BATCH)}
        except ResponseError as error:
            redis.close()
            raise StoreError(_words(self.name, error)) from error
        except BaseException:
            redis.close()
            raise
        self._redis = redis
        return redis

    def _check_server(self, redis: "Redis") -> None:
        """Raise StoreError if the server cannot be used or could lose what was acknowledged. Raises RedisError."""
        info: dict[str, Any] = redis.info()
        if info.get("role") != "master":
            raise StoreError(f"{self.name} is a replica, which takes no writes — name the primary")
        # Valkey calls it server_mode.
        if "cluster" in (info.get("redis_mode"), info.get("server_mode")):
            raise StoreError(f"{self.name} is a node of a Redis Cluster — name a Redis that stands alone")
        settings = redis.config_get("*")
        for name, wanted, why in _SETTINGS:
            if settings.get(name) != wanted:
                raise StoreError(f"{self.name} has {name} {settings.get(name)}: {why} — set {name} {wanted} there")

    def check(self) -> None:
        """Raise StoreError unless the server answers and its settings are safe."""
        from redis.exceptions import RedisError

        try:
            self._connect()
        except (RedisError, OSError) as error:
            raise StoreError(_words(self.name, error)) from error
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._redis is not None:
            self._redis.close()
            self._redis = None

    def _run(self, script: str, *words: bytes | int | str) -> Any:
        """Run a script. Raises RedisError, OSError and StoreError; then the next call makes a new connection."""
        from redis.exceptions import RedisError

        try:
            redis = self._connect()
            return redis.evalsha(self._scripts[script], 2, rows.STORE, rows.LEASE, *words)
        except (RedisError, OSError, StoreError):
            self._disconnect()
            raise

    # The lease

    def acquire(self) -> str:
        """Take the lease of the store. Returns "" if that succeeds, else who has it. Raises StoreError."""
        from redis.exceptions import RedisError

        identifier = secrets.token_hex(16)
        try:
            epoch, found, number = self._run(ACQUIRE, self._owner, LEASE_MS, rows.VERSION, identifier)
        except (RedisError, OSError) as error:
            raise StoreError(_words(self.name, error)) from error
        if not epoch:
            holder = "".join(char if char.isprintable() else "?" for char in found[:100].decode(errors="replace"))
            return f"{self.name} is held by {holder}"
        self._epoch, self._next_session = epoch, number
        self._number = 1
        return ""

    def close(self) -> None:
        """Give the lease back if this broker has it, so that another broker need not wait for its end; disconnect."""
        from redis.exceptions import RedisError

        if self._epoch and self._redis is not None:
            # If that fails, the lease ends by itself.
            with contextlib.suppress(RedisError, OSError, StoreError):
                self._run(RELEASE, self._epoch)
        self._disconnect()

    # Writing

    def write(self, batch: Batch) -> list[list[DeliveryRow]]:
        """Write a batch. Returns the rows of each of its pages.

        Raises LeaseLost if another broker has the store, or if it is not known in time whether Redis has the batch. If
        anything else is raised, nothing is written.
        """
        reads: list[Command] = [
            ("ZRANGEBYSCORE", key("queue", page.session), f"({page.after}", "+inf", "LIMIT", 0, page.limit)
            for page in batch.pages
        ]
        writes = list(rows.commands_of(batch))
        # Redis removes a queue of any length in one step.
        batch.leftover_is_gone = bool(batch.leftover)
        found = self._execute(writes, reads)
        if writes:
            self._number += 1
        return [
            [rows.decode_row(page.session, row) for row in members]
            for page, members in zip(batch.pages, found, strict=True)
        ]

    def _execute(self, writes: list[Command], reads: list[Command]) -> list[Any]:
        """Run commands by one script. Returns the results of `reads`. Raises LeaseLost and StoreError.

        Without an answer the script is sent again, until the time is up: if it runs twice, it has the same effect.
        """
        from redis.exceptions import ConnectionError, RedisError, TimeoutError

        words: list[bytes | int | str] = [self._epoch, self._number, self._owner, LEASE_MS, len(writes)]
        for command in (*writes, *reads):
            words.append(len(command))
            words += command
        deadline = time.monotonic() + _PATIENCE
        is_uncertain = False
        while True:
            try:
                found = self._run(BATCH, *words)
                if writes:
                    self._wait_for_replicas()
            except (RedisError, OSError, StoreError) as error:
                text = str(error)
                if text.startswith("FENCED"):
                    raise LeaseLost(f"{self.name} was taken over by another broker") from error
                if text.startswith("LOST"):
                    raise LeaseLost(
                        f"{self.name} has lost its last {text[5:]} batches: see the log of Redis"
                    ) from error
                is_retried = isinstance(error, (ConnectionError, TimeoutError, OSError)) or text.startswith("NOSCRIPT")
                if not is_retried and not is_uncertain:
                    raise StoreError(_words(self.name, error)) from error
                is_uncertain = True
                if not is_retried or time.monotonic() + _RETRY_DELAY >= deadline:
                    raise LeaseLost(_words(self.name, error)) from error
            else:
                if time.monotonic() > deadline:
                    # This process was suspended: the lease may have ended before clients get their answers.
                    raise LeaseLost(f"{self.name} answered when the lease may have ended")
                return found
            time.sleep(_RETRY_DELAY)

    def _wait_for_replicas(self) -> None:
        """Wait until the required number of replicas has everything that was written. Raises OSError."""
        if self._url.wait:
            have = self._connect().wait(self._url.wait, int(_CONNECT_TIMEOUT * 1000))
            if have < self._url.wait:
                raise OSError(f"only {have} of {self._url.wait} replicas have the last batch")

    # Reading what is there

    def open(self) -> Opened:
        """Read everything but the queues. Raises StoreError."""
        try:
            return self._read()
        except (KeyError, ValueError) as error:
            raise StoreError(f"{self.name}: {rows.GARBLED}") from error

    def _read(self) -> Opened:
        client_ids, shares = self._numbered("sessions"), self._numbered("shares")
        owners, away = self._numbered("owners"), self._numbered("away")
        sent = {number: int(value) for number, value in self._numbered("sent").items()}
        ranks: list[int] = []
        sessions = [
            self._recover(number, client_ids[number], sent.get(number, 0), first, ranks)._replace(
                **rows.decode_owner(owners[number])._asdict(), away_since=int(away.get(number, 0))
            )
            for number, first in self._look_at(sorted(client_ids))
        ]
        groups = [
            self._recover(number, shares[number], sent.get(number, 0), first, ranks)
            for number, first in self._look_at(sorted(shares))
        ]
        retained = [rows.decode_retained(data) for _, data in self._scan("HSCAN", key("retained"))]
        wills = {client_id: rows.decode_will(data) for client_id, data in self._scan("HSCAN", key("wills"))}
        recovered = Recovered(sessions, retained, wills, groups)
        return Opened(recovered, self._next_session, max(ranks, default=0) + 1)

    def _look_at(self, numbers: list[int]) -> Iterator[tuple[int, list[Any]]]:
        """Yield each number of a session or shared queue, with the first records of its messages and of its _PARTS.

        These records are the parameter `first` of _recover().
        """
        for at in range(0, len(numbers), _MANY):
            some = numbers[at : at + _MANY]
            reads: list[Command] = []
            for number in some:
                reads.append(("survey", key("queue", number), 0, _FEW))
                reads += ((command, key(name, number), 0, "COUNT", _FEW) for command, name in _PARTS)
            found = iter(self._execute([], reads))
            for number in some:
                yield number, [next(found) for _ in range(1 + len(_PARTS))]

    def _scan(self, command: str, name: bytes, first: list[Any] | None = None) -> Iterator[Any]:
        """Return an iterator over the pairs of a hash or the members of a set, each once.

        command: HSCAN or SSCAN. first: its first answer, if there is one already.
        """
        cursor, found = first or self._execute([], [(command, name, 0, "COUNT", _SLICE)])[0]
        seen: dict[bytes, Any] = {}
        while True:
            seen |= zip(found[::2], found[1::2], strict=True) if command == "HSCAN" else dict.fromkeys(found)
            if int(cursor) == 0:
                return iter(seen.items() if command == "HSCAN" else seen)
            cursor, found = self._execute([], [(command, name, cursor, "COUNT", _SLICE)])[0]

    def _numbered(self, name: str) -> dict[int, bytes]:
        return {int(number): value for number, value in self._scan("HSCAN", key(name))}

    def _recover(
        self, number: int, client_id: bytes, sent_limit: int, first: list[Any], ranks: list[int]
    ) -> RecoveredSession:
        """Return a session or a shared queue. Reads the records that are not in `first`, see _look_at().

        Appends the highest rank of its PUBRECs to `ranks`.
        """
        (count, more, last, some), *first_parts = first
        limit = _FEW
        queued = size = position = packet_id = 0
        released: list[bytes] = []
        while True:
            queued, size = queued + count, size + more
            released += some
            if last:
                position, packet_id = rows.decode_place(last)
            if count < limit:
                break
            limit = _SLICE
            count, more, last, some = self._execute([], [("survey", key("queue", number), position, limit)])[0]
        released.sort(key=rows.decode_rank)
        ranks += map(rows.decode_rank, released[-1:])
        subscribed, waiting, incoming = (
            self._scan(command, key(name, number), part)
            for (command, name), part in zip(_PARTS, first_parts, strict=True)
        )
        subscriptions = [(topic_filter, *rows.decode(data, int, int)) for topic_filter, data in subscribed]
        filters = {topic_filter for topic_filter, *_ in subscriptions}
        pending = [topic_filter for topic_filter in waiting if topic_filter in filters]
        inbound = {int(packet_id) for packet_id in incoming}
        return RecoveredSession(
            number,
            client_id,
            sent_limit,
            # A new position must be above sent_limit: otherwise it would count as sent already.
            max(position, sent_limit),
            packet_id,
            queued,
            subscriptions,
            inbound,
            [rows.decode_place(row) for row in released],
            None,
            0,
            size,
            pending,
        )


def _client_context(url: RedisUrl) -> ssl.SSLContext:
    """Return a TLS context that verifies the server's certificate chain and host name. Raises ConfigError."""

    def refuse_to_ask() -> str:
        # Otherwise OpenSSL would ask on the terminal, also where there is none.
        raise ConfigError(f"keyfile {url.keyfile} is encrypted — remove its passphrase: openssl pkey -in KEY -out NEW")

    paths = [path for path in (url.cafile, url.certfile, url.keyfile) if path]
    try:
        # The errors of ssl name no file.
        for path in paths:
            open(path, "rb").close()
        context = ssl.create_default_context(cafile=url.cafile or None)
        if url.certfile:
            context.load_cert_chain(url.certfile, url.keyfile, password=refuse_to_ask)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"cannot use {error.filename or ' '.join(paths)} ({error.strerror})") from error
    return context


def _tls_connection(url: RedisUrl) -> type:
    """Return a class of TLS connections that trust only the authorities of `url`. Raises ConfigError.

    The settings of redis-py itself are not enough: they trust the system's authorities in addition to a cafile, and
    before version 6 they do not verify the host name.
    """
    from redis import SSLConnection

    context = _client_context(url)

    class TlsConnection(SSLConnection):
        def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
            return context.wrap_socket(sock, server_hostname=url.host)

    return TlsConnection


def check_usable(url: RedisUrl) -> None:
    """Raise StoreError for a Redis that a broker could not use. Changes nothing there."""
    RedisBackend(url).check()


def _words(name: str, error: BaseException) -> str:
    """Return one line that says what is wrong with a Redis and what to do. name: the store's, for the message."""
    text = " ".join(str(error).split())
    if text == "FOREIGN":
        return f"{name} has data of another program — name another database: redis://HOST:PORT/DATABASE"
    if text.startswith("WRONGTYPE") or "data string too short" in text:
        return f"{name}: {rows.GARBLED}"
    if text.startswith("NEWER "):
        return f"{name} has version {text[6:]}, this broker knows {rows.VERSION} — use the umqtt that made it"
    if text.startswith(("NOAUTH", "WRONGPASS", "Authentication", "invalid username-password", "invalid password")):
        return f"{name} refuses the password — correct password_file or {PASSWORD_VARIABLE}"
    if text.startswith(("NOPERM", "this user has no permissions", "User ")):
        return f"{name} refuses a command ({text}) — allow its user all commands and keys"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"{name} shows a certificate that is not trusted ({text}) — correct the cafile, or the name of the host"
    how = "with TLS, and name certfile and keyfile if it wants them" if "rediss:" in name else "without TLS"
    return f"{name} cannot be used ({text}) — see that Redis runs there and answers {how}"
