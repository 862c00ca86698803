"""Which broker is at the other end of a bridge, so that two brokers that bridge each other start no loop.

Each broker has an identifier. A bridge tells the remote broker its own, in a message to
`$bridge/CLIENT_IDENTIFIER/origin`; one of this project answers the same way, to this bridge alone. From then on both
sessions that lead to one broker, that of this broker's bridge and that of its bridge's client here, have the same
`origin`: what comes from there does not go back there, by neither of them, and what begins here goes there by one.

A persistent session remembers it as a subscription to `$origin/IDENTIFIER`, where nobody publishes.
"""

import secrets

from ..protocol.packets import PUBLISH, encode_publish_head
from ..sessions.session import Session

ORIGIN = b"$origin/"

# Not below $SYS: mosquitto cuts off a bridge that publishes there.
_PREFIX = b"$bridge/"
_SUFFIX = b"/origin"

Route = tuple[Session, int]


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
        """Take over what a session remembers. It is a bridge's before its client is back."""
        for topic_filter in session.subscriptions:
            if topic_filter.startswith(ORIGIN):
                session.origin = topic_filter.removeprefix(ORIGIN)
                session.is_bridge = True

    def own(self, session: Session) -> None:
        """A bridge of this broker has this session."""
        if session.origin is not None:
            self._own[session.origin] = session

    def answer(self, source: Session, topic_name: bytes) -> None:
        """Tell a bridge of another broker which one this is."""
        payload = self.broker_id
        source.deliver_qos0(encode_publish_head(PUBLISH, topic_name, len(payload)) + payload, topic_name, b"", 0)

    def choose(self, bridged: list[Route]) -> list[Route]:
        """Leave out the second way to a broker that two sessions lead to: the one of lower QoS, or its own bridge."""
        qos_of = dict(bridged)
        chosen = bridged
        for session, qos in bridged:
            own = self._own.get(session.origin) if session.origin is not None else None
            if own is not None and own is not session and own in qos_of:
                worse = session if qos_of[own] >= qos else own
                chosen = [route for route in chosen if route[0] is not worse]
        return chosen


def is_origin(topic_name: bytes, payload: bytes) -> bool:
    """Tell whether a bridge says with this message who it is."""
    return topic_name.endswith(_SUFFIX) and topic_name.startswith(_PREFIX) and payload.isalnum()
