"""From a PUBLISH to the sessions that get it: subscriptions, retained messages, shared encodings."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator

from ..core.context import BrokerContext
from ..core.turns import SLICE
from ..protocol.messages import RetainedMessage
from ..protocol.packets import PUBLISH, encode_publish_head
from ..protocol.topic_filters import matches, split
from ..protocol.topics import MAX_REMEMBERED, check_topic_name, has_wildcard, is_topic_name, split_shared
from ..sessions.session import Session
from ..sessions.shared_queue import SharedQueue
from .bridge_loops import ORIGIN, BridgeLoops, is_origin
from .retained import RetainedMessages
from .shared_groups import Shares
from .subscriptions import SubscriptionTrie

# Topic names remembered with their subscribers. Past it the cache starts afresh: a client that invents a new
# topic name for every message must not fill the memory.
_MAX_ROUTES = 65536

_NONE: dict[bytes, "_Routes"] = {}


# Sessions with the QoS of their subscriptions.
_Routes = list[tuple[Session, int]]

# Subscriptions that are removed at once when their session ends: about half a millisecond.
_FEW = 100

# Topics that only the broker itself publishes to, but for those where bridges say that they are there.
_OWN = b"$SYS/"
_BRIDGES = b"$SYS/broker/connection/"


class Router:
    """Who gets what. `dirty` lists the sessions with packets to flush, each once."""

    def __init__(self, context: BrokerContext) -> None:
        self.subscriptions: SubscriptionTrie[Session] = SubscriptionTrie()
        self.shares = Shares(context, self.subscriptions)
        self.retained = RetainedMessages()
        self.bridge_loops = BridgeLoops()
        self.dirty = context.dirty
        self._config = context.config
        self._store = context.store
        self._stats = context.stats
        # A topic name is checked when it enters; a hit is a valid name with those who may and want to read it.
        self._routes: dict[bytes, _Routes] = {}
        # The same for sessions behind a mount point, who see another name: by topic name, then by mount point.
        self._mounted: dict[bytes, dict[bytes, _Routes]] = {}
        # And for bridges, who see the retain flag and do not get their own messages back.
        self._bridged: dict[bytes, _Routes] = {}
        # Of sessions that have ended.
        self._removals: deque[Iterator[None]] = deque()
        # The bridge whose message is being published.
        self._source: Session | None = None
        # publish() made once, and not for each connection.
        self.publish_here = self.publish

    def publish(
        self,
        topic_name: bytes,
        payload: bytes,
        qos: int,
        retain: int,
        routes: _Routes | None = None,
        shown_name: bytes = b"",
        shown_retain: int = 0,
    ) -> None:
        """Hand a message to everyone subscribed. Raises MalformedPacket for a bad name [MQTT-3.3.2-2].

        The message is shared: QoS and packet identifier of a subscriber never get into it.
        routes, shown_name, shown_retain: hand it to these instead, under that name and with that retain flag.
        """
        if routes is None:
            routes = self._routes.get(topic_name)
            if routes is None:
                if topic_name.startswith(_OWN) and not self._may_publish_own(topic_name):
                    self._stats.denied += 1
                    return
                routes = self._find_routes(topic_name)
            if retain:
                self._retain(topic_name, payload, qos)
            if self._mounted or self._bridged:
                self._publish_apart(topic_name, payload, qos, retain)
            shown_name = topic_name
        qos0_packet = None
        heads: list[bytes | None] = [None, None, None]
        for session, granted_qos in routes:
            # [MQTT-3.8.4-6] the lower of the message's QoS and the subscription's.
            if granted_qos > qos:
                granted_qos = qos
            if granted_qos:
                head = heads[granted_qos]
                if head is None:
                    head = heads[granted_qos] = encode_publish_head(
                        PUBLISH | granted_qos << 1 | shown_retain, shown_name, len(payload)
                    )
                session.deliver(granted_qos, head, topic_name, payload, shown_retain)
                continue
            output = session.qos0_output
            if output is None:
                head = encode_publish_head(PUBLISH | shown_retain, shown_name, len(payload))
                session.deliver_qos0(head, topic_name, payload, shown_retain)
                continue
            if qos0_packet is None:
                qos0_packet = encode_publish_head(PUBLISH | shown_retain, shown_name, len(payload)) + payload
            output.append(qos0_packet)
            if not session.dirty:
                session.dirty = True
                self.dirty.append(session)

    def _publish_apart(self, topic_name: bytes, payload: bytes, qos: int, retain: int) -> None:
        """Hand a message to those who do not see it as it is: behind mount points, and bridges."""
        mounted = self._mounted.get(topic_name, _NONE)
        bridged = self._bridged.get(topic_name, ())
        if topic_name not in self._routes:
            # Not to be remembered.
            self._mounted.pop(topic_name, None)
            self._bridged.pop(topic_name, None)
        for mount, routes in mounted.items():
            self.publish(topic_name, payload, qos, 0, routes, topic_name[len(mount) :])
        source = self._source
        others = [route for route in bridged if not _is_same(route[0], source)]
        if others:
            self.publish(topic_name, payload, qos, 0, others, topic_name, retain)

    def publish_from(self, source: Session, topic_name: bytes, payload: bytes, qos: int, retain: int) -> None:
        """Publish what a bridge brings: it does not go back where it came from."""
        if is_origin(topic_name, payload):
            self.set_origin(source, payload)
            self.bridge_loops.answer(source, topic_name)
            return
        self._source = source
        try:
            self.publish(topic_name, payload, qos, retain)
        finally:
            self._source = None

    def set_origin(self, session: Session, origin: bytes) -> None:
        """A bridge leads to this broker."""
        if session.origin == origin:
            return
        if session.origin is not None:
            self.unsubscribe(session, ORIGIN + session.origin)
        session.origin = origin
        if not session.clean:
            self.subscribe(session, ORIGIN + origin, 0)
        self.forget_routes()

    def _may_publish_own(self, topic_name: bytes) -> bool:
        # An invalid name is not denied: it closes the connection.
        return not is_topic_name(topic_name) or (self._source is not None and topic_name.startswith(_BRIDGES))

    def publish_own(self, topic_name: bytes, payload: bytes) -> None:
        """Publish a figure of the broker itself: retained at QoS 0 under `$SYS/`, where no client may; not stored."""
        if payload:
            self.retained.put(RetainedMessage(topic_name, payload, 0))
        else:
            self.retained.remove(topic_name)
        self._stats.retained = len(self.retained)
        routes, mounted, bridged = self._match(topic_name)
        self.publish(topic_name, payload, 0, 0, routes + bridged, topic_name)
        for mount, behind in mounted.items():
            self.publish(topic_name, payload, 0, 0, behind, topic_name[len(mount) :])

    def flush(self) -> None:
        """Write everything collected, once for each session."""
        dirty = self.dirty
        if dirty:
            for session in dirty:
                session.flush()
            dirty.clear()

    def _find_routes(self, topic_name: bytes) -> _Routes:
        check_topic_name(topic_name, self._config.max_topic_levels)
        if len(self._routes) >= _MAX_ROUTES:
            self.forget_routes()
        routes, mounted, bridged = self._match(topic_name)
        # A name below _OWN must not be found the short way: not everyone may publish to it.
        if len(topic_name) <= MAX_REMEMBERED and not topic_name.startswith(_OWN):
            self._routes[topic_name] = routes
        if mounted:
            self._mounted[topic_name] = mounted
        if bridged:
            self._bridged[topic_name] = bridged
        return routes

    def _match(self, topic_name: bytes) -> tuple[_Routes, dict[bytes, _Routes], _Routes]:
        """Return who wants `topic_name` and may read it; behind mount points, by mount point; and bridges."""
        routes: _Routes = []
        bridged: _Routes = []
        mounted: dict[bytes, _Routes] = {}
        for route in self.subscriptions.match(topic_name):
            session, _ = route
            if session.has_ended:
                continue
            if session.rights is not None and not session.rights.may_read(topic_name):
                continue
            if session.is_bridge:
                bridged.append(route)
            elif not session.mount:
                routes.append(route)
            # The filter m/# also matches the topic m, which nobody behind the mount point m/ can see.
            elif topic_name.startswith(session.mount) and topic_name != session.mount:
                if topic_name.startswith(b"$", len(session.mount)):
                    qos = _seen_qos(session, topic_name)
                    if qos is None:
                        continue
                    route = session, qos
                mounted.setdefault(session.mount, []).append(route)
        return routes, mounted, self.bridge_loops.choose(bridged) if len(bridged) > 1 else bridged

    def forget_routes(self) -> None:
        """Find all routes anew: what sessions may read has changed."""
        self._routes.clear()
        self._mounted.clear()
        self._bridged.clear()

    # Subscriptions

    def subscribe(self, session: Session, topic_filter: bytes, qos: int) -> None:
        """Add or replace a subscription [MQTT-3.8.4-3] and record it."""
        self.add_subscription(session, topic_filter, qos)
        session.subscriptions[topic_filter] = qos
        if session.store is not None:
            session.store.set_subscription(session.number, topic_filter, qos)

    def add_subscription(self, session: Session, topic_filter: bytes, qos: int) -> None:
        """Add a subscription that the session and the store know of already."""
        shared = split_shared(topic_filter)
        if shared is None:
            is_new = self.subscriptions.subscribe(topic_filter, session, qos)
        else:
            is_new = self.shares.join(session, topic_filter, shared[1], qos)
            topic_filter = shared[1]
        self._stats.subscriptions += is_new
        self._forget_routes(topic_filter)

    def unsubscribe(self, session: Session, topic_filter: bytes) -> None:
        """Remove a subscription and record that. One that does not exist is no error (3.10.4)."""
        if session.subscriptions.pop(topic_filter, None) is None:
            return
        if session.retained_delivery is not None:
            session.retained_delivery.cancel(topic_filter)
        self._remove_subscription(session, topic_filter)
        if session.store is not None:
            session.store.set_subscription(session.number, topic_filter, None)

    def remove_session(self, session: Session) -> None:
        """Remove every subscription of a session that ends, very many in slices; it gets no message any more.

        The store is told of the end by the caller.
        """
        session.has_ended = True
        topic_filters, session.subscriptions = session.subscriptions, {}
        removal = self._remove_subscriptions(session, topic_filters)
        if len(topic_filters) <= _FEW:
            deque(removal, 0)
            return
        self.forget_routes()
        self._removals.append(removal)
        if len(self._removals) == 1:
            asyncio.get_running_loop().call_soon(self._go_on_removing)

    def _remove_subscriptions(self, session: Session, topic_filters: Iterable[bytes]) -> Iterator[None]:
        for topic_filter in topic_filters:
            self._remove_subscription(session, topic_filter)
            yield

    def _go_on_removing(self) -> None:
        """Remove subscriptions of ended sessions for a slice."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE
        while self._removals:
            for _ in self._removals[0]:
                if loop.time() >= until:
                    loop.call_soon(self._go_on_removing)
                    return
            self._removals.popleft()

    def _remove_subscription(self, session: Session, topic_filter: bytes) -> None:
        shared = split_shared(topic_filter)
        if shared is None:
            was_there = self.subscriptions.unsubscribe(topic_filter, session)
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
            self._mounted.pop(topic_filter, None)
            self._bridged.pop(topic_filter, None)

    # Retained messages

    def recover(self, retained: list[RetainedMessage]) -> None:
        """Take over the retained messages that the store had kept."""
        for message in retained:
            self.retained.put(message)
        self._stats.retained = len(self.retained)

    def _retain(self, topic_name: bytes, payload: bytes, qos: int) -> None:
        if payload:
            message = RetainedMessage(topic_name, payload, qos)
            self.retained.put(message)
        else:
            message = None
            self.retained.remove(topic_name)
        self._stats.retained = len(self.retained)
        if self._store.durable:
            self._store.set_retained(topic_name, message)


def _seen_qos(session: Session, topic_name: bytes) -> int | None:
    """Return the highest QoS of the filters that reach a name as it is seen behind a mount point; None if none does.

    The trie knows whole names only: its wildcards reach names that begin with $ there [MQTT-4.7.2-1].
    """
    filters = session.subscriptions
    if isinstance(session, SharedQueue):
        filters = {session.shared_filter: session.granted_qos}
    mount = session.mount
    name = split(topic_name[len(mount) :])
    found = (
        qos
        for one, qos in filters.items()
        if one.startswith(mount) and matches(split(one[len(mount) :]), name)  # not those that are shared
    )
    return max(found, default=None)


def _is_same(session: Session, source: Session | None) -> bool:
    """Tell whether a bridge leads back to where a message came from: itself, or another to the same broker."""
    return source is not None and (
        session is source or (session.origin is not None and session.origin == source.origin)
    )
