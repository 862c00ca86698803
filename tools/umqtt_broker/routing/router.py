"""Routes a PUBLISH to the sessions that get it; keeps subscriptions and retained messages."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from ..core.context import BrokerContext, Flushable
from ..core.due_times import DueTimes
from ..core.turns import SLICE
from ..protocol.messages import NO_PROPERTIES, MessageProperties, RetainedMessage
from ..protocol.packets import PUBLISH, encode_publish_head
from ..protocol.packets5 import HAS_PROPERTIES, NOTHING, RETAIN_HANDLING, encode_content
from ..protocol.reason_codes import ReasonCode
from ..protocol.topic_filters import matches, split
from ..protocol.topics import MAX_REMEMBERED, check_topic_name, has_wildcard, is_topic_name, split_shared
from ..sessions.queue import MessageQueue
from ..sessions.session import Session, Subscription
from ..sessions.shared_queue import SharedQueue
from .retained import RetainedMessages
from .room import Room, size_of
from .routes5 import Route5, is_plain, route5
from .shared_groups import Shares
from .subscriptions import SubscriptionTrie

# Bytes of the cache that maps topic names to their subscribers. A full cache is emptied: a client that invents a new
# topic name for every message must not fill the memory, however many clients subscribe.
_MOST_ROUTES_SIZE = 6_000_000
# Approximate bytes in that cache: of a topic name without subscribers, beside the name itself; of the lists of its
# subscribers; of each subscriber in them; of a Route5, and of an _Apart.
_NAME_SIZE: Final = 140
_ROUTES_SIZE: Final = 90
_ROUTE_SIZE: Final = 70
_APART_SIZE: Final = 240
# Expiry times of retained messages that may be kept in addition to two for each message, before outdated ones are
# removed.
_FEW_ENDS: Final = 1000
# Most retained messages that expire in one call of expire_retained().
_MOST_ENDS: Final = 1000


# A session or group with the QoS of its subscription.
_Route = tuple[MessageQueue, int]


# Two groups of subscribers: those that get the payload alone, and the clients of MQTT 5 that get the properties and the
# payload, and need no other check. A plain tuple: a NamedTuple takes three times as long to unpack.
_Routes = tuple[tuple[_Route, ...], tuple[_Route, ...]]
_NOBODY: Final[_Routes] = ((), ())

# Most subscriptions that are removed at once when their session ends, in about half a millisecond; more are removed in
# slices.
_FEW: Final = 100
# Most sessions that are flushed at once, in a few milliseconds; more are flushed in slices.
MANY_DIRTY: Final = 250
# Most waiting messages whose memory is released at once.
_FEW_MESSAGES: Final = 1000


class Publish(Protocol):
    """A function that passes a message to the router."""

    def __call__(
        self, topic_name: bytes, payload: bytes, qos: int, retain: int, received: bytes | None = None, /
    ) -> int:
        """Publish a message. Returns 0, or the reason code of MQTT 5 that says why it is not published.

        received: the packet, at QoS 1 and 2 only up to and including its topic name, if a subscriber at the same QoS
        gets the same bytes: no flag is set, its length is encoded as short as possible, and it has no properties.
        Raises MalformedPacket for an invalid topic name.
        """
        ...


class _Apart(NamedTuple):
    """The subscribers of a topic name that need more than its _Routes.

    mounted: by mount point, the subscribers behind it, which see another topic name. version5: see Route5.
    """

    mounted: dict[bytes, tuple[_Route, ...]]
    version5: list[Route5]

    def size(self) -> int:
        """Return about how many bytes this takes."""
        return _APART_SIZE * (1 + len(self.version5)) + _ROUTE_SIZE * sum(map(len, self.mounted.values()))


# Topics that only the broker itself publishes to.
_OWN: Final = b"$SYS/"


class Router:
    """Routes messages to subscribers. `dirty` lists the sessions with packets to flush, each once."""

    def __init__(self, context: BrokerContext) -> None:
        self.subscriptions: SubscriptionTrie[MessageQueue | Subscription] = SubscriptionTrie()
        self.shares = Shares(context, self.subscriptions)
        self.retained = RetainedMessages()
        self.room = Room(self.retained, context.stats)
        self.dirty = context.dirty
        self._config = context.config
        self._store = context.store
        self._stats = context.stats
        # The cache: a topic name in it is valid, and its subscribers may read it.
        self._routes: dict[bytes, _Routes] = {}
        self._apart: dict[bytes, _Apart] = {}
        # About how many bytes both take; names that are removed one by one are not subtracted.
        self._routes_size = 0
        # Work that takes more than one slice, such as to remove the subscriptions of ended sessions.
        self._work: deque[Iterator[None]] = deque()
        # The session of the MQTT 5 client whose message is being published (the packet loop sets it for a
        # whole read), and the properties of that message.
        self.source: Session | None = None
        # What is still to be flushed in slices.
        self._late: deque[Flushable] = deque()
        self._properties = NO_PROPERTIES
        # The session of the client whose packets are being processed.
        self.publisher: Session | None = None
        self._expiry = context.expiry
        # When retained messages expire, the earliest first; some of them may have been replaced.
        self._ends: DueTimes[bytes] = DueTimes()
        # The bound method publish(), made only once and not for each connection.
        self.publish_here = self.publish

    def publish(
        self,
        topic_name: bytes,
        payload: bytes,
        qos: int,
        retain: int,
        received: bytes | None = None,
        routes: _Routes | None = None,
        shown_name: bytes = b"",
    ) -> int:
        """Deliver a message to its subscribers. Raises MalformedPacket for an invalid topic name [MQTT-3.3.2-2].

        Returns 0, or the reason code of MQTT 5 that says why it is not published.

        Topic name and payload are shared by all subscribers: they never contain a subscriber's QoS or packet
        identifier. received: see Publish; of MQTT 5 if there is a `source`. To encode it anew would take 0.2 µs.
        routes, shown_name: deliver only to these subscribers, under that topic name.
        """
        if routes is None:
            routes = self._routes.get(topic_name)
            if routes is None:
                # An invalid name is not denied: it closes the connection.
                if topic_name.startswith(_OWN) and is_topic_name(topic_name):
                    self._stats.denied += 1
                    return ReasonCode.NOT_AUTHORIZED
                routes = self._find_routes(topic_name)
            if retain:
                self._retain(topic_name, payload, qos)
            if self._apart:
                self._publish_apart(topic_name, payload, qos, retain)
            shown_name = topic_name
        subscribers, version5 = routes
        flags = 0
        head = packet = head_at_1 = received5 = None
        lacking = b""
        if received is not None:
            if self.source is not None:
                received5 = received
            elif qos:
                head = received
            else:
                packet = received
        while True:
            if subscribers:
                for session, granted_qos in subscribers:
                    # [MQTT-3.8.4-6] the lower of the message's QoS and the subscription's.
                    if granted_qos > qos:
                        granted_qos = qos
                    if granted_qos:
                        if granted_qos == qos:
                            if head is None:
                                head = encode_publish_head(PUBLISH | qos << 1, shown_name, len(payload))
                            session.deliver(qos, head, topic_name, payload, flags)
                            continue
                        if head_at_1 is None:
                            head_at_1 = encode_publish_head(PUBLISH | 1 << 1, shown_name, len(payload))
                        session.deliver(1, head_at_1, topic_name, payload, flags)
                        continue
                    output = session.qos0_output
                    if output is None:
                        content = lacking + payload
                        head_at_0 = encode_publish_head(PUBLISH, shown_name, len(content))
                        session.deliver_qos0(head_at_0, topic_name, content, flags)
                        continue
                    if packet is None:
                        packet = encode_publish_head(PUBLISH, shown_name, len(payload)) + payload
                    output.append(packet)
                    if not session.dirty:
                        session.dirty = True
                        self.dirty.append(session)
            if not version5:
                return 0
            # Once more for the clients of MQTT 5, with the properties before the payload.
            subscribers, version5, flags = version5, (), HAS_PROPERTIES
            head = packet = head_at_1 = None
            if received5 is None:
                properties = self._properties
                payload = NOTHING + payload if properties is NO_PROPERTIES else encode_content(payload, *properties)
            elif qos:
                head = received5
                payload = NOTHING + payload
            else:
                # With it, hardly anybody needs the properties and the payload in one piece.
                packet, lacking = received5, NOTHING

    def _publish_apart(self, topic_name: bytes, payload: bytes, qos: int, retain: int) -> None:
        """Deliver a message to the subscribers in _Apart."""
        apart = self._apart.get(topic_name)
        if apart is None:
            return
        mounted, version5 = apart
        if topic_name not in self._routes:
            # _find_routes() has not cached this topic name.
            del self._apart[topic_name]
        if version5:
            self._publish_to_version5(version5, topic_name, payload, qos, retain)
        for mount, routes in mounted.items():
            self.publish(topic_name, payload, qos, 0, None, (routes, ()), topic_name[len(mount) :])

    def _publish_to_version5(
        self, routes: list[Route5], topic_name: bytes, payload: bytes, qos: int, retain: int
    ) -> None:
        source, (expiry, passed_on) = self.source, self._properties
        # Subscribers with the same identifiers share one content, and with the same mount point one head: in memory,
        # and as one message in the store.
        contents: dict[bytes, bytes] = {}
        heads: dict[tuple[int, int, int, int], bytes] = {}
        for route in routes:
            session, granted_qos, is_as_published, identifiers, own = route
            if session is source:
                if own is None:
                    continue
                _, granted_qos, is_as_published, identifiers, _ = own
            if granted_qos > qos:
                granted_qos = qos
            flags = shown_retain = retain if is_as_published else 0
            if session.protocol_level == 5:
                flags |= HAS_PROPERTIES
                content = contents.get(identifiers)
                if content is None:
                    content = contents[identifiers] = encode_content(payload, expiry, passed_on, identifiers)
            else:
                content = payload
            start = len(session.mount)
            head_key = granted_qos, shown_retain, start, len(content)
            head = heads.get(head_key)
            if head is None:
                first_byte = PUBLISH | granted_qos << 1 | shown_retain
                head = heads[head_key] = encode_publish_head(first_byte, topic_name[start:], len(content))
            if session.is_too_large(granted_qos, head, content):
                session.dropped += 1
                self._stats.dropped_too_large += 1
            elif granted_qos:
                session.deliver(granted_qos, head, topic_name, content, flags)
            elif session.qos0_output is None:
                session.deliver_qos0(head, topic_name, content, flags)
            else:
                session.qos0_output.append(head + content)
                session.mark_dirty()

    def publish_with(
        self,
        properties: MessageProperties,
        publish: Publish,
        topic_name: bytes,
        payload: bytes,
        qos: int,
        retain: int,
        received: bytes | None = None,
    ) -> int:
        """Publish a message with properties by calling `publish`. Returns its result, or QUOTA_EXCEEDED."""
        del received  # without the properties
        most = self._config.max_payload_size
        if most and len(payload) + len(properties.passed_on) > most:
            check_topic_name(topic_name, self._config.max_topic_levels)
            self._stats.dropped_too_large += 1
            return ReasonCode.QUOTA_EXCEEDED
        expiry = self._expiry
        before = expiry.deadline
        self._properties = properties
        if properties.expiry is not None:
            expiry.deadline = expiry.deadline_of(properties.expiry)
        try:
            return publish(topic_name, payload, qos, retain)
        finally:
            self._properties = NO_PROPERTIES
            expiry.deadline = before

    def publish_own(self, topic_name: bytes, payload: bytes) -> None:
        """Publish a value of the broker itself below `$SYS/`: retained, at QoS 0, and not stored.

        An empty payload removes the retained value.
        """
        if payload:
            self.retained.put(RetainedMessage(topic_name, payload, 0))
        else:
            self.retained.remove(topic_name)
        self._stats.retained = len(self.retained)
        routes, (mounted, version5) = self._match(topic_name)
        self.publish(topic_name, payload, 0, 0, None, routes, topic_name)
        for mount, behind in mounted.items():
            self.publish(topic_name, payload, 0, 0, None, (behind, ()), topic_name[len(mount) :])
        self._publish_to_version5(version5, topic_name, payload, 0, 0)

    def flush(self) -> None:
        """Write all collected packets, once for each session."""
        dirty = self.dirty
        if dirty:
            for session in dirty:
                session.flush()
            dirty.clear()

    @property
    def is_late(self) -> bool:
        """True while sessions are flushed in slices. What they get meanwhile, they get with it."""
        return bool(self._late)

    def flush_in_slices(self, then: Flushable) -> None:
        """Write all collected packets in slices, behind those that are being written so; then call then.flush()."""
        self._late.extend(self.dirty)
        self._late.append(then)
        self.dirty.clear()
        self.in_slices(self._flush_late())

    def _flush_late(self) -> Iterator[None]:
        while self._late:
            self._late.popleft().flush()
            yield

    def _find_routes(self, topic_name: bytes) -> _Routes:
        check_topic_name(topic_name, self._config.max_topic_levels)
        if self._routes_size >= _MOST_ROUTES_SIZE:
            self.forget_routes()
        routes, apart = self._match(topic_name)
        # A name below _OWN is not cached: publish() must check for each message whether its client may publish there.
        if len(topic_name) <= MAX_REMEMBERED and not topic_name.startswith(_OWN):
            self._routes[topic_name] = routes
            self._routes_size += _NAME_SIZE + len(topic_name) + _size(routes)
        if any(apart):
            self._apart[topic_name] = apart
            self._routes_size += apart.size()
        return routes

    def _match(self, topic_name: bytes) -> tuple[_Routes, _Apart]:
        """Return the subscribers of `topic_name` that may read it."""
        version3: list[_Route] = []
        plain: list[_Route] = []
        mounted: dict[bytes, list[_Route]] = {}
        version5: dict[MessageQueue, list[tuple[Subscription | None, int]]] = {}
        for subscriber, granted_qos in self.subscriptions.match(topic_name):
            subscription = subscriber if isinstance(subscriber, Subscription) else None
            session = subscriber.session if isinstance(subscriber, Subscription) else subscriber
            qos = granted_qos
            if session.has_ended:
                continue
            if session.rights is not None and not session.rights.may_read(topic_name):
                continue
            if session.mount:
                # The filter m/# also matches the topic m, which no client behind the mount point m/ can see.
                if not topic_name.startswith(session.mount) or topic_name == session.mount:
                    continue
                if topic_name.startswith(b"$", len(session.mount)):
                    seen = _seen_qos(session, subscription, topic_name)
                    if seen is None:
                        continue
                    qos = seen
            if subscription is not None or session.protocol_level == 5:
                version5.setdefault(session, []).append((subscription, qos))
            elif session.mount:
                mounted.setdefault(session.mount, []).append((session, qos))
            else:
                version3.append((session, qos))
        apart: list[Route5] = []
        for session, found in version5.items():
            if is_plain(session, found):
                plain.append((session, found[0][1]))
            else:
                apart.append(route5(session, found))
        routes = (tuple(version3), tuple(plain)) if version3 or plain else _NOBODY
        return routes, _Apart({mount: tuple(found) for mount, found in mounted.items()}, apart)

    def forget_routes(self) -> None:
        """Forget all routes, because the rights of sessions have changed."""
        self._routes.clear()
        self._apart.clear()
        self._routes_size = 0

    # Subscriptions

    def subscribe(self, session: Session, topic_filter: bytes, options: int, identifier: int = 0) -> None:
        """Add or replace a subscription [MQTT-3.8.4-3] and record it. options: as in SUBSCRIBE."""
        # Retain Handling belongs to one SUBSCRIBE, not to the subscription.
        options &= ~RETAIN_HANDLING
        self.add_subscription(session, topic_filter, options, identifier)
        if session.store is not None:
            session.store.set_subscription(session.number, topic_filter, options, identifier)

    def add_subscription(self, session: Session, topic_filter: bytes, options: int, identifier: int = 0) -> None:
        """Add or replace a subscription without recording it."""
        shared, qos = split_shared(topic_filter), options & 3
        before = session.options.pop(topic_filter, None)
        subscriber: MessageQueue | Subscription = session
        if options != qos or identifier:
            if not session.options:
                # The dictionary is made on demand: most sessions need none.
                session.options = {}
            subscriber = session.options[topic_filter] = Subscription(session, topic_filter, options, identifier)
        if topic_filter not in session.subscriptions:
            session.subscriptions_size += size_of(topic_filter)
            self.room.subscriptions_size += size_of(topic_filter)
        session.subscriptions[topic_filter] = qos
        if shared is None:
            is_new = self.subscriptions.subscribe(topic_filter, subscriber, qos)
            if subscriber is not (before or session):
                # The filter's previous subscription is in the trie as another subscriber.
                is_new = not self.subscriptions.unsubscribe(topic_filter, before or session)
        else:
            is_new = self.shares.join(session, topic_filter, shared[1], qos)
            topic_filter = shared[1]
        self._stats.subscriptions += is_new
        self._forget_routes(topic_filter)

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        """Remove a subscription and record that. Returns whether there was one; if not, it is no error (3.10.4)."""
        if session.subscriptions.pop(topic_filter, None) is None:
            return False
        if session.retained_delivery is not None:
            session.retained_delivery.cancel(topic_filter)
        self._remove_subscription(session, topic_filter)
        if session.store is not None:
            session.store.set_subscription(session.number, topic_filter, None)
        return True

    def remove_session(self, session: Session) -> None:
        """Remove subscriptions and waiting messages of a session that ends, many of them in slices.

        It gets no message any more. The caller must record the end of the session in the store.
        """
        session.has_ended = True
        topic_filters, session.subscriptions = session.subscriptions, {}
        removal = self._remove_contents(session, topic_filters)
        if len(topic_filters) <= _FEW and len(session.queue) <= _FEW_MESSAGES:
            deque(removal, 0)
            return
        self.forget_routes()
        self.in_slices(removal)

    def _remove_contents(self, session: Session, topic_filters: Iterable[bytes]) -> Iterator[None]:
        for topic_filter in topic_filters:
            self._remove_subscription(session, topic_filter)
            yield
        # The memory of a million messages takes 0.1 s to release.
        queue = session.queue
        while len(queue) > _FEW_MESSAGES:
            for _ in range(_FEW_MESSAGES):
                queue.pop()
            yield

    def in_slices(self, work: Iterator[None]) -> None:
        """Take the steps of `work` in later turns of the event loop, a slice in each, behind other work that waits."""
        self._work.append(work)
        if len(self._work) == 1:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Work for a slice."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE
        try:
            while self._work:
                for _ in self._work[0]:
                    if loop.time() >= until:
                        return
                self._work.popleft()
        finally:
            # Also after an error, such as of a permission hook: it ends the work at hand, and the rest goes on.
            if self._work:
                loop.call_soon(self._go_on)

    def stop_working(self) -> None:
        """Leave the rest of the work, because the broker stops: the store does not keep what is left of ended sessions.

        It keeps groups, but a group without a member ends at the next start.
        """
        deque(self._flush_late(), 0)
        self._work.clear()

    def _remove_subscription(self, session: Session, topic_filter: bytes) -> None:
        session.subscriptions_size -= size_of(topic_filter)
        self.room.subscriptions_size -= size_of(topic_filter)
        shared = split_shared(topic_filter)
        subscription = session.options.pop(topic_filter, None)
        if shared is None:
            was_there = self.subscriptions.unsubscribe(topic_filter, subscription or session)
        else:
            was_there = self.shares.leave(session, topic_filter, shared[1])
            topic_filter = shared[1]
        self._stats.subscriptions -= was_there
        self._forget_routes(topic_filter)

    def _forget_routes(self, topic_filter: bytes) -> None:
        if has_wildcard(topic_filter):
            self.forget_routes()
        else:
            self._routes.pop(topic_filter, None)
            self._apart.pop(topic_filter, None)

    # Retained messages

    def recover(self, retained: list[RetainedMessage]) -> None:
        """Restore the retained messages from the store."""
        for message in retained:
            self.retained.put(message)
            if message.expires_at is not None:
                self._expect_end(message.topic_name, message.expires_at)
        self._stats.retained = len(self.retained)

    def expire_retained(self) -> None:
        """Remove the retained messages that have expired [MQTT-3.3.2-5 of MQTT 5]. Called once a second."""
        now = self._expiry.now()
        for topic_name in self._ends.pop(now, _MOST_ENDS):
            message = self.retained.get(topic_name)
            if message is not None and message.expires_at is not None and message.expires_at <= now:
                self._stats.dropped_expired += 1
                self._retain(topic_name, b"", 0)

    def _expect_end(self, topic_name: bytes, expires_at: int) -> None:
        self._ends.add(expires_at, topic_name)
        if len(self._ends) > 2 * len(self.retained) + _FEW_ENDS:
            # Most of the times are of messages that were replaced: collect them again.
            self._ends.clear()
            for one in self.retained:
                if one.expires_at is not None:
                    self._ends.add(one.expires_at, one.topic_name)

    def _retain(self, topic_name: bytes, payload: bytes, qos: int) -> None:
        message = None
        if payload:
            expiry, passed_on = self._properties
            expires_at = None if expiry is None else self._expiry.end_of(expiry)
            message = RetainedMessage(topic_name, payload, qos, passed_on, expires_at)
            if not self.room.retain(self.publisher, message):
                message = None
            elif expires_at is not None:
                self._expect_end(topic_name, expires_at)
        else:
            self.room.forget_retained(self.publisher, topic_name)
        self._stats.retained = len(self.retained)
        if self._store.durable:
            self._store.set_retained(topic_name, message)


def _size(routes: _Routes) -> int:
    """Return about how many bytes the lists of subscribers take."""
    return _ROUTES_SIZE + _ROUTE_SIZE * sum(map(len, routes)) if any(routes) else 0


def _seen_qos(session: MessageQueue, subscription: Subscription | None, topic_name: bytes) -> int | None:
    """Return the highest QoS of a subscriber's filters that match a topic name behind its mount point; None for none.

    Needed for a name that begins with $ behind the mount point, which no wildcard at that place matches
    [MQTT-4.7.2-1]: the trie knows only whole names, in which the wildcard is not in the first level.
    """
    filters: dict[bytes, int] = {}
    if subscription is not None:
        filters = {subscription.topic_filter: subscription.options & 3}
    elif isinstance(session, SharedQueue):
        filters = {session.shared_filter: session.granted_qos}
    elif isinstance(session, Session):
        filters = {one: qos for one, qos in session.subscriptions.items() if one not in session.options}
    mount = session.mount
    name = split(topic_name[len(mount) :])
    found = (
        qos
        for one, qos in filters.items()
        if one.startswith(mount) and matches(split(one[len(mount) :]), name)  # not those that are shared
    )
    return max(found, default=None)
