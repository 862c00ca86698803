"""Describes a session, a listener, a group or a bridge of a BrokerView, for listings."""

from collections.abc import Iterator
from itertools import islice

from ..sessions.session import Session
from ..sessions.shared_queue import SharedQueue
from ..settings.broker import Listener
from ..stats import Stats
from .view import BrokerView

_DROPPED = "dropped_"


def broker_version() -> str:
    """Return the version of the installed project, or "unknown" in a bare copy of the source."""
    # Imported here: it takes a tenth of a start, and most of what imports the broker asks for no version.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("umqtt-robust")
    except PackageNotFoundError:
        return "unknown"


def text(name: bytes) -> str:
    """Return a client identifier or topic as text. Both were checked to be UTF-8 when they came in."""
    return name.decode("utf-8", "replace")


def dropped_by_reason(stats: Stats) -> dict[str, int]:
    """Return the messages dropped so far by reason: the counters of Stats that begin with `dropped_`."""
    return {
        name.removeprefix(_DROPPED): getattr(stats, name)
        for name in sorted(Stats.__slots__)
        if name.startswith(_DROPPED)
    }


def is_slow(session: Session, window: int) -> bool:
    """Tell whether a connected client takes messages more slowly than they come.

    Either it does not read what was written to it, or its window is full and more waits behind it.
    """
    connection = session.connection
    if connection is None:
        return False
    return connection.congested or (len(session.in_flight) >= window and session.queued > 0)


def listener_name(listener: Listener) -> str:
    """Return the name of a listener as configured: `HOST:PORT`, or the path of a Unix socket."""
    if listener.path:
        return listener.path
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    return f"{host}:{listener.port}"


def listeners(view: BrokerView) -> Iterator[tuple[str, Listener]]:
    """Yield all listeners with their names; there are as many as the configuration says."""
    for listener in view.listeners:
        yield listener_name(listener), listener


def names(session: Session) -> Iterator[str]:
    """Yield the texts by which a session can be searched: client identifier, user name, address."""
    yield text(session.client_id)
    if session.username is not None:
        yield text(session.username)
    if session.connection is not None:
        yield session.connection.peer


def may_read(session: Session, topic_name: bytes) -> bool:
    """Return True if a session's rights and mount point let it have messages with this topic name."""
    if not topic_name.startswith(session.mount):
        return False
    return session.rights is None or session.rights.may_read(topic_name)


def group_row(group: SharedQueue, most: int) -> dict[str, object]:
    """Return what a listing says of a shared subscription, with `most` members at most.

    in_flight: of this group at QoS 1; what a member has at QoS 2 is its own. A member's in_flight is all it has.
    """
    return {
        "name": text(group.client_id),
        "mount_point": text(group.mount),
        "qos": group.granted_qos,
        "queued": group.queued,
        "queued_bytes": group.queued_bytes,
        "in_flight": len(group.holders),
        "members": [
            {
                "client_id": text(member.client_id),
                "connected": member.connection is not None,
                "qos": qos,
                "in_flight": len(member.in_flight),
            }
            for member, qos in islice(group.members.items(), most)
        ],
        "member_count": len(group.members),
    }


def sort_value(session: Session, name: str, now: float) -> float:
    """Return what sessions are sorted by: a number of `session_row`, -1 where that has none."""
    if name == "queued":
        return session.queued
    if name == "queued_bytes":
        return session.queued_bytes
    if name == "in_flight":
        return len(session.in_flight)
    connection = session.connection
    if connection is None:
        return -1
    if name == "messages_received":
        return connection.messages_in
    if name == "messages_sent":
        return connection.messages_out
    return max(now - connection.connected_at, 0.0)


def session_row(session: Session, window: int, now: float) -> dict[str, object]:
    """Return what a listing says of one session. `now`: the event loop's time in seconds.

    connected_seconds is null for a session without a connection, and so is everything of its connection.
    """
    connection = session.connection
    username = session.username
    return {
        "client_id": text(session.client_id),
        "mount_point": text(session.mount),
        "connected": connection is not None,
        "clean_session": session.clean,
        "username": None if username is None else text(username),
        "address": None if connection is None else connection.peer,
        "listener": None if connection is None else listener_name(connection.listener),
        "connected_seconds": None if connection is None else round(max(0.0, now - connection.connected_at), 1),
        "keep_alive": None if connection is None else connection.keep_alive,
        "slow": is_slow(session, window),
        "held_back": connection is not None and connection.is_held_back,
        "queued": session.queued,
        "queued_bytes": session.queued_bytes,
        "in_flight": len(session.in_flight),
        "subscriptions": len(session.subscriptions),
        "messages_received": None if connection is None else connection.messages_in,
        "messages_sent": None if connection is None else connection.messages_out,
    }
