"""Who may connect, publish and subscribe. The broker asks; a program or a configuration answers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..protocol.connect import Connect
from ..protocol.packets import ACCEPTED


class PeerListener(Protocol):
    """The part of a client's listener that a permission may read."""

    host: str
    port: int
    path: str
    mount_point: bytes
    allow_anonymous: bool
    use_identity_as_username: bool


@dataclass(frozen=True, slots=True)
class Peer:
    """The client at the other end of a network connection.

    address: IP address, or the path of the Unix socket. identity: the name in the client's verified certificate, if the
    listener uses it as user name, else None: the common name, or the whole subject with use_subject_as_username.
    listener: the listener that accepted the connection.
    """

    address: str
    identity: str | None
    listener: PeerListener

    def username(self, packet: Connect) -> bytes | None:
        """Return the user name by which rights are looked up; None without one.

        It is the certificate's name if the listener says so, else that of the CONNECT. As in mosquitto, an empty name
        counts as none.
        """
        if self.listener.use_identity_as_username:
            return self.identity.encode() if self.identity else None
        return packet.user_name or None


class Rights:
    """What one client may do. Allows everything: derive from it and override what must be decided.

    There is one object for each pair of client identifier and user name. Its answers must never change; a reload makes
    new objects. Each method runs in the event loop and must return at once; may_publish() runs for every message.
    """

    __slots__ = ()

    def may_publish(self, topic_name: bytes) -> bool:
        """Return True if the client may publish to `topic_name`.

        Otherwise the message is acknowledged and counted as denied, but not routed.
        """
        del topic_name
        return True

    def may_read(self, topic_name: bytes) -> bool:
        """Return True if the client may receive messages of `topic_name`.

        Called when the subscribers of a topic name are looked up, not for each message.
        """
        del topic_name
        return True

    def grant(self, topic_filter: bytes, qos: int) -> int:
        """Return the QoS granted to a subscription, or 0x80 to deny it [MQTT-3.9.3-2]."""
        del topic_filter
        return qos


class Permission:
    """Allows everything. Derive from it and override what must be decided.

    Each method runs in the event loop and must return at once; connect() may return a future instead.
    """

    @property
    def proves_user_names(self) -> bool:
        """Whether connect() lets only the owner of a user name in with it. If not, clients count by their addresses."""
        return False

    def connect(self, packet: Connect, peer: Peer) -> int | asyncio.Future[int]:
        """Return the CONNACK return code for a CONNECT: 0 lets the client in, any other (4 or 5, say) refuses it.

        If this returns a future of the code, only this client waits for it.
        """
        del packet, peer
        return ACCEPTED

    def rights(self, client_id: bytes, username: bytes | None) -> Rights | None:
        """Return what a client may do; None for everything, which needs no check of each message."""
        del client_id, username
        return None

    def prepare_reload(self) -> Callable[[], None]:
        """Read the rules again. Returns a function that puts them in force; until it is called the old ones apply.

        There are two steps so that either all of several permissions change or none does. Raises ConfigError if the new
        rules are unusable. The returned function must not fail.
        """
        return _nothing

    def reload(self) -> None:
        """Reload the rules of this permission only. Raises ConfigError. Override prepare_reload() instead."""
        self.prepare_reload()()

    def close(self) -> None:
        """Release threads and files; the broker has stopped."""


def _nothing() -> None:
    """Do nothing: there is nothing to put in force."""
