"""The interface between the broker and a store.

The event loop records changes, which are collected in the open batch. One transaction at a time runs outside the event
loop; when it ends, the next one begins, with everything that was recorded meanwhile (natural group commit). Packets
that must not be sent before a change is safe are passed to `after_commit`, and released when the batch that was open at
that time is committed.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ..protocol.messages import RetainedMessage, Will
from ..stats import Stats


class DeliveryRow(NamedTuple):
    """A message in the queue of a session or a shared subscription, as stored.

    session: number of the session or the shared subscription. position: its place in the queue; positions rise and are
    never used twice in a queue. flags: bits; 1: the retain flag; 2: the properties of MQTT 5 come before the payload
    (packets5.HAS_PROPERTIES). sent: it may have been sent already, so the next time needs DUP. released: 0, or the rank
    of its PUBREC: from then on PUBREL is resent, not PUBLISH. expires_at: seconds since 1970; 0: never.
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


# The fields of a DeliveryRow, as a plain tuple. The packet loop records these: a NamedTuple takes several times as long
# to make.
Delivery = tuple[int, int, int, int, int, int, int, bytes, bytes, int]


class CommitWaiter(Protocol):
    """A connection that waits for a commit.

    awaiting_commit: how many lists of its packets wait. The connection sets it to 0 at the start; the store changes it.
    """

    awaiting_commit: int

    def release(self, packets: list[bytes]) -> None:
        """Write `packets`: what they promise is safe now."""

    def commit_failed(self) -> None:
        """Close without acknowledging: what the packets promise is not safe."""


class Wakeable(Protocol):
    """A queue that waits for a commit before it sends more messages."""

    def on_commit(self) -> None:
        """Continue to send from the queue."""


class RoomWaiter(Protocol):
    """A connection that is not read from until the store has room."""

    def room_again(self, full: object) -> None:
        """Continue to read: the store, which is passed as `full`, has room."""


class RecoveredSession(NamedTuple):
    """A persistent session, or the queue of a shared subscription, as read from the store.

    number: its number in the store. client_id: the key of the session (see registry.Sessions), or that of the shared
    subscription. sent_limit: the highest position that may have been sent. last_position, last_packet_id: of the last
    message. queued: messages that are not completely acknowledged. released: (position, packet_id) of those whose
    PUBREC has come, in the order of the PUBRECs. queued_bytes: payload bytes of the others. subscriptions: topic
    filter, options (the QoS and what MQTT 5 adds, as in SUBSCRIBE) and identifier of each. inbound: packet identifiers
    of incoming QoS 2 messages. away_since: see Store.set_away. retained_pending: topic filters whose retained messages
    are not all in the queue yet. protocol_level: of the client's last connection. session_expiry: seconds that the
    client may stay away; None: for ever.
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
    """The properties of a persistent session that its client may change: see RecoveredSession."""

    username: bytes | None = None
    protocol_level: int = 4
    session_expiry: int | None = None


class Recovered(NamedTuple):
    """Everything that a store contained when it was opened, except the queues, which are loaded by pages when needed.

    wills: by the key of the session, the wills of the clients that were connected when the broker was killed, and
    delayed wills. shares: the queues of shared subscriptions. leftovers: the numbers of ended
    sessions and groups whose messages are not all removed yet.
    """

    sessions: list[RecoveredSession]
    retained: list[RetainedMessage]
    wills: dict[bytes, Will]
    shares: list[RecoveredSession]
    leftovers: Sequence[int] = ()


class Store:
    """Where persistent sessions and retained messages are kept.

    durable: False means that nothing is recorded and the record methods are never called.
    recorded: number of changes recorded so far. If it differs before and after an action, the answer must wait for a
        commit.
    batch: number of the open batch. committed: number of the last batch that is safe.
    is_shared: other brokers may take the store over. Then every answer to a client waits for a commit, even if nothing
        was recorded: only a commit, which may be empty, shows that no other broker has the store.
    is_blocked: writing fails, and so much waits to be written that new clients must not add to it.
    backlog: approximate number of bytes that wait to be written. failure: why the last transaction failed, "" if it
        succeeded.
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
        """Wait until no other broker has the store. Call it before open(). Raises StoreError.

        is_waiting: called with the reason of the wait, whenever it changes. is_patient: if the store cannot be used,
        wait for it, too; False: raise StoreError in that case, unless it has waited for another broker before.
        """
        del is_waiting, is_patient

    async def lost(self) -> str:
        """Wait until the store is lost: another broker may have taken it over. Returns why. Call it after open()."""
        return await asyncio.get_running_loop().create_future()

    async def abandon(self) -> None:
        """Close without a commit: the store is lost."""

    def open(self, loop: asyncio.AbstractEventLoop, stats: Stats, flush: Callable[[], None]) -> Recovered:
        """Open, and return what the store contains. Raises StoreError.

        flush: called after each transaction, when its packets are released and its sessions have been called.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Commit what is recorded and close. Raises StoreError if that failed."""

    def after_commit(self, waiter: CommitWaiter, packets: list[bytes]) -> None:
        """Release `packets` of `waiter`, in order, once everything recorded so far is safe; perhaps at once.

        While packets wait, `waiter.awaiting_commit` is above 0; it is lowered before `release` is called.
        """
        raise NotImplementedError

    def took(self, size: int, changes: int) -> bool:
        """Count the bytes of a read and the changes that it recorded. Returns True if its client must wait for room."""
        del size, changes
        return False

    def wait_for_room(self, client: RoomWaiter) -> None:
        """Call `client.room_again()` once what is recorded is written, so that it does not fill the memory."""

    def wait_no_more(self, client: RoomWaiter) -> None:
        """Do not call a client that has gone."""

    def wake(self, session: Wakeable) -> None:
        """Call `session.on_commit()` once everything recorded so far is safe and packets were released."""

    def new_session(self, client_id: bytes, owner: "Owner | None" = None) -> int:
        """Record a session and return its number."""
        raise NotImplementedError

    def set_owner(self, session: int, owner: "Owner") -> None:
        """Record that the user name, the protocol level or the session expiry of a session has changed."""

    def set_away(self, session: int, since: int) -> None:
        """Record since when a session has no connection, in seconds since 1970; 0: it has one.

        A session that is recovered with 0 was connected when the broker was killed.
        """

    def set_will(self, client_id: bytes, will: Will | None) -> None:
        """Record the will of a connected client, or with None that there is none.

        client_id: the key of the session. After a crash the will is in Recovered.wills.
        """

    def discard_session(self, session: int) -> None:
        """Record the end of a session: everything that is stored of it is removed."""

    def new_share(self, key: bytes) -> int:
        """Record the queue of a shared subscription and return its number, which no session has."""
        raise NotImplementedError

    def discard_share(self, share: int) -> None:
        """Record the end of a shared subscription: everything in its queue is removed."""

    def set_sent_limit(self, session: int, position: int) -> None:
        """Record that messages up to `position` may have been sent."""

    def set_subscription(self, session: int, topic_filter: bytes, options: int | None, identifier: int = 0) -> None:
        """Record a subscription whose retained messages are not pending, or its end if `options` is None."""

    def set_retained_pending(self, session: int, topic_filter: bytes, is_pending: bool) -> None:
        """Record whether a subscription still waits for some of its retained messages."""

    def add_delivery(self, row: Delivery) -> None:
        """Record a message at the end of a session's queue."""

    def move_delivery(self, share: int, at: int, session: int, position: int, packet_id: int, qos: int) -> None:
        """Record that the message at position `at` of a shared queue moves to a session's queue, in one transaction.

        From then on it counts as perhaps sent. position, packet_id, qos: those in the session's queue.
        """

    def set_packet_id(self, session: int, position: int, packet_id: int) -> None:
        """Record another packet identifier for a message not yet sent."""

    def set_released(self, session: int, position: int) -> None:
        """Record that a QoS 2 message got its PUBREC."""

    def remove_delivery(self, session: int, position: int) -> None:
        """Record that a message is completely acknowledged. No answer waits for this: `recorded` does not change."""

    def set_inbound(self, session: int, packet_id: int, present: bool) -> None:
        """Record that the packet identifier of an incoming QoS 2 message is taken or released."""

    def set_retained(self, topic_name: bytes, message: RetainedMessage | None) -> None:
        """Record the retained message of a topic name, or that there is none."""

    def load_page(self, session: int, after: int, limit: int, deliver: Callable[[list[DeliveryRow]], None]) -> None:
        """Call `deliver` with up to `limit` messages behind position `after`, including all recorded so far."""
