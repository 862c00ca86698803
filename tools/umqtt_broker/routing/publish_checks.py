"""Checks between a client's PUBLISH and the router, chosen once per connection; most clients need none."""

from collections.abc import Callable
from typing import Final

from ..access.permission import Rights
from ..protocol.reason_codes import ReasonCode
from ..protocol.topics import MAX_REMEMBERED, check_topic_name, mounted_name
from ..sessions.session import Session
from ..settings.broker import BrokerConfig
from ..stats import Stats
from .router import Publish, Router

# Allowed topic names that are kept for one connection.
_MAX_ALLOWED: Final = 256


def publisher(
    session: Session, router: Router, stats: Stats, config: BrokerConfig, on_denied: Callable[[bytes], None]
) -> Publish:
    """Return the function that checks a message of this client and passes it to the router.

    on_denied: called with a topic name to which the client may not publish. The function is valid until the client's
    rights or the settings change.
    """
    publish: Publish = router.publish_here
    if config.max_payload_size or not config.retain_available:
        publish = _limited(publish, stats, config)
    if session.rights is not None:
        publish = _permitted(publish, stats, config, session.rights, on_denied)
    if session.mount:
        publish = _mounted(publish, config, session.mount)
    return publish


def _permitted(
    publish: Publish, stats: Stats, config: BrokerConfig, rights: Rights, on_denied: Callable[[bytes], None]
) -> Publish:
    # A Rights object never changes its answers, so an allowed name is kept: the next message costs one lookup.
    allowed: set[bytes] = set()

    def permitted(topic_name: bytes, payload: bytes, qos: int, retain: int, received: bytes | None = None) -> int:
        if topic_name in allowed:
            return publish(topic_name, payload, qos, retain, received)
        check_topic_name(topic_name, config.max_topic_levels)
        if not rights.may_publish(topic_name):
            stats.denied += 1
            on_denied(topic_name)
            return ReasonCode.NOT_AUTHORIZED
        if len(topic_name) <= MAX_REMEMBERED:
            if len(allowed) >= _MAX_ALLOWED:
                allowed.clear()
            allowed.add(topic_name)
        return publish(topic_name, payload, qos, retain, received)

    return permitted


def _limited(publish: Publish, stats: Stats, config: BrokerConfig) -> Publish:
    most, keeps_retained = config.max_payload_size, config.retain_available

    def limited(topic_name: bytes, payload: bytes, qos: int, retain: int, received: bytes | None = None) -> int:
        if most and len(payload) > most:
            check_topic_name(topic_name, config.max_topic_levels)
            stats.dropped_too_large += 1
            return ReasonCode.QUOTA_EXCEEDED
        return publish(topic_name, payload, qos, retain if keeps_retained else 0, received)

    return limited


def _mounted(publish: Publish, config: BrokerConfig, mount: bytes) -> Publish:
    def mounted(topic_name: bytes, payload: bytes, qos: int, retain: int, received: bytes | None = None) -> int:
        del received  # it contains the name that the client sees
        check_topic_name(topic_name, config.max_topic_levels)
        return publish(mounted_name(mount, topic_name), payload, qos, retain)

    return mounted
