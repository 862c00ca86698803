"""The broker: start, the network connections it has, shutdown."""

import asyncio
import socket
from types import TracebackType

from .config import BrokerConfig, Listener
from .connection import Connection
from .listeners import BACKLOG, open_socket
from .router import Router
from .sessions import Sessions
from .stats import Stats
from .store import open_store

# Seconds the last packets have to leave when the broker stops.
_STOP_TIMEOUT = 2.0


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
        self._servers: list[asyncio.Server] = []
        self._all_gone = asyncio.Event()

    async def __aenter__(self) -> "Broker":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store and listen. Raises ConfigError, StoreError, PortInUse or BrokerError."""
        self.config.validate()
        self.loop = asyncio.get_running_loop()
        sockets: list[socket.socket] = []
        try:
            # The ports first: a store is not touched by a broker that cannot serve it.
            for listener in self.config.all_listeners():
                sockets.append(open_socket(listener))
            recovered = self.store.open(self.loop, self.stats, self.router.flush)
            self.sessions.recover(recovered)
            self.router.recover(recovered.retained)
            for listener, listening in zip(self.config.all_listeners(), sockets, strict=True):
                self._servers.append(await self._serve(listener, listening))
        except BaseException:
            for listening in sockets:
                listening.close()
            raise
        self.host, self.port = sockets[0].getsockname()[:2]

    async def _serve(self, listener: Listener, listening: socket.socket) -> asyncio.Server:
        return await self.loop.create_server(lambda: Connection(self, listener), sock=listening, backlog=BACKLOG)

    async def stop(self) -> None:
        """Stop listening, publish the wills of those still connected, commit, close. Raises StoreError."""
        if not self._servers:
            return
        for server in self._servers:
            server.close()
        connections = list(self._connections)
        # All wills first, so that those who are still connected see them.
        for connection in connections:
            if connection.will is not None:
                will, connection.will = connection.will, None
                self.router.publish_will(will)
        self.router.flush()
        for connection in connections:
            connection.close()
        self._servers = []
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
