"""Delivers retained messages to a session that subscribed: in slices, so that other clients never wait for long."""

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

from ..core.context import BrokerContext
from ..protocol.messages import RetainedMessage
from ..protocol.packets import PUBLISH, encode_publish_head
from ..protocol.packets5 import HAS_PROPERTIES, encode_content, encode_identifier
from ..sessions.ports import Granted
from ..sessions.session import Session
from .router import Router

# Steps of the walk between two reads of the clock, and the seconds that one slice may take: other clients wait for it.
_STEPS = 100
_SLICE = 0.005

# The first filters of a SUBSCRIBE: they are recorded as pending only if their walk is not finished once the SUBSCRIBE
# is processed. Further filters, of which there may be a million, are recorded one by one while it is processed.
_FEW = 64

# Messages that may wait in the session's queue before the walk waits until there are fewer.
_AHEAD = 1000


class RetainedDelivery:
    """The walks through the retained messages for the new subscriptions of one session, one after the other.

    A message is sent as it is when the walk reaches it. If it is replaced meanwhile, the session gets the new message
    by its subscription; the walk then sends the new message a second time or not at all, but never the old one. The
    walks wait while the client accepts no output or its queue is long. They continue when the client of a persistent
    session connects again. A durable store records which walks are not finished: after a crash these begin again, so
    that some messages are delivered twice.

    All walks of a session together get one slice in each turn of the event loop.
    """

    __slots__ = ("_batches", "_context", "_loop", "_pending", "_router", "_scheduled", "_session", "_walk")

    def __init__(self, session: Session, router: Router, context: BrokerContext) -> None:
        self._session = session
        self._router = router
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        # Filters whose walk has not begun: a deque for each SUBSCRIBE, in which each filter is followed by its granted
        # QoS. So a filter takes only sixteen bytes: a client may subscribe to a million.
        self._batches: deque[Granted] = deque()
        # The current walk, with its filter and granted QoS.
        self._walk: tuple[bytes, int, Iterator[RetainedMessage | None]] | None = None
        # Filters that are recorded in the store as not finished.
        self._pending: set[bytes] = set()

    def recover(self, topic_filter: bytes, granted_qos: int) -> None:
        """Restart the walk of a subscription that was not finished when the broker was killed."""
        self._batches.append(deque((topic_filter, granted_qos)))
        self._pending.add(topic_filter)

    def cancel(self, topic_filter: bytes) -> None:
        """Cancel the walk of a filter that is unsubscribed; one that has not begun notices it by itself."""
        self._pending.discard(topic_filter)
        if self._walk is not None and self._walk[0] == topic_filter:
            self._walk = None

    def expect(self, topic_filter: bytes, number: int) -> None:
        """Note a new subscription. number: the filter is the nth new one of its SUBSCRIBE. begin() follows."""
        # The subscription was recorded just now, which has also removed a record that it is pending.
        self._pending.discard(topic_filter)
        if number > _FEW:
            self._mark_pending(topic_filter)

    def begin(self, granted: Granted) -> list[bytes]:
        """Begin to deliver the retained messages of new subscriptions.

        Takes the first slice now, in the transaction that records the subscriptions; if this session has had its slice
        in this turn, in the next turn. granted: the filters, each followed by its granted QoS. Returns the QoS 0
        messages as packets, which the caller must send after the SUBACK.
        """
        count = len(granted)
        self._batches.append(granted)
        packets: list[bytes] = []
        if not self._scheduled:
            # Scheduled first, so that further subscriptions in this turn find that the slice is taken.
            self._schedule()
            self._slice(packets)
        begun = count - len(granted)
        if begun < 2 * _FEW:
            for topic_filter in list(islice(granted, 2 * _FEW - begun)):
                if isinstance(topic_filter, bytes):
                    self._mark_pending(topic_filter)
        if begun and self._walk is not None:
            self._mark_pending(self._walk[0])
        return packets

    def _mark_pending(self, topic_filter: bytes) -> None:
        store = self._session.store
        if store is not None and topic_filter not in self._pending:
            self._pending.add(topic_filter)
            store.set_retained_pending(self._session.number, topic_filter, True)

    @property
    def _is_done(self) -> bool:
        return self._walk is None and not self._batches

    def resume(self) -> None:
        """Continue in the next turn if the session can take more."""
        session = self._session
        if not self._scheduled and session.window and session.queued < self._most_queued():
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        session = self._session
        if session.retained_delivery is not self:
            return
        if not self._is_done and (session.output is None or not session.window):
            return
        packets: list[bytes] = []
        self._slice(packets)
        if self._is_done:
            session.retained_delivery = None
        if packets and session.output is not None:
            session.output += packets
            session.mark_dirty()
        self._router.flush()
        if session.retained_delivery is self:
            self.resume()

    def _most_queued(self) -> int:
        limit = self._context.config.max_queued_messages
        return min(_AHEAD, limit) if limit else _AHEAD

    def _slice(self, packets: list[bytes]) -> None:
        """Continue the walks until the time is up, a buffer is full or the queue is long enough.

        Appends QoS 0 messages to `packets`.
        """
        self._take_steps(packets)
        if self._context.limits is not None:
            # The subscriber has published nothing, so it must not be held back for the queues that were filled.
            self._context.limits.hits.clear()

    def _take_steps(self, packets: list[bytes]) -> None:
        session, most_queued = self._session, self._most_queued()
        until = self._loop.time() + _SLICE
        room = self._context.config.max_output_buffer
        steps = 0
        start = len(session.mount)
        while session.queued < most_queued and (begun := self._walk or self._next()) is not None:
            topic_filter, granted_qos, walk = self._walk = begun
            # [MQTT-4.7.2-1] applies to topic names as clients behind the mount point see them, as in Router.
            is_hidden = start and topic_filter.startswith((b"+", b"#"), start)
            # The end of a walk counts as a step too, because very many walks may find nothing.
            for message in chain(walk, (None,)):
                steps += 1
                if message is not None and not (is_hidden and message.topic_name.startswith(b"$", start)):
                    room -= self._send(message, topic_filter, granted_qos, packets)
                    if room <= 0 or session.queued >= most_queued:
                        return
                if steps % _STEPS == 0 and self._loop.time() >= until:
                    return
            self._walk = None
            if topic_filter in self._pending and session.store is not None:
                # Recorded in the same transaction as its last messages.
                self._pending.discard(topic_filter)
                session.store.set_retained_pending(session.number, topic_filter, False)

    def _next(self) -> tuple[bytes, int, Iterator[RetainedMessage | None]] | None:
        """Return the next filter that the session still subscribes to, and its walk; None if there is none."""
        while self._batches:
            batch = self._batches[0]
            topic_filter, granted_qos = batch.popleft(), batch.popleft()
            assert isinstance(topic_filter, bytes) and isinstance(granted_qos, int)  # in turn
            if not batch:
                self._batches.popleft()
            if topic_filter in self._session.subscriptions:
                return topic_filter, granted_qos, self._router.retained.walk(topic_filter)
        return None

    def _send(self, message: RetainedMessage, topic_filter: bytes, granted_qos: int, packets: list[bytes]) -> int:
        """Queue one message, or add it to `packets` at QoS 0. Returns its size, 0 if the session may not read it."""
        session = self._session
        topic_name, payload, message_qos, passed_on, expires_at = message
        if not topic_name.startswith(session.mount):
            return 0
        if session.rights is not None and not session.rights.may_read(topic_name):
            return 0
        qos = min(granted_qos, message_qos)
        flags, expiry = 1, self._context.expiry
        if expires_at is not None and expires_at <= expiry.now():
            return 0
        if session.protocol_level == 5:
            flags |= HAS_PROPERTIES
            remaining = None if expires_at is None else expiry.remaining(expires_at)
            subscription = session.options.get(topic_filter)
            identifier = b"" if subscription is None else encode_identifier(subscription.identifier)
            payload = encode_content(payload, remaining, passed_on, identifier)
        # [MQTT-3.3.1-6, -8] with the retain flag.
        head = encode_publish_head(PUBLISH | qos << 1 | 1, topic_name[len(session.mount) :], len(payload))
        if session.is_too_large(qos, head, payload):
            session.dropped += 1
            self._context.stats.dropped_too_large += 1
        elif not qos:
            packets.append(head + payload)
        elif expires_at is None:
            session.deliver(qos, head, topic_name, payload, flags)
        else:
            with expiry.set_to(min(expires_at, expiry.deadline or expires_at)):
                session.deliver(qos, head, topic_name, payload, flags)
        return len(head) + len(payload)
