"""Who may connect, publish and subscribe. The broker asks; a program or a configuration answers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..protocol.connect import Connect
from ..protocol.packets import ACCEPTED
from ..protocol.reason_codes import ReasonCode


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

    address: IP address, or the path of the Unix socket. identity: the common name of the client's certificate, which
    the listener has verified; None without one. listener: where the connection came in.
    """

    address: str
    identity: str | None
    listener: PeerListener

    def username(self, packet: Connect) -> bytes | None:
        """Return the user name by which rights are looked up: the certificate's, if the listener says so.

        An empty name is none, as it is in mosquitto.
        """
        if self.listener.use_identity_as_username:
            return self.identity.encode() if self.identity else None
        return packet.user_name or None


class Rights:
    """What one client may do. Allows everything: derive from it and override what must be decided.

    One object for each client identifier and user name; its answers may not change while it lives. A reload makes new
    objects. Each method runs in the event loop, may_publish for every message, and must return at once.
    """

    __slots__ = ()

    def may_publish(self, topic_name: bytes) -> bool:
        """Return True if the client may publish to `topic_name`. If not: acknowledged and counted, not routed."""
        del topic_name
        return True

    def may_read(self, topic_name: bytes) -> bool:
        """Return True if the client may receive messages of `topic_name`. Called once per route, not per message."""
        del topic_name
        return True

    def grant(self, topic_filter: bytes, qos: int) -> int:
        """Return the QoS granted to a subscription, or 0x80 to deny it [MQTT-3.9.3-2]."""
        del topic_filter
        return qos


class Exchange(Protocol):
    """An enhanced authentication that has begun (MQTT 5, 4.12).

    user_name: who the client is, once step() has returned SUCCESS.
    """

    user_name: bytes

    def step(self, data: bytes, now: float, /) -> tuple[int, bytes]:
        """Take the client's authentication data. now: the event loop's time. Must return at once.

        Returns a reason code and the data for the client: CONTINUE_AUTHENTICATION as long as it has more to say,
        SUCCESS, or why it is not let in.
        """
        ...


class Permission:
    """Allows everything. Derive from it and override what must be decided.

    Each method runs in the event loop and must return at once; connect() may return a future instead.
    """

    def connect(self, packet: Connect, peer: Peer) -> int | asyncio.Future[int]:
        """Return the CONNACK return code for a CONNECT: 0 lets the client in, 4 or 5 does not.

        A future of the code makes this client wait, and nobody else.
        """
        del packet, peer
        return ACCEPTED

    def authenticate(self, method: bytes, packet: Connect, peer: Peer) -> Exchange | int:
        """Begin enhanced authentication for a CONNECT that names this method, instead of connect(); or again later.

        Returns the exchange, which decides who the client is, or a reason code: BAD_AUTHENTICATION_METHOD for a
        method that there is not.
        """
        del method, packet, peer
        return ReasonCode.BAD_AUTHENTICATION_METHOD

    def rights(self, client_id: bytes, username: bytes | None) -> Rights | None:
        """Return what a client may do; None for everything, which then costs nothing for each message."""
        del client_id, username
        return None

    def prepare_reload(self) -> Callable[[], None]:
        """Read again what the rules come from. Returns what puts them in force; until it is called the old ones stay.

        In two steps, so that of several permissions all change or none does. Raises ConfigError if the new rules are
        unusable; the function returned may not fail.
        """
        return _nothing

    def reload(self) -> None:
        """Reload the rules of this permission only. Raises ConfigError. Override prepare_reload() instead."""
        self.prepare_reload()()

    def close(self) -> None:
        """Release threads and files; the broker has stopped."""


def _nothing() -> None:
    """Do nothing: there is nothing to put in force."""
