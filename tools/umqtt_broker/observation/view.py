"""A read-only view of a broker's current state, for its observation, programs that run it, and tests."""

import asyncio
from collections.abc import Iterator
from typing import Protocol

from ..clients.connection import Connection
from ..clients.registry import Sessions
from ..protocol.messages import RetainedMessage
from ..routing.router import Router
from ..sessions.queue import MessageQueue
from ..sessions.session import Session, Subscription
from ..sessions.shared_queue import SharedQueue
from ..settings.broker import BrokerConfig, Listener
from ..stats import Stats
from ..store import Store
from ..transport.listeners import BoundListener


class ObservedBroker(Protocol):
    """The parts that figures are read from, and on which an operator can act: publish, kick, discard, clear."""

    config: BrokerConfig
    stats: Stats
    store: Store
    standby: str
    router: Router
    sessions: Sessions
    connections: dict[Connection, None]
    bound_listeners: list[BoundListener]
    loop: asyncio.AbstractEventLoop


class BrokerView:
    """Reads a broker and changes nothing. Use it only in the broker's event loop.

    stats: the counters. The returned collections are new, but the objects in them are the broker's own: only read them.
    """

    def __init__(self, broker: ObservedBroker) -> None:
        self.stats: Stats = broker.stats
        self._broker = broker

    @property
    def listening_ports(self) -> list[int]:
        """The TCP port of each listener, in the order of the configuration; 0 for a Unix socket."""
        return [bound_listener.port for bound_listener in self._broker.bound_listeners]

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The settings of each listener."""
        return self._broker.config.all_listeners()

    @property
    def certificates_expire_at(self) -> list[float | None]:
        """When the certificate of each listener expires, in seconds since 1970; None without TLS."""
        found = [bound_listener.expires_at for bound_listener in self._broker.bound_listeners]
        return found or [None] * len(self.listeners)  # a standby does not listen

    @property
    def connections(self) -> list[Connection]:
        """Every network connection, whether its client has sent CONNECT or not."""
        return list(self._broker.connections)

    @property
    def sessions(self) -> list[Session]:
        """Every session, connected and away."""
        return list(self._broker.sessions)

    def session(self, client_id: bytes, mount_point: bytes = b"") -> Session | None:
        """The session of a client, None if there is none."""
        return self._broker.sessions.get(client_id, mount_point)

    @property
    def groups(self) -> list[SharedQueue]:
        """Every shared subscription."""
        return list(self._broker.router.shares)

    def subscribers(self, topic_name: bytes) -> list[tuple[MessageQueue, int]]:
        """The sessions and groups that subscribe to a topic name, each with its QoS."""
        found = self._broker.router.subscriptions.match(topic_name)
        return [(one.session if isinstance(one, Subscription) else one, qos) for one, qos in found]

    @property
    def subscription_nodes(self) -> int:
        """Nodes of the tree of subscriptions, at most two a filter; 0 without a subscription."""
        return self._broker.router.subscriptions.node_count()

    @property
    def retained_count(self) -> int:
        """Retained messages, `$SYS` included."""
        return len(self._broker.router.retained)

    @property
    def retained(self) -> list[RetainedMessage]:
        """Every retained message, `$SYS` included."""
        return list(self._broker.router.retained)

    def find_retained(self, topic_filter: bytes) -> Iterator[RetainedMessage | None]:
        """Search retained messages in small steps. Each step yields a matching message, or None."""
        return self._broker.router.retained.walk(topic_filter)

    @property
    def is_durable(self) -> bool:
        """True if the store outlives the broker."""
        return self._broker.store.durable

    @property
    def standby(self) -> str:
        """Why the broker does not serve yet, for instance because another broker has the store; "" if it serves."""
        return self._broker.standby

    @property
    def store_backlog(self) -> int:
        """The approximate number of bytes that are recorded and not yet written to the store."""
        return self._broker.store.backlog

    @property
    def store_failure(self) -> str:
        """Why the last transaction failed; "" if it succeeded."""
        return self._broker.store.failure
