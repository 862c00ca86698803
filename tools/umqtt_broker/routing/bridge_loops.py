"""Identifies the broker at the other end of a bridge, so that two brokers that bridge each other form no loop.

Each broker has an identifier. A bridge tells the remote broker its own, and one of this project answers with its own,
to this bridge alone. With MQTT 5 they are the user property `bridge` of CONNECT and CONNACK, before it they are
messages to `$bridge/CLIENT_IDENTIFIER/origin`. From then on the two sessions that lead to one broker, that of this
broker's bridge and that of the other broker's bridge here, have the same `origin`: what comes from there goes back by
neither of them, and what begins here goes there by one.

A persistent session remembers it as a subscription to `$origin/IDENTIFIER`, where nobody publishes.
"""

import secrets

from ..protocol.packets import PUBLISH, encode_publish_head
from ..protocol.packets5 import HAS_PROPERTIES, encode_content
from ..sessions.session import Session
from .routes5 import Route5

ORIGIN = b"$origin/"

# Not below $SYS: mosquitto cuts off a bridge that publishes there.
_PREFIX = b"$bridge/"
_SUFFIX = b"/origin"

_LONGEST_ID = 64


def topic_of(client_id: bytes) -> bytes:
    """Return where the bridge with this client identifier tells who it is."""
    return _PREFIX + client_id + _SUFFIX


class BridgeLoops:
    """The broker that each bridge leads to. broker_id: which broker this is."""

    def __init__(self) -> None:
        self.broker_id = secrets.token_hex(16).encode()
        # Sessions of this broker's own bridges, by the broker they lead to.
        self._own: dict[bytes, Session] = {}

    def recover(self, session: Session) -> None:
        """Restore what a session remembers: it belongs to a bridge even before its client is back."""
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
        """Leave out the second way to a broker that two sessions lead to: the one of lower QoS, or its own bridge."""
        chosen = routes
        for other in routes:
            own = self._own.get(other.session.origin) if other.session.origin is not None else None
            for route in routes:
                if route.session is own and own is not other.session:
                    worse = other if route.qos >= other.qos else route
                    chosen = [each for each in chosen if each is not worse]
        return chosen


def is_origin(topic_name: bytes, payload: bytes) -> bool:
    """Tell whether a bridge says with this message who it is."""
    return topic_name.endswith(_SUFFIX) and topic_name.startswith(_PREFIX) and is_broker_id(payload)


def is_broker_id(text: bytes) -> bool:
    """Tell whether this can be the identifier of a broker: it must not change the filter that remembers it."""
    return text.isalnum() and len(text) <= _LONGEST_ID
