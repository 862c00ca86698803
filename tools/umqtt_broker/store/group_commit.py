"""Group commit: changes are collected in a batch; a backend writes one batch at a time outside the event loop.

Durable before visible: packets passed to `after_commit` are released only after their batch is written, or when nothing
that they promise needs the disk any more: a QoS 1 message that every subscriber acknowledged before its transaction
began is never written.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

from ..errors import LeaseLost, StoreError
from ..protocol.messages import RetainedMessage, Will
from ..stats import Stats
from .base import CommitWaiter, Delivery, DeliveryRow, Owner, Recovered, RoomWaiter, Store, Wakeable
from .change_batch import MARK_KEY, AwaitingCommit, Batch, Mark, Page

_log = logging.getLogger("umqtt_broker.store")

# Seconds until a failed transaction is tried again: a full disk does not heal faster.
_RETRY_DELAY = 1.0

# Seconds that a message which is being sent to its subscriber waits for the acknowledgement that makes writing it
# needless, as long as most acknowledgements come that quickly. About the time of a transaction, so a wait in vain at
# most doubles it.
_LINGER = 0.001

# Seconds until acknowledgements, for which no answer waits, are written. A message whose acknowledgement is lost in a
# crash is resent with DUP.
_LAZY = 0.05

# Seconds between two attempts of a standby to acquire a shared store, and between two renewals of the lease by the
# broker that has it: see redis_backend.LEASE_MS.
_ASK_AGAIN = 0.5
_RENEWAL = 1.0

# Bytes that may wait for the disk while a transaction runs or fails, before clients that record more are not read from;
# and the bytes of memory that a recorded change takes in addition to the received data.
_MOST_UNWRITTEN = 64 * 1024 * 1024
_CHANGE_SIZE = 300

# Positions are below 2 to the power of this.
_POSITION_BITS = 48


# The rows of each page of a batch.
Pages = list[list[DeliveryRow]]


class Opened(NamedTuple):
    """What a backend has read when it was opened.

    next_session: the first free number of a session or shared queue. next_release: the rank of the next PUBREC.
    """

    recovered: Recovered
    next_session: int
    next_release: int


class Backend(Protocol):
    """Writes batches. open() and close() run in the event loop's thread, the other methods in other threads."""

    # The name in messages: "store PATH".
    name: str
    # See Store.is_shared.
    is_shared: bool

    def acquire(self) -> str:
        """Take the store, before open(). Returns "" if that succeeds, else who has the store. Raises StoreError."""
        ...

    def open(self) -> Opened:
        """Open the store and read everything but the queues. Raises StoreError."""
        ...

    def write(self, batch: Batch) -> Pages:
        """Write all of `batch`, or nothing of it if it raises. Returns the rows of each of its pages.

        Raises LeaseLost if another broker has the store or if the result is unknown; then it is not called again.
        """
        ...

    def close(self) -> None:
        """Release what open() acquired."""
        ...


class Writer(Protocol):
    """Runs functions outside the event loop, one after the other: an executor with one thread."""

    def submit(self, function: Callable[[Batch], Pages], batch: Batch, /) -> "Future[Pages]":
        """Have function(batch) run, and return its future."""
        ...

    def shutdown(self) -> None:
        """Wait until everything has run."""


def _store_thread() -> Writer:
    return ThreadPoolExecutor(1, "umqtt-broker-store")


class GroupCommitStore(Store):
    """See Store. All methods run in the event loop's thread. new_writer: makes what runs the transactions."""

    def __init__(self, backend: Backend, new_writer: Callable[[], Writer] = _store_thread) -> None:
        self.durable = True
        self.recorded = 0
        self.batch = 1
        self.committed = 0
        self.is_shared = backend.is_shared
        self._backend = backend
        self._new_writer = new_writer
        # True if nothing is written any more.
        self._has_ended = False
        self._renewal: asyncio.TimerHandle | None = None
        self._open_batch = Batch()
        self._committing: Batch | None = None
        # True if the open batch is to be committed as soon as possible: something in it cannot become needless.
        self._scheduled = False
        self._release_scheduled = False
        self._lingers = True
        self._linger_timer: asyncio.TimerHandle | None = None
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._next_key = MARK_KEY - 1
        self._next_session = 1
        self._releases = 1
        # Bytes that wait for the disk: in the open batch, and in the transaction that runs.
        self._unwritten = 0
        self._writing = 0
        self._waiting: dict[RoomWaiter, None] = {}
        self.failure = ""
        # Transactions that failed since the last one that succeeded.
        self._failed_in_a_row = 0
        # Ended sessions and groups whose messages are not all removed yet.
        self._leftovers: dict[int, None] = {}
        # Made anew by close(), which waits for the running transaction.
        self._transaction_ended = asyncio.Event()

    # Opening and closing

    def open(self, loop: asyncio.AbstractEventLoop, stats: Stats, flush: Callable[[], None]) -> Recovered:
        """Open the backend and return what it holds. Raises StoreError."""
        self._loop = loop
        self._stats = stats
        self._flush = flush
        recovered, self._next_session, self._releases = self._backend.open()
        self._leave(recovered.leftovers)
        self._thread = self._new_writer()
        self._lost = loop.create_future()
        if self.is_shared:
            self._renew()
        return recovered

    async def acquire(self, is_waiting: Callable[[str], None], *, is_patient: bool = False) -> None:
        """See Store."""
        said = ""
        while True:
            try:
                reason = await asyncio.to_thread(self._backend.acquire)
            except StoreError as error:
                if not (is_patient or said):
                    raise
                reason = str(error)
            if not reason:
                return
            if reason != said:
                said = reason
                is_waiting(reason)
            await asyncio.sleep(_ASK_AGAIN)

    async def lost(self) -> str:
        """See Store."""
        # Cancelling the wait must not change the store.
        return await asyncio.shield(self._lost)

    async def abandon(self) -> None:
        """See Store."""
        self._end()
        await asyncio.to_thread(self._thread.shutdown)
        self._backend.close()

    def _renew(self) -> None:
        """Write a batch every second, even an empty one: a broker that does not renew its lease loses the store."""
        self._renewal = self._loop.call_later(_RENEWAL, self._renew)
        self._open_batch.add_barrier()
        if not self._scheduled:
            self._schedule()

    def _end(self) -> None:
        self._has_ended = True
        for timer in (self._retry, self._linger_timer, self._lazy_timer, self._renewal):
            if timer is not None:
                timer.cancel()

    async def close(self) -> None:
        """Commit what is recorded and close. Raises StoreError if that failed."""
        if self._open_batch.entries:
            # Also for packets that wait only for the confirmation of the lease.
            self._open_batch.add_barrier()
        while not self._has_ended and (self._committing is not None or self._open_batch.is_worth_a_transaction()):
            before = self._stats.commit_failures
            if self._committing is None:
                self._commit()
            self._transaction_ended = asyncio.Event()
            await self._transaction_ended.wait()
            if self._stats.commit_failures != before:
                break
        # Changes recorded after another broker took over were not promised to anyone.
        lost = not self._lost.done() and self._open_batch.is_worth_a_transaction()
        self._end()
        self._thread.shutdown()
        self._backend.close()
        if lost:
            raise StoreError(
                f"the last changes could not be written to {self._backend.name} — see the log for the cause"
            )

    # Waiting for a commit

    def after_commit(self, waiter: CommitWaiter, packets: list[bytes]) -> None:
        """Release `packets` of `waiter`, in order, once everything recorded so far is safe."""
        batch = self._batch_to_await()
        if batch is None and not waiter.awaiting_commit:
            waiter.release(packets)
            return
        waiter.awaiting_commit += 1
        (batch or self._open_batch).entries[self._next_key] = AwaitingCommit(waiter, packets)
        self._next_key -= 1

    def wake(self, session: Wakeable) -> None:
        """Call `session.on_commit()` once everything recorded so far is safe and packets were released."""
        batch = self._batch_to_await()
        if batch is None:
            session.on_commit()
        else:
            batch.sleepers[session] = None

    # Waiting for room

    @property
    def is_blocked(self) -> bool:  # pyrefly: ignore[bad-override] - no attribute here
        """Writing fails, and so much waits for it that new clients may not add to it."""
        return bool(self.failure) and self.backlog > _MOST_UNWRITTEN

    @property
    def backlog(self) -> int:  # pyrefly: ignore[bad-override] - no attribute here
        """Bytes that wait to be written: in the running transaction and in the open batch."""
        return self._unwritten + self._writing

    def took(self, size: int, changes: int) -> bool:
        """Count the bytes of a read and the changes that it recorded. Returns True if its client must wait for room."""
        self._unwritten += size + _CHANGE_SIZE * changes
        if self.failure:
            return True
        if self._unwritten <= _MOST_UNWRITTEN:
            return False
        # Commit even if everything may become needless: only a commit makes room.
        self._open_batch.add_barrier()
        if not self._scheduled:
            self._schedule()
        return self._committing is not None

    def wait_for_room(self, client: RoomWaiter) -> None:
        """Call `client.room_again()` once what is recorded is written, so that it does not fill the memory."""
        self._waiting[client] = None

    def wait_no_more(self, client: RoomWaiter) -> None:
        """Do not call a client that has gone."""
        self._waiting.pop(client, None)

    def _make_room(self) -> None:
        """Let waiting clients continue after a transaction, unless the open batch has grown too large meanwhile."""
        if self._waiting and self._unwritten <= _MOST_UNWRITTEN:
            waiting, self._waiting = self._waiting, {}
            for client in waiting:
                client.room_again(self)

    def _batch_to_await(self) -> Batch | None:
        """Return the batch that packets must wait for now, None if they need not wait."""
        if self.is_shared:
            # The running transaction may have checked the lease already, so it cannot confirm it for new packets.
            if not self._scheduled:
                self._schedule_release()
            return self._open_batch
        if self._open_batch.entries:
            return self._open_batch
        if self._committing is not None and self._committing.entries:
            return self._committing
        return None

    def _schedule_release(self) -> None:
        # Not at once: the rest of the read may contain more acknowledgements.
        if not self._release_scheduled:
            self._release_scheduled = True
            self._loop.call_soon(self._release_safe)

    def _release_safe(self) -> None:
        """Release packets that waited only for messages that need not be stored any more."""
        self._release_scheduled = False
        if self.is_shared:
            self._confirm()
            return
        for batch in (self._committing, self._open_batch):
            if batch is None:
                continue
            # Repeated, because released packets may make their connection wait for more.
            while released := batch.pop_released():
                for awaiting in released.values():
                    awaiting.waiter.awaiting_commit -= 1
                    awaiting.waiter.release(awaiting.packets)
            if batch.entries:
                return
            sleepers, batch.sleepers = batch.sleepers, {}
            for session in sleepers:
                session.on_commit()
        self._flush()

    def _confirm(self) -> None:
        """Confirm the lease of a shared store for packets that wait for nothing else.

        Writes a separate batch without changes, so that messages which may become needless are not written for that.
        Redis answers a batch without changes at once, and one with changes only when they are on its disk.
        """
        batch = self._open_batch
        if self._committing is not None or self._has_ended:
            return
        question = Batch()
        question.number = self.committed
        question.entries.update(batch.pop_released())
        if not batch.entries:
            question.sleepers, batch.sleepers = batch.sleepers, {}
        if question.entries or question.sleepers:
            self._write(question)

    # Recording

    def new_session(self, client_id: bytes, owner: Owner | None = None) -> int:
        """Record a session and return its number."""
        number = self._next_session
        self._next_session += 1
        self._open_batch.sessions[number] = (client_id, owner or Owner())
        self._record()
        return number

    def new_share(self, key: bytes) -> int:
        """Record the queue of a shared subscription and return its number."""
        number = self._next_session
        self._next_session += 1
        self._open_batch.shares[number] = key
        self._record()
        return number

    def discard_share(self, share: int) -> None:
        """Record the end of a shared subscription."""
        self._open_batch.shares[share] = None
        self._record()

    def set_owner(self, session: int, owner: Owner) -> None:
        """Record that the user name, the protocol level or the session expiry of a session has changed."""
        self._open_batch.owners[session] = owner
        self._record()

    def set_away(self, session: int, since: int) -> None:
        """Record since when a session has no connection; 0: it has one."""
        self._open_batch.away[session] = since
        self._record()

    def set_will(self, client_id: bytes, will: Will | None) -> None:
        """Record the will of a connected client, or with None that there is none."""
        self._open_batch.wills[client_id] = will
        self._record()

    def discard_session(self, session: int) -> None:
        """Record the end of a session: everything that is stored of it is removed."""
        self._open_batch.sessions[session] = None
        self._record()

    def set_sent_limit(self, session: int, position: int) -> None:
        """Record that messages up to `position` may have been sent."""
        self._open_batch.sent_limits[session] = position
        self._record()

    def set_subscription(self, session: int, topic_filter: bytes, options: int | None, identifier: int = 0) -> None:
        """Record a subscription, or its end when `options` is None."""
        self._open_batch.subscriptions[session, topic_filter] = None if options is None else (options, identifier)
        # A pending mark in this batch belongs to the replaced subscription. Backends write the marks last.
        self._open_batch.retained_pending.pop((session, topic_filter), None)
        self._record()

    def set_retained_pending(self, session: int, topic_filter: bytes, is_pending: bool) -> None:
        """Record whether a subscription still waits for some of its retained messages."""
        self._open_batch.retained_pending[session, topic_filter] = is_pending
        self._record()

    def add_delivery(self, row: Delivery) -> None:
        """Record a message at the end of a session's queue."""
        self._open_batch.entries[row[0] << _POSITION_BITS | row[1]] = row
        self.recorded += 1
        if self._scheduled:
            return
        if self._lingers and row[5] and row[3] == 1:
            # It is being sent to a client: perhaps it never needs to be written.
            if self._linger_timer is None:
                self._linger_timer = self._loop.call_later(_LINGER, self._on_linger)
        else:
            self._schedule()

    def move_delivery(self, share: int, at: int, session: int, position: int, packet_id: int, qos: int) -> None:
        """Record that a message of a shared queue moves to a session's queue."""
        self._open_batch.moves.append((session, position, packet_id, qos, share, at))
        self._record()

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
        """Record that a message is completely acknowledged."""
        key = session << _POSITION_BITS | position
        batch = self._open_batch
        if batch.entries.pop(key, None) is None:
            positions = batch.acknowledged.get(session)
            if positions is None:
                batch.acknowledged[session] = [position]
                if self._lazy_timer is None:
                    self._lazy_timer = self._loop.call_later(_LAZY, self._on_lazy)
            else:
                positions.append(position)
            batch = self._committing
            if batch is None or batch.entries.pop(key, None) is None:
                return
            batch.early += 1
        self._schedule_release()

    def set_inbound(self, session: int, packet_id: int, present: bool) -> None:
        """Record that the packet identifier of an incoming QoS 2 message is taken or released."""
        self._open_batch.inbound[session, packet_id] = present
        self._record()

    def set_retained(self, topic_name: bytes, message: RetainedMessage | None) -> None:
        """Record the retained message of a topic name, or that there is none."""
        self._open_batch.retained[topic_name] = message
        self._record()

    def load_page(self, session: int, after: int, limit: int, deliver: Callable[[list[DeliveryRow]], None]) -> None:
        """Call `deliver` with up to `limit` messages behind position `after`, including all recorded so far."""
        self._open_batch.pages.append(Page(session, after, limit, deliver))
        self._record()

    def _record(self) -> None:
        self._open_batch.add_barrier()
        self.recorded += 1
        if not self._scheduled:
            self._schedule()

    # When to commit

    def _schedule(self) -> None:
        # Not at once, so that everything that is recorded in this turn of the event loop joins the same transaction.
        self._scheduled = True
        if self._committing is None:
            self._loop.call_soon(self._commit)

    def _on_linger(self) -> None:
        """Commit if a message has waited for its acknowledgement since the last call."""
        self._linger_timer = None
        entries = self._open_batch.entries
        if self._scheduled or self._committing is not None:
            return
        self._release_safe()
        if MARK_KEY in entries:
            self._schedule()
        elif entries:
            entries[MARK_KEY] = Mark()
            self._linger_timer = self._loop.call_later(_LINGER, self._on_linger)

    def _on_lazy(self) -> None:
        self._lazy_timer = None
        if not self._scheduled and (self._open_batch.acknowledged or self._leftovers):
            self._schedule()

    def _leave(self, numbers: Iterable[int]) -> None:
        """Remove the messages of these ended sessions in slices, because no client waits for that."""
        self._leftovers.update(dict.fromkeys(numbers))
        if self._leftovers and self._lazy_timer is None:
            self._lazy_timer = self._loop.call_later(_LAZY, self._on_lazy)

    # Committing

    def _commit(self) -> None:
        batch = self._open_batch
        if self._committing is not None or self._has_ended:
            return
        self._scheduled = False
        if not batch.is_worth_a_transaction() and not self._leftovers:
            return  # everything in it was acknowledged meanwhile
        batch.number = self.batch
        # A copy, because acknowledgements continue to remove entries while the store's thread writes.
        batch.deliveries = batch.undelivered()
        batch.early = 0
        batch.leftover = next(iter(self._leftovers), 0)
        self._open_batch = Batch()
        self._writing, self._unwritten = self._unwritten, 0
        self.batch += 1
        self._write(batch)

    def _write(self, batch: Batch) -> None:
        self._committing = batch
        self._thread.submit(self._backend.write, batch).add_done_callback(
            lambda result: self._loop.call_soon_threadsafe(self._finished, batch, result)
        )

    def _finished(self, batch: Batch, result: Future[Pages]) -> None:
        error = result.exception()
        if error is None:
            self._done(batch, result.result())
        else:
            self._failed(batch, error)

    def _done(self, batch: Batch, pages: Pages) -> None:
        self._committing = None
        self._writing = 0
        self.committed = batch.number
        if batch.leftover_is_gone:
            del self._leftovers[batch.leftover]
        ended = [*batch.sessions.items(), *batch.shares.items()]
        self._leave([number for number, made in ended if made is None])
        self._stats.commits += 1
        if self.failure:
            _log.warning(
                "%s: works again, after %d transactions that failed", self._backend.name, self._failed_in_a_row
            )
            self.failure = ""
            self._failed_in_a_row = 0
        if sent := sum(row[5] for row in batch.deliveries):
            # Linger only if most messages were acknowledged in time: with a slow subscriber it would be in vain.
            self._lingers = 4 * batch.early >= 3 * sent
        self._commit_next()
        self._make_room()
        for awaiting in batch.pop_all_awaiting():
            awaiting.waiter.awaiting_commit -= 1
            awaiting.waiter.release(awaiting.packets)
        for page, rows in zip(batch.pages, pages, strict=True):
            page.deliver(rows)
        for session in batch.sleepers:
            session.on_commit()
        self._release_safe()
        self._flush()
        self._transaction_ended.set()

    def _commit_next(self) -> None:
        """Commit what was recorded meanwhile, unless it may become needless."""
        if self._scheduled or not self._lingers:
            self._commit()
        elif self._open_batch.entries and self._linger_timer is None:
            self._linger_timer = self._loop.call_later(_LINGER, self._on_linger)

    def _failed(self, batch: Batch, error: BaseException) -> None:
        """Handle a failed transaction: release nothing of the batch, and retry it with what was recorded meanwhile."""
        if isinstance(error, LeaseLost):
            # No client gets an answer: the broker that has the store now answers them.
            self._end()
            self.failure = str(error)
            self._lost.set_result(self.failure)
            self._transaction_ended.set()
            return
        self._stats.commit_failures += 1
        self._failed_in_a_row += 1
        if str(error) != self.failure:
            self.failure = str(error)
            _log.error(
                "%s: transaction failed, will be tried again: %s — until then, clients that need it are not read from",
                self._backend.name,
                error,
            )
        self._unwritten += self._writing
        self._writing = 0
        ended = batch.pop_all_awaiting()
        batch.absorb(self._open_batch)
        self._open_batch = batch
        self._committing = None
        self._scheduled = True
        self._retry = self._loop.call_later(_RETRY_DELAY, self._commit)
        for awaiting in ended:
            awaiting.waiter.awaiting_commit -= 1
            awaiting.waiter.commit_failed()
        self._transaction_ended.set()
