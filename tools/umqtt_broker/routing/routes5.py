"""Routes of sessions that use MQTT 5 or its subscription options."""

from typing import NamedTuple

from ..protocol.packets5 import NO_LOCAL, RETAIN_AS_PUBLISHED, encode_identifier
from ..sessions.queue import MessageQueue
from ..sessions.session import Session, Subscription


class Route5(NamedTuple):
    """A session or group, with the combined options of its subscriptions that match a topic name.

    It gets a message once, at the highest QoS. retain_as_published: a subscription has this option. identifiers: the
    subscription identifiers, encoded [MQTT-3.3.4-4]. own: the route for messages that the client itself publishes,
    without its no-local subscriptions [MQTT-3.8.3-3]; None: it does not get these messages.
    """

    session: MessageQueue
    qos: int
    retain_as_published: bool
    identifiers: bytes
    own: "Route5 | None"


def route5(session: MessageQueue, found: list[tuple[Subscription | None, int]]) -> Route5:
    """Return the route of a session. found: its subscriptions that match a topic name, each with its QoS."""
    if not isinstance(session, Session):
        # A group: the option is that of the member that gets the message, see SharedQueue.
        return _add_up(session, found, None)._replace(retain_as_published=True)
    local = [each for each in found if each[0] is None or not each[0].options & NO_LOCAL]
    own = _add_up(session, local, None) if local else None
    return _add_up(session, found, own)


def is_plain(session: MessageQueue, found: list[tuple[Subscription | None, int]]) -> bool:
    """Return True if a client of MQTT 5 gets messages like one of 3.1.1, only with properties before the payload.

    That holds for most clients: a single subscription matches, it has no options but a QoS, and the client accepts
    packets of any size.
    """
    return (
        len(found) == 1
        and found[0][0] is None
        and isinstance(session, Session)
        and not (session.max_packet_size or session.mount)
    )


def _add_up(session: MessageQueue, found: list[tuple[Subscription | None, int]], own: Route5 | None) -> Route5:
    subscriptions = [subscription for subscription, _ in found if subscription is not None]
    return Route5(
        session,
        max(qos for _, qos in found),
        any(one.options & RETAIN_AS_PUBLISHED for one in subscriptions),
        b"".join(encode_identifier(one.identifier) for one in subscriptions),
        own,
    )
