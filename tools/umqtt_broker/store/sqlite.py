"""Sessions and retained messages in SQLite: WAL, synchronous=FULL, one transaction at a time off the loop.

Durable before visible: `hold` releases packets only after the COMMIT, which returns only after the log is on
disk.
"""

import asyncio
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ..errors import StoreError
from ..packets import Will
from ..retained import RetainedMessage
from ..stats import Stats
from . import schema, writer
from .base import Delivery, DeliveryRow, Holder, Recovered, RecoveredSession, Store, Wakeable
from .batch import Batch, Page

_log = logging.getLogger("umqtt_broker.store")

# Seconds until a failed transaction is tried again: a full disk does not heal faster.
_RETRY_DELAY = 1.0


class SqliteStore(Store):
    """See Store. All methods run in the event loop's thread; only `_write` runs in the store's own."""

    def __init__(self, path: str) -> None:
        self.durable = True
        self.recorded = 0
        self.batch = 1
        self.committed = 0
        self._path = path
        self._open_batch = Batch()
        self._committing: Batch | None = None
        self._scheduled = False
        self._next_session = 1
        self._releases = 1
        self._retry: asyncio.TimerHandle | None = None
        # Set by close(), which waits for the transaction under way.
        self._transaction_ended = asyncio.Event()

    # Opening and closing

    def open(self, loop: asyncio.AbstractEventLoop, stats: Stats, after_commit: Callable[[], None]) -> Recovered:
        """Open, lock, migrate, read. Raises StoreError."""
        self._loop = loop
        self._stats = stats
        self._after_commit = after_commit
        self._lock = _lock(self._path)
        try:
            self._database = schema.connect(self._path)
            recovered = self._recover()
        except (sqlite3.Error, StoreError) as error:
            os.close(self._lock)
            if isinstance(error, StoreError):
                raise
            raise StoreError(
                f"cannot open store {self._path} ({error}) — restore a backup, or name another with --store"
            ) from error
        self._thread = ThreadPoolExecutor(1, "umqtt-broker-store")
        return recovered

    def _recover(self) -> Recovered:
        execute = self._database.execute
        sessions = []
        rows = execute("SELECT number, client_id, sent_limit, username, away_since FROM session ORDER BY number")
        queued = {
            session: (count, size)
            for session, count, size in execute(
                "SELECT session, count(*), sum((released = 0) * coalesce(length(message.payload),"
                " length(delivery.payload))) FROM delivery LEFT JOIN message ON message.number = delivery.message"
                " GROUP BY session"
            )
        }
        for number, client_id, sent_limit, username, away_since in rows.fetchall():
            last = execute(
                "SELECT position, packet_id FROM delivery WHERE session = ? ORDER BY position DESC LIMIT 1",
                (number,),
            ).fetchone() or (sent_limit, 0)
            released = execute(
                "SELECT position, packet_id, released FROM delivery WHERE session = ? AND released > 0"
                " ORDER BY released",
                (number,),
            ).fetchall()
            self._releases = max([self._releases, *(row[2] + 1 for row in released)])
            sessions.append(
                RecoveredSession(
                    number,
                    client_id,
                    sent_limit,
                    # A position at or below sent_limit would be taken for one that was sent already.
                    max(last[0], sent_limit),
                    last[1],
                    queued.get(number, (0, 0))[0],
                    execute("SELECT topic_filter, qos FROM subscription WHERE session = ?", (number,)).fetchall(),
                    {row[0] for row in execute("SELECT packet_id FROM inbound WHERE session = ?", (number,))},
                    [(row[0], row[1]) for row in released],
                    username,
                    away_since,
                    queued.get(number, (0, 0))[1],
                )
            )
            self._next_session = number + 1
        retained = [RetainedMessage(*row) for row in execute("SELECT topic_name, payload, qos FROM retained")]
        wills = {
            client_id: Will(topic_name, payload, qos, bool(retain))
            for client_id, topic_name, payload, qos, retain in execute("SELECT * FROM will")
        }
        return Recovered(sessions, retained, wills)

    async def close(self) -> None:
        """Commit what is recorded and close. Raises StoreError if that failed."""
        while self._committing is not None or self._open_batch:
            before = self._stats.commit_failures
            if self._committing is None:
                self._commit()
            self._transaction_ended = asyncio.Event()
            await self._transaction_ended.wait()
            if self._stats.commit_failures != before:
                break
        lost = bool(self._open_batch)
        if self._retry is not None:
            self._retry.cancel()
        self._thread.shutdown()
        self._database.close()
        os.close(self._lock)
        if lost:
            raise StoreError(f"the last changes could not be written to store {self._path} — see the log for the cause")

    # Waiting for a commit

    def hold(self, holder: Holder, packets: list[bytes]) -> None:
        """Release `packets` of `holder`, in order, once everything recorded so far is safe."""
        batch = self._newest()
        if batch is None:
            holder.release(packets)
        elif (held := batch.held.get(holder)) is not None:
            held.extend(packets)
        else:
            batch.held[holder] = packets
            holder.held += 1

    def wake(self, session: Wakeable) -> None:
        """Call `session.on_commit()` once everything recorded so far is safe and held packets are released."""
        batch = self._newest()
        if batch is None:
            session.on_commit()
        else:
            batch.sleepers[session] = None

    def _newest(self) -> Batch | None:
        return self._open_batch if self._open_batch else self._committing

    # Recording

    def new_session(self, client_id: bytes, username: bytes | None = None) -> int:
        """Record a session of a user and return its number."""
        number = self._next_session
        self._next_session += 1
        self._open_batch.sessions[number] = (client_id, username)
        self._record()
        return number

    def set_username(self, session: int, username: bytes | None) -> None:
        """Record that a session is used under another name than before."""
        self._open_batch.usernames[session] = username
        self._record()

    def set_away(self, session: int, since: int) -> None:
        """Record since when a session has no connection; 0: it has one."""
        self._open_batch.away[session] = since
        self._record()

    def set_will(self, client_id: bytes, will: Will | None) -> None:
        """Record the will of a connected client, or that there is none (any more)."""
        self._open_batch.wills[client_id] = will
        self._record()

    def discard_session(self, session: int) -> None:
        """Record the end of a session: everything of it goes."""
        self._open_batch.sessions[session] = None
        self._record()

    def set_sent_limit(self, session: int, position: int) -> None:
        """Record that messages up to `position` may have been sent."""
        self._open_batch.sent_limits[session] = position
        self._record()

    def set_subscription(self, session: int, topic_filter: bytes, qos: int | None) -> None:
        """Record a subscription, or its end when `qos` is None."""
        self._open_batch.subscriptions[session, topic_filter] = qos
        self._record()

    def add_delivery(self, row: Delivery) -> None:
        """Record a message at the end of a session's queue."""
        self._open_batch.deliveries.append(row)
        self.recorded += 1
        if not self._scheduled:
            self._schedule()

    def set_packet_id(self, session: int, position: int, packet_id: int) -> None:
        """Record another packet identifier for a message not yet sent."""
        self._open_batch.packet_ids.append((packet_id, session, position))
        self._record()

    def set_released(self, session: int, position: int) -> None:
        """Record that a QoS 2 message got its PUBREC."""
        self._open_batch.released.append((self._releases, session, position))
        self._releases += 1
        self._record()

    def remove_delivery(self, session: int, position: int) -> None:
        """Record that a message is acknowledged to the end."""
        acknowledged = self._open_batch.acknowledged
        positions = acknowledged.get(session)
        if positions is None:
            acknowledged[session] = [position]
        else:
            positions.append(position)
        if not self._scheduled:
            self._schedule()

    def set_inbound(self, session: int, packet_id: int, present: bool) -> None:
        """Record that the packet identifier of an incoming QoS 2 message is taken or released."""
        self._open_batch.inbound[session, packet_id] = present
        self._record()

    def set_retained(self, topic_name: bytes, message: RetainedMessage | None) -> None:
        """Record the retained message of a topic name, or that there is none."""
        self._open_batch.retained[topic_name] = message
        self._record()

    def load_page(self, session: int, after: int, limit: int, deliver: Callable[[list[DeliveryRow]], None]) -> None:
        """Call `deliver` with up to `limit` messages behind `after`, everything recorded so far included."""
        self._open_batch.pages.append(Page(session, after, limit, deliver))
        self._record()

    def _record(self) -> None:
        self.recorded += 1
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        # Not at once: what the same reads record joins the same transaction.
        self._scheduled = True
        if self._committing is None:
            self._loop.call_soon(self._commit)

    # Committing

    def _commit(self) -> None:
        if self._committing is not None or not self._open_batch:
            return
        batch = self._committing = self._open_batch
        batch.number = self.batch
        self._open_batch = Batch()
        self.batch += 1
        self._scheduled = False
        self._thread.submit(self._write, batch).add_done_callback(
            lambda result: self._loop.call_soon_threadsafe(self._finished, batch, result)
        )

    def _write(self, batch: Batch) -> list[list[DeliveryRow]]:
        """Run one transaction, in the store's thread."""
        try:
            return writer.write(self._database, batch)
        except BaseException:
            if self._database.in_transaction:
                self._database.rollback()
            raise

    def _finished(self, batch: Batch, result: Future[list[list[DeliveryRow]]]) -> None:
        error = result.exception()
        if error is None:
            self._done(batch, result.result())
        else:
            self._failed(batch, error)

    def _done(self, batch: Batch, pages: list[list[DeliveryRow]]) -> None:
        self._committing = None
        self.committed = batch.number
        self._stats.commits += 1
        self._commit()
        for holder, packets in batch.held.items():
            holder.held -= 1
            holder.release(packets)
        for page, rows in zip(batch.pages, pages, strict=True):
            page.deliver(rows)
        for session in batch.sleepers:
            session.on_commit()
        self._after_commit()
        self._transaction_ended.set()

    def _failed(self, batch: Batch, error: BaseException) -> None:
        """Nothing of the batch is safe: acknowledge none of it, and try again with what came meanwhile."""
        self._stats.commit_failures += 1
        _log.error("store %s: transaction failed, will be tried again: %s", self._path, error)
        held = batch.held
        batch.held = {}
        batch.absorb(self._open_batch)
        self._open_batch = batch
        self._committing = None
        self._scheduled = True
        self._retry = self._loop.call_later(_RETRY_DELAY, self._commit)
        for holder in held:
            holder.held -= 1
            holder.commit_failed()
        self._transaction_ended.set()


def _lock(path: str) -> int:
    """Take the lock beside the store: two brokers with one store would each lose what the other knows."""
    try:
        descriptor = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot write beside store {path} ({error.strerror}) — name another with --store") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreError(
            f"store {path} is open in another broker — stop that one, or name another with --store"
        ) from error
    return descriptor
