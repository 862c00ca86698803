"""The broker: listeners, sessions by client identifier, CONNECT, takeover, shutdown."""

import asyncio
import errno
import secrets
import socket
from types import TracebackType

from .config import BrokerConfig
from .connection import Connection
from .errors import BrokerError, ConfigError, PortInUse
from .packets import ACCEPTED, IDENTIFIER_REJECTED, Connect
from .router import Router
from .session import Session
from .stats import Stats
from .store import open_store

_BACKLOG = 4096

# Seconds the last packets have to leave when the broker stops.
_STOP_TIMEOUT = 2.0


class Broker:
    """A broker in the running asyncio event loop: an asynchronous context manager, or start() and stop().

    stats: its counters. host, port: where it listens once started.
    """

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.config = config or BrokerConfig()
        self.stats = Stats()
        self.stats.count_queued_with(lambda: sum(session.queued for session in self._sessions.values()))
        self.store = open_store(self.config.store)
        self.router = Router(self.store, self.stats)
        permission = self.config.permission
        self.may_publish = permission.may_publish if permission.checks_publish else None
        self.host = self.config.host
        self.port = self.config.port
        self._sessions: dict[bytes, Session] = {}
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
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
        # The port first: a store is not touched by a broker that cannot serve it.
        listener = _listen(self.config.host, self.config.port)
        try:
            self._recover()
            self._server = await self.loop.create_server(lambda: Connection(self), sock=listener, backlog=_BACKLOG)
        except BaseException:
            listener.close()
            raise
        self.host, self.port = listener.getsockname()[:2]

    def _recover(self) -> None:
        recovered = self.store.open(self.loop, self.stats, self.router.flush)
        for found in recovered.sessions:
            session = self._new_session(found.client_id, clean=False)
            session.restore(found)
            for topic_filter, qos in found.subscriptions:
                self.router.add_subscription(session, topic_filter, qos)
        for message in recovered.retained:
            self.router.retained.put(message)
        self.stats.retained = len(self.router.retained)

    async def stop(self) -> None:
        """Stop listening, publish the wills of those still connected, commit, close. Raises StoreError."""
        if self._server is None:
            return
        self._server.close()
        connections = list(self._connections)
        # All wills first, so that those who are still connected see them.
        for connection in connections:
            if connection.will is not None:
                will, connection.will = connection.will, None
                self.router.publish_will(will)
        self.router.flush()
        for connection in connections:
            connection.close()
        self._server = None
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
        self.detach(connection)
        if not self._connections:
            self._all_gone.set()

    def connect(self, connection: Connection, packet: Connect) -> tuple[int, bool]:
        """Give a connection its session. Returns the CONNACK return code and session_present."""
        client_id = packet.client_id
        if not client_id:
            # [MQTT-3.1.3-8] without an identifier there is nothing a session could be kept under.
            may_name = packet.clean_session and packet.protocol_level == 4
            if not may_name or not self.config.allow_zero_length_client_id:
                return IDENTIFIER_REJECTED, False
            client_id = b"auto-" + secrets.token_hex(8).encode()
        return_code = self.config.permission.connect(packet, connection.peer)
        if return_code != ACCEPTED:
            return return_code, False
        session = self._sessions.get(client_id)
        if session is not None and session.connection is not None:
            # [MQTT-3.1.4-2] Its session is taken from the old connection before the new one gets it, so
            # whatever the old one still does, it does to no session.
            self.stats.takeovers += 1
            session.connection.abort()
            session = self._sessions.get(client_id)
        session_present = session is not None and not packet.clean_session
        if session is not None and packet.clean_session:
            self._discard(session)
            session = None
        if session is None:
            session = self._new_session(client_id, packet.clean_session)
            if session.store is not None:
                session.number = session.store.new_session(client_id)
        session.attach(connection)
        connection.session = session
        # [MQTT-3.2.2-2] MQTT 3.1 has no session_present: the byte is reserved there.
        return ACCEPTED, session_present and packet.protocol_level == 4

    def detach(self, connection: Connection) -> None:
        """Take the session from a connection that ends, and publish its will. Safe to call again."""
        session, connection.session = connection.session, None
        if session is None:
            return
        session.detach()
        if session.clean:
            self._discard(session)
        will, connection.will = connection.will, None
        if will is not None:
            self.router.publish_will(will)
            self.router.flush()

    # Sessions

    def _new_session(self, client_id: bytes, clean: bool) -> Session:
        store = self.store if self.store.durable and not clean else None
        session = Session(client_id, clean, store, self.config, self.stats, self.router.dirty)
        self._sessions[client_id] = session
        self.stats.sessions = len(self._sessions)
        return session

    def _discard(self, session: Session) -> None:
        self.router.remove_session(session)
        del self._sessions[session.client_id]
        self.stats.sessions = len(self._sessions)
        if session.store is not None:
            session.store.discard_session(session.number)


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket. Raises PortInUse, ConfigError or BrokerError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"cannot find an address for host {host!r} ({error}) — use an IP address") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from error
        raise BrokerError(
            f"cannot listen on {host} port {port} ({error.strerror}) — choose another with --host or -p"
        ) from error
    return listener
