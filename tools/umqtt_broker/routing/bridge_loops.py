"""Identifies the broker at the other end of a bridge, so that two brokers that bridge each other form no loop.

Each broker has an identifier. A bridge sends its broker's identifier to the remote broker; a remote broker of this
project answers with its own, to this bridge alone. With MQTT 5, both are the user property `bridge` of CONNECT and
CONNACK; in earlier versions they are messages to `$bridge/CLIENT_IDENTIFIER/origin`.

Two sessions of a broker may lead to the same other broker: the session of its own bridge to that broker, and the
session of that broker's bridge to it. Both have that broker's identifier as `origin`. A message from that broker is
sent back through neither session, and a message for that broker is sent through only one of them.

A persistent session keeps its origin as a subscription to `$origin/IDENTIFIER`, to which no message is published.
"""

import secrets

from ..protocol.packets import PUBLISH, encode_publish_head
from ..protocol.packets5 import HAS_PROPERTIES, encode_content
from ..sessions.queue import MessageQueue
from ..sessions.session import Session
from .routes5 import Route5

ORIGIN = b"$origin/"

# Not below $SYS: mosquitto cuts off a bridge that publishes there.
_PREFIX = b"$bridge/"
_SUFFIX = b"/origin"

_LONGEST_ID = 64


def topic_of(client_id: bytes) -> bytes:
    """Return the topic name to which the bridge with this client identifier publishes its broker's identifier."""
    return _PREFIX + client_id + _SUFFIX


class BridgeLoops:
    """The brokers that bridges lead to. broker_id: the identifier of this broker."""

    def __init__(self) -> None:
        self.broker_id = secrets.token_hex(16).encode()
        # Sessions of this broker's own bridges, by the broker they lead to.
        self._own: dict[bytes, Session] = {}

    def recover(self, session: Session) -> None:
        """Restore the origin of a recovered session: it belongs to a bridge even before its client is back."""
        for topic_filter in session.subscriptions:
            if topic_filter.startswith(ORIGIN):
                session.origin = topic_filter.removeprefix(ORIGIN)
                session.is_bridge = True

    def own(self, session: Session) -> None:
        """Note that this session belongs to a bridge of this broker."""
        if session.origin is not None:
            self._own[session.origin] = session

    def answer(self, source: Session, topic_name: bytes) -> None:
        """Send this broker's identifier to a bridge of another broker."""
        is_version5 = source.protocol_level == 5
        content = encode_content(self.broker_id) if is_version5 else self.broker_id
        head = encode_publish_head(PUBLISH, topic_name, len(content))
        source.deliver_qos0(head, topic_name, content, HAS_PROPERTIES if is_version5 else 0)

    def choose(self, routes: list[Route5]) -> list[Route5]:
        """Return `routes` without a second route to the same broker.

        Of two sessions that lead to one broker, the route with the lower QoS is left out; at the same QoS, that of the
        other broker's bridge.
        """
        others = [route for route in routes if route.session.origin is not None] if self._own else []
        if len(others) < 2:
            return routes
        by_session = {route.session: route for route in others}
        worse: set[MessageQueue] = set()
        for other in others:
            assert other.session.origin is not None  # see above
            own = self._own.get(other.session.origin)
            if own is not None and own is not other.session and (route := by_session.get(own)) is not None:
                worse.add(other.session if route.qos >= other.qos else own)
        return [route for route in routes if route.session not in worse]


def is_origin(topic_name: bytes, payload: bytes) -> bool:
    """Tell whether this is the message by which a bridge gives its broker's identifier."""
    return topic_name.endswith(_SUFFIX) and topic_name.startswith(_PREFIX) and is_broker_id(payload)


def is_broker_id(text: bytes) -> bool:
    """Tell whether this can be the identifier of a broker: letters and digits, since it becomes part of a filter."""
    return text.isalnum() and len(text) <= _LONGEST_ID
