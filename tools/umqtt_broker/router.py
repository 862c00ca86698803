"""From a PUBLISH to the sessions that get it: subscriptions, retained messages, shared encodings."""

from .errors import MalformedPacket
from .packets import PUBLISH, UINT16, Will, encode_publish_head, encode_remaining_length
from .retained import RetainedMessage, RetainedMessages
from .session import Session
from .stats import Stats
from .store import Store
from .topics import has_wildcard, is_topic_name
from .trie import SubscriptionTrie

# Topic names remembered with their subscribers. Past it the cache starts afresh: a client that invents a new
# topic name for every message must not fill the memory.
_MAX_ROUTES = 65536


class Router:
    """Who gets what. `dirty` lists the sessions with packets to flush, each once."""

    def __init__(self, store: Store, stats: Stats) -> None:
        self.dirty: list[Session] = []
        self.subscriptions: SubscriptionTrie[Session] = SubscriptionTrie()
        self.retained = RetainedMessages()
        self._store = store
        self._stats = stats
        # A topic name is checked when it enters; a hit is a valid name with its subscribers.
        self._routes: dict[bytes, list[tuple[Session, int]]] = {}

    def publish(self, topic_name: bytes, payload: bytes, qos: int, retain: int) -> None:
        """Hand a message to everyone subscribed. Raises MalformedPacket for a bad name [MQTT-3.3.2-2].

        The message is shared: QoS and packet identifier of a subscriber never get into it.
        """
        routes = self._routes.get(topic_name)
        if routes is None:
            routes = self._find_routes(topic_name)
        if retain:
            self._retain(topic_name, payload, qos)
        qos0_packet = None
        heads: list[bytes | None] = [None, None, None]
        sent = 0
        for session, granted_qos in routes:
            # [MQTT-3.8.4-6] the lower of the message's QoS and the subscription's.
            if granted_qos > qos:
                granted_qos = qos
            if granted_qos:
                head = heads[granted_qos]
                if head is None:
                    head = heads[granted_qos] = encode_publish_head(
                        PUBLISH | granted_qos << 1, topic_name, len(payload)
                    )
                session.deliver(granted_qos, head, topic_name, payload, 0)
                continue
            out = session.out
            if out is None:
                session.drop_qos0()
                continue
            if qos0_packet is None:
                length = len(topic_name)
                qos0_packet = b"".join(
                    (
                        b"\x30",
                        encode_remaining_length(2 + length + len(payload)),
                        UINT16[length],
                        topic_name,
                        payload,
                    )
                )
            out.append(qos0_packet)
            sent += 1
            if not session.dirty:
                session.dirty = True
                self.dirty.append(session)
        self._stats.messages_out += sent

    def publish_will(self, will: Will) -> None:
        """Publish a will as if its client had (3.1.2.5)."""
        self._stats.wills += 1
        self.publish(will.topic_name, will.payload, will.qos, int(will.retain))

    def flush(self) -> None:
        """Write everything collected, once for each session."""
        dirty = self.dirty
        if dirty:
            for session in dirty:
                session.flush()
            dirty.clear()

    def _find_routes(self, topic_name: bytes) -> list[tuple[Session, int]]:
        if not is_topic_name(topic_name):
            raise MalformedPacket("invalid topic name")
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        routes = self._routes[topic_name] = self.subscriptions.match(topic_name)
        return routes

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
            self._routes.clear()
        else:
            self._routes.pop(topic_filter, None)

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

    def send_retained(self, session: Session, topic_filter: bytes, granted_qos: int) -> list[bytes]:
        """Queue the retained messages of a new subscription, with the retain flag [MQTT-3.3.1-6, -8].

        Returns those of QoS 0 as packets, for the caller to send after its SUBACK.
        """
        packets: list[bytes] = []
        for topic_name, payload, message_qos in self.retained.match(topic_filter):
            qos = min(granted_qos, message_qos)
            head = encode_publish_head(PUBLISH | qos << 1 | 1, topic_name, len(payload))
            if qos:
                session.deliver(qos, head, topic_name, payload, 1)
            else:
                packets.append(head + payload)
        self._stats.messages_out += len(packets)
        return packets
