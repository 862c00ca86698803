"""The interface between the broker and a store.

The event loop records changes; they collect in the open batch. One transaction at a time runs off the loop;
the next starts when it ends, with everything recorded meanwhile (natural group commit). What must not leave
before its change is safe is handed over with `after_commit` and released when the batch that was open then is
committed.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ..protocol.messages import RetainedMessage, Will
from ..stats import Stats


class DeliveryRow(NamedTuple):
    """A QoS 1 or 2 message in the queue of one session, as stored.

    session: number of the session. position: its place in the queue, rising, never used twice in a session.
    flags: 1: the retain flag; 2: before the payload stand the properties of MQTT 5 (packets5.HAS_PROPERTIES).
    sent: it may have been sent already, so the next time needs DUP. released: 0, or the rank of its PUBREC:
    from then on PUBREL is resent, not PUBLISH. expires_at: seconds since 1970; 0: never.
    """

    session: int
    position: int
    packet_id: int
    qos: int
    flags: int
    sent: int
    released: int
    topic_name: bytes
    payload: bytes
    expires_at: int = 0


# What a DeliveryRow is made of, in its order. The packet loop records plain tuples: a NamedTuple takes several times
# as long to make.
Delivery = tuple[int, int, int, int, int, int, int, bytes, bytes, int]


class CommitWaiter(Protocol):
    """A connection that waits for a commit.

    awaiting_commit: how many lists of its packets wait. The store counts; the connection reads, and starts it at 0.
    """

    awaiting_commit: int

    def release(self, packets: list[bytes]) -> None:
        """Write `packets`: what they promise is safe now."""

    def commit_failed(self) -> None:
        """Close without acknowledging: what the packets promise is not safe."""


class Wakeable(Protocol):
    """A session that waits for a commit before it sends on."""

    def on_commit(self) -> None:
        """Look at the queue again."""


class RoomWaiter(Protocol):
    """A connection that is not read from until the store has room."""

    def room_again(self, full: object) -> None:
        """`full`, the store, has room."""


class RecoveredSession(NamedTuple):
    """A persistent session as found.

    queued: messages not acknowledged to the end. released: (position, packet_id) of those whose PUBREC came, in the
    order of the PUBRECs. queued_bytes: payload bytes of the others. away_since: see Store.set_away. retained_pending:
    topic filters whose retained messages are not all in the queue yet. subscriptions: topic filter, options (the QoS
    and what MQTT 5 adds, as in SUBSCRIBE) and identifier of each. protocol_level: of the client's last connection.
    session_expiry: seconds that the client may stay away; None: for ever.
    """

    number: int
    client_id: bytes
    sent_limit: int
    last_position: int
    last_packet_id: int
    queued: int
    subscriptions: list[tuple[bytes, int, int]]
    inbound: set[int]
    released: list[tuple[int, int]]
    username: bytes | None
    away_since: int
    queued_bytes: int
    retained_pending: list[bytes]
    protocol_level: int = 4
    session_expiry: int | None = None


class Owner(NamedTuple):
    """The user of a persistent session, and how it is used: see RecoveredSession."""

    username: bytes | None = None
    protocol_level: int = 4
    session_expiry: int | None = None


class Recovered(NamedTuple):
    """Everything a store held when it was opened, but for the queues, which are paged in when needed.

    wills: by client identifier, of the clients that were connected when the broker was last killed. shares: the queues
    of shared subscriptions; client_id is the key they were recorded under. broker_id: which broker this is, for others;
    b"" if that is not kept. leftovers: numbers of ended sessions and groups whose messages are not all removed yet.
    """

    sessions: list[RecoveredSession]
    retained: list[RetainedMessage]
    wills: dict[bytes, Will]
    shares: list[RecoveredSession]
    broker_id: bytes = b""
    leftovers: Sequence[int] = ()


class Store:
    """Where persistent sessions and retained messages are kept.

    durable: False means that nothing is recorded and the record methods are never called.
    recorded: number of changes recorded so far; compare before and after to learn whether something must be
    waited for.
    batch: number of the open batch. committed: number of the last batch that is safe.
    is_shared: other brokers may take it over. Then all that a client is answered waits for a commit, were it empty,
        which shows that none has: also what records nothing.
    is_blocked: writing fails, and so much waits for it that new clients may not add to it.
    backlog: bytes that wait to be written, about. failure: why the last transaction failed, "" if it did not.
    """

    durable: bool
    recorded: int
    batch: int
    committed: int
    is_shared = False
    is_blocked = False
    backlog = 0
    failure = ""

    async def acquire(self, is_waiting: Callable[[str], None], *, is_patient: bool = False) -> None:
        """Wait until no other broker has the store. Before open(). Raises StoreError.

        is_waiting: called with the reason, each time it is another one. is_patient: also wait for a store that cannot
        be used; otherwise only once another broker had it.
        """
        del is_waiting, is_patient

    async def lost(self) -> str:
        """Wait until another broker may have taken the store over; return why. After open()."""
        return await asyncio.get_running_loop().create_future()

    async def abandon(self) -> None:
        """Close without a commit: the store is lost."""

    def open(self, loop: asyncio.AbstractEventLoop, stats: Stats, flush: Callable[[], None]) -> Recovered:
        """Open, migrate if needed, and return what is there. Raises StoreError.

        `flush` is called after each transaction, when its waiters and sessions have been told.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Commit what is recorded and close. Raises StoreError if that failed."""

    def after_commit(self, waiter: CommitWaiter, packets: list[bytes]) -> None:
        """Release `packets` of `waiter`, in order, once everything recorded so far is safe; perhaps at once.

        The packets still wait while `waiter.awaiting_commit` is above 0; it is lowered before `release` is called.
        """
        raise NotImplementedError

    def took(self, size: int, changes: int) -> bool:
        """Note that a read of `size` bytes recorded so many changes. Returns whether its client must wait for room."""
        del size, changes
        return False

    def wait_for_room(self, client: RoomWaiter) -> None:
        """Call `client.room_again()` once what was recorded is written, so that memory does not fill with it."""

    def wait_no_more(self, client: RoomWaiter) -> None:
        """Remove a client that has gone."""

    def wake(self, session: Wakeable) -> None:
        """Call `session.on_commit()` once everything recorded so far is safe and packets were released."""

    def new_session(self, client_id: bytes, owner: "Owner | None" = None) -> int:
        """Record a session and return its number."""
        raise NotImplementedError

    def set_owner(self, session: int, owner: "Owner") -> None:
        """Record that a session is used by another name, in another version or for another time than before."""

    def set_away(self, session: int, since: int) -> None:
        """Record since when a session has no connection, in seconds since 1970; 0: it has one.

        A session recovered with 0 was connected when the broker ended without a word.
        """

    def set_will(self, client_id: bytes, will: Will | None) -> None:
        """Record the will of a connected client, or that there is none (any more).

        After a crash it is in Recovered.wills: the client went without a DISCONNECT.
        """

    def discard_session(self, session: int) -> None:
        """Record the end of a session: everything of it goes."""

    def new_share(self, key: bytes) -> int:
        """Record the queue of a shared subscription and return its number: one that no session has."""
        raise NotImplementedError

    def discard_share(self, share: int) -> None:
        """Record the end of a shared subscription: everything that is still in its queue goes."""

    def set_sent_limit(self, session: int, position: int) -> None:
        """Record that messages up to `position` may have been sent."""

    def set_subscription(self, session: int, topic_filter: bytes, options: int | None, identifier: int = 0) -> None:
        """Record a subscription that waits for no retained messages, or its end when `options` is None."""

    def set_retained_pending(self, session: int, topic_filter: bytes, is_pending: bool) -> None:
        """Record whether a subscription still waits for some of its retained messages."""

    def add_delivery(self, row: Delivery) -> None:
        """Record a message at the end of a session's queue."""

    def move_delivery(self, share: int, at: int, session: int, position: int, packet_id: int, qos: int) -> None:
        """Record that a message at position `at` of a shared queue is a session's own from now on, perhaps sent.

        One transaction takes it from the one and gives it to the other.
        """

    def set_packet_id(self, session: int, position: int, packet_id: int) -> None:
        """Record another packet identifier for a message not yet sent."""

    def set_released(self, session: int, position: int) -> None:
        """Record that a QoS 2 message got its PUBREC."""

    def remove_delivery(self, session: int, position: int) -> None:
        """Record that a message is acknowledged to the end. Nobody waits for this: `recorded` stays as it is."""

    def set_inbound(self, session: int, packet_id: int, present: bool) -> None:
        """Record that the packet identifier of an incoming QoS 2 message is taken or released."""

    def set_retained(self, topic_name: bytes, message: RetainedMessage | None) -> None:
        """Record the retained message of a topic name, or that there is none."""

    def load_page(self, session: int, after: int, limit: int, deliver: Callable[[list[DeliveryRow]], None]) -> None:
        """Call `deliver` with up to `limit` messages behind `after`, everything recorded so far included."""
