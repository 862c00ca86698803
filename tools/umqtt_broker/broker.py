"""The broker: start, the network connections it has, shutdown."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from .bridge import Bridges
from .config import BrokerConfig
from .connection import Connection
from .listeners import Place, open_places
from .reload import apply
from .router import Router
from .sessions import Sessions
from .stats import Stats
from .store import open_store

# Seconds the last packets have to leave when the broker stops.
_STOP_TIMEOUT = 2.0


class Service(Protocol):
    """Something that runs beside the broker, as long as it runs: the observation, the bridges."""

    async def start(self) -> None:
        """Begin; the broker serves in a moment. Raises BrokerError."""

    async def stop(self) -> None:
        """End."""


class Broker:
    """A broker in the running asyncio event loop: an asynchronous context manager, or start() and stop().

    stats: its counters. host, port: where its first listener listens once started.
    """

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.config = config or BrokerConfig()
        self.stats = Stats()
        self.store = open_store(self.config.store)
        self.router = Router(self.store, self.stats)
        self.sessions = Sessions(self)
        self.stats.count_queued_with(lambda: self.sessions.queued)
        permission = self.config.permission
        self.may_publish = permission.may_publish if permission.checks_publish else None
        self.host = self.config.host
        self.port = self.config.port
        self._connections: set[Connection] = set()
        self._places: list[Place] = []
        self.bridges = Bridges(self)
        self._services: list[Service] = [self.bridges]
        self._all_gone = asyncio.Event()

    async def __aenter__(self) -> "Broker":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, bound: Callable[[], None] | None = None) -> None:
        """Open the store and listen. Raises ConfigError, StoreError, PortInUse or BrokerError.

        bound: called when the ports are bound and nothing else is done yet: the moment to give up root.
        """
        self.config.validate()
        self.loop = asyncio.get_running_loop()
        # The ports first: a store is not touched by a broker that cannot serve it.
        self._places = open_places(self, bound)
        first = self._places[0]
        self.host, self.port = (first.listener.path, 0) if first.listener.path else first.sockets[0].getsockname()[:2]
        started: list[Service] = []
        store_is_open = False
        try:
            recovered = self.store.open(self.loop, self.stats, self.router.flush)
            store_is_open = True
            self.sessions.recover(recovered)
            self.router.recover(recovered.retained)
            for service in self._services:
                await service.start()
                started.append(service)
            for place in self._places:
                await place.serve()
        except BaseException:
            for place in self._places:
                place.close()
            self._places = []
            for service in reversed(started):
                await service.stop()
            if store_is_open:
                await self.store.close()
            raise

    def addresses(self) -> list[str]:
        """Return where it listens, one text for each address: `127.0.0.1:1883`, `127.0.0.1:8883 (tls)`."""
        return [address for place in self._places for address in place.addresses()]

    def reload(self, config: BrokerConfig | None = None) -> list[str]:
        """Read permissions and certificates again, and take over what differs in `config`; drop no connection.

        Returns the names of settings that differ and need a restart. Raises ConfigError, and changes nothing, if
        anything is wrong with the new settings.
        """
        return apply(self, self._places, config)

    async def stop(self) -> None:
        """Stop listening, publish the wills of those still connected, commit, close. Raises StoreError."""
        if not self._places:
            return
        for place in self._places:
            place.close()
        for service in reversed(self._services):
            await service.stop()
        connections = list(self._connections)
        # All wills first, so that those who are still connected see them.
        for connection in connections:
            if connection.will is not None:
                will, connection.will = connection.will, None
                self.router.publish_will(will)
        self.router.flush()
        for connection in connections:
            connection.close()
        self._places = []
        try:
            await self.store.close()
        finally:
            await self._wait_for_connections()

    async def _wait_for_connections(self) -> None:
        """Let the last packets leave; cut the connections that do not take them."""
        if not self._connections:
            return
        self._all_gone = asyncio.Event()
        try:
            await asyncio.wait_for(self._all_gone.wait(), _STOP_TIMEOUT)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()

    # Connections

    def admit(self, connection: Connection) -> bool:
        """Count a new network connection. Returns False if there are too many."""
        if len(self._connections) >= self.config.max_connections:
            self.stats.connections_refused += 1
            return False
        self._connections.add(connection)
        self.stats.connections_accepted += 1
        self.stats.connections = len(self._connections)
        return True

    def forget(self, connection: Connection) -> None:
        """A network connection is gone."""
        self._connections.discard(connection)
        self.stats.connections = len(self._connections)
        self.sessions.detach(connection)
        if not self._connections:
            self._all_gone.set()
