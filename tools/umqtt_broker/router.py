"""From a PUBLISH to the sessions that get it: subscriptions, retained messages, shared encodings."""

from .errors import MalformedPacket
from .packets import PUBLISH, UINT16, encode_publish_head, encode_remaining_length
from .retained import RetainedMessage, RetainedMessages
from .session import Session
from .surroundings import Surroundings
from .topics import has_wildcard, is_topic_name
from .trie import SubscriptionTrie

# Topic names remembered with their subscribers. Past it the cache starts afresh: a client that invents a new
# topic name for every message must not fill the memory.
_MAX_ROUTES = 65536

_NONE: dict[bytes, "_Routes"] = {}


# Sessions with the QoS of their subscriptions.
_Routes = list[tuple[Session, int]]

# Topics that only the broker itself publishes to.
_OWN = b"$SYS/"


class Router:
    """Who gets what. `dirty` lists the sessions with packets to flush, each once."""

    def __init__(self, around: Surroundings) -> None:
        self.subscriptions: SubscriptionTrie[Session] = SubscriptionTrie()
        self.retained = RetainedMessages()
        self.dirty = around.dirty
        self._store = around.store
        self._stats = around.stats
        # A topic name is checked when it enters; a hit is a valid name with those who may and want to read it.
        self._routes: dict[bytes, _Routes] = {}
        # The same for sessions behind a mount point, who see another name: by topic name, then by mount point.
        self._mounted: dict[bytes, dict[bytes, _Routes]] = {}
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
    ) -> None:
        """Hand a message to everyone subscribed. Raises MalformedPacket for a bad name [MQTT-3.3.2-2].

        The message is shared: QoS and packet identifier of a subscriber never get into it.
        routes, shown_name: hand it to these instead, under that name.
        """
        if routes is None:
            routes = self._routes.get(topic_name)
            if routes is None:
                if topic_name.startswith(_OWN) and is_topic_name(topic_name):
                    self._stats.denied += 1
                    return
                routes = self._find_routes(topic_name)
            if retain:
                self._retain(topic_name, payload, qos)
            if self._mounted:
                self._publish_mounted(topic_name, payload, qos)
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
                        PUBLISH | granted_qos << 1, shown_name, len(payload)
                    )
                session.deliver(granted_qos, head, topic_name, payload, 0)
                continue
            direct = session.direct
            if direct is None:
                session.deliver_qos0(encode_publish_head(PUBLISH, shown_name, len(payload)), topic_name, payload, 0)
                continue
            if qos0_packet is None:
                length = len(shown_name)
                qos0_packet = b"".join(
                    (b"\x30", encode_remaining_length(2 + length + len(payload)), UINT16[length], shown_name, payload)
                )
            direct.append(qos0_packet)
            if not session.dirty:
                session.dirty = True
                self.dirty.append(session)

    def _publish_mounted(self, topic_name: bytes, payload: bytes, qos: int) -> None:
        for mount, routes in self._mounted.get(topic_name, _NONE).items():
            self.publish(topic_name, payload, qos, 0, routes, topic_name[len(mount) :])

    def publish_own(self, topic_name: bytes, payload: bytes) -> None:
        """Publish a figure of the broker itself: retained at QoS 0 under `$SYS/`, where no client may; not stored."""
        if payload:
            self.retained.put(RetainedMessage(topic_name, payload, 0))
        else:
            self.retained.remove(topic_name)
        self._stats.retained = len(self.retained)
        routes, mounted = self._match(topic_name)
        self.publish(topic_name, payload, 0, 0, routes, topic_name)
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
        if not is_topic_name(topic_name):
            raise MalformedPacket("invalid topic name")
        if len(self._routes) >= _MAX_ROUTES:
            self.forget_routes()
        routes, mounted = self._match(topic_name)
        self._routes[topic_name] = routes
        if mounted:
            self._mounted[topic_name] = mounted
        return routes

    def _match(self, topic_name: bytes) -> tuple[_Routes, dict[bytes, _Routes]]:
        """Return who wants `topic_name` and may read it, and the same behind mount points, by mount point."""
        routes: _Routes = []
        mounted: dict[bytes, _Routes] = {}
        for route in self.subscriptions.match(topic_name):
            session = route[0]
            if session.rights is not None and not session.rights.may_read(topic_name):
                continue
            if not session.mount:
                routes.append(route)
            # The filter m/# also matches the topic m, which nobody behind the mount point m/ can see.
            elif topic_name.startswith(session.mount) and topic_name != session.mount:
                mounted.setdefault(session.mount, []).append(route)
        return routes, mounted

    def forget_routes(self) -> None:
        """Find all routes anew: what sessions may read has changed."""
        self._routes.clear()
        self._mounted.clear()

    # Subscriptions

    def subscribe(self, session: Session, topic_filter: bytes, qos: int) -> None:
        """Add or replace a subscription [MQTT-3.8.4-3] and record it."""
        self.add_subscription(session, topic_filter, qos)
        session.subscriptions[topic_filter] = qos
        if session.store is not None:
            session.store.set_subscription(session.number, topic_filter, qos)

    def add_subscription(self, session: Session, topic_filter: bytes, qos: int) -> None:
        """Add a subscription that the session and the store know of already."""
        if self.subscriptions.subscribe(topic_filter, session, qos):
            self._stats.subscriptions += 1
        self._forget_routes(topic_filter)

    def unsubscribe(self, session: Session, topic_filter: bytes) -> None:
        """Remove a subscription and record that. One that does not exist is no error (3.10.4)."""
        if session.subscriptions.pop(topic_filter, None) is None:
            return
        if session.greeting is not None:
            session.greeting.cancel(topic_filter)
        self._remove_subscription(session, topic_filter)
        if session.store is not None:
            session.store.set_subscription(session.number, topic_filter, None)

    def remove_session(self, session: Session) -> None:
        """Remove every subscription of a session that ends. The store is told of the end by the caller."""
        for topic_filter in session.subscriptions:
            self._remove_subscription(session, topic_filter)
        session.subscriptions = {}

    def _remove_subscription(self, session: Session, topic_filter: bytes) -> None:
        if self.subscriptions.unsubscribe(topic_filter, session):
            self._stats.subscriptions -= 1
        self._forget_routes(topic_filter)

    def _forget_routes(self, topic_filter: bytes) -> None:
        if has_wildcard(topic_filter):
            self.forget_routes()
        else:
            self._routes.pop(topic_filter, None)
            self._mounted.pop(topic_filter, None)

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
