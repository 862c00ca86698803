"""Describes sessions, listeners and groups of a BrokerView, for listings."""

from collections.abc import Iterator
from functools import cache
from itertools import islice

from ..sessions.session import Session
from ..sessions.shared_queue import SharedQueue
from ..settings.broker import Listener
from ..stats import Stats
from .view import BrokerView

_DROPPED = "dropped_"


@cache
def broker_version() -> str:
    """Return the version of the installed project, or "unknown" in a bare copy of the source. It is read once."""
    # Imported here: the import takes a tenth of a start, and most programs need no version.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("umqtt-robust")
    except PackageNotFoundError:
        return "unknown"


def text(name: bytes) -> str:
    """Return a client identifier, user name or topic as text. It was checked to be UTF-8 when it was received."""
    return name.decode("utf-8", "replace")


def dropped_by_reason(stats: Stats) -> dict[str, int]:
    """Return the messages dropped so far by reason: the counters of Stats that begin with `dropped_`."""
    return {
        name.removeprefix(_DROPPED): getattr(stats, name)
        for name in sorted(Stats.__slots__)
        if name.startswith(_DROPPED)
    }


def is_slow(session: Session, window: int) -> bool:
    """Return True if a connected client takes messages more slowly than they come.

    Either it does not read its socket, or its window of `window` messages in flight is full and more messages wait.
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
    """Yield all listeners of the configuration with their names."""
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
    """Return the row of a listing for a shared subscription, with `most` members at most.

    in_flight of the group counts its QoS 1 messages only: a QoS 2 message belongs to the member that gets it.
    in_flight of a member counts all its messages, also those that are not of this group.
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
    """Return the value of the field `name` of session_row(), to sort by; -1 where the row has null.

    now: the event loop's time.
    """
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
    """Return the row of a listing for one session.

    window: the messages in flight at which its window is full. now: the event loop's time in seconds. Without a
    connection, all fields that describe the connection are None.
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
