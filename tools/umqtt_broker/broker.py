"""The broker: its start, its network connections and its shutdown."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable

from .access.shares import Shares
from .clients.connection import Connection
from .clients.registry import Sessions
from .core.context import BrokerContext
from .core.timers import Deadlines
from .core.turns import Turns
from .log import RefusalLog
from .observation import Observation
from .observation.view import BrokerView
from .reload import apply, permissions
from .routing.router import Router
from .settings.broker import BrokerConfig, Listener
from .stats import Stats
from .store import Store, open_store
from .transport.listeners import BoundListener, open_listeners
from .transport.peers import client_share

# Seconds that connections have to send their last packets when the broker stops.
_STOP_TIMEOUT = 2.0


class Broker:
    """A broker in the running asyncio event loop: an asynchronous context manager, or start() and stop().

    store: where sessions are kept, None: as the settings say. listen: opens the listeners. clock: returns the seconds
    since 1970, None: the machine's. With these and its event loop, a broker gets all time and all bytes from outside.
    stats: its counters. view: reads its sessions, subscriptions and messages. host, port: where its first listener
    listens once started. bound_listeners, connections: for the broker's own modules; other programs use `view`.
    """

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        store: Store | None = None,
        listen: Callable[..., list[BoundListener]] = open_listeners,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.config = config or BrokerConfig()
        self.stats = Stats()
        self.store = open_store(self.config.store, self.config.accept_loss) if store is None else store
        self.context = BrokerContext(self.config, self.stats, self.store)
        self.context.expiry.clock = clock or self.context.expiry.clock
        self._listen = listen
        self.router = Router(self.context)
        self.sessions = Sessions(self.context, self.router)
        self.stats.count_queued_with(lambda: self.sessions.queued)
        self.host = self.config.host
        self.port = self.config.port
        # A dict, so that wills and last packets leave in the order in which the clients came.
        self.connections: dict[Connection, None] = {}
        self._connections_of: Counter[int] = Counter()
        # The connections that are not logged in, by the address of the client: all, and those of each listener.
        self._unfinished: Shares[Connection] = Shares()
        self._unfinished_of: defaultdict[int, Shares[Connection]] = defaultdict(Shares)
        self._ticking: asyncio.TimerHandle | None = None
        # Why the broker does not serve (another one has the store), or "" when it serves.
        self.standby = ""
        self.bound_listeners: list[BoundListener] = []
        self.view = BrokerView(self)
        self.observation = Observation(self, self.view)
        self.refusals = RefusalLog()
        self.denials = RefusalLog()
        self._all_gone = asyncio.Event()

    async def __aenter__(self) -> "Broker":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(
        self,
        bound: Callable[[], None] | None = None,
        on_standby: Callable[[str], None] = lambda reason: None,
        *,
        is_patient: bool = False,
    ) -> None:
        """Open the store and listen. Raises ConfigError, StoreError, PortInUse or BrokerError.

        If several brokers share the store, waits first until no other broker has it: see Store.acquire, also for
        is_patient. on_standby: called with the reason when that wait begins or its reason changes. bound: called when
        the ports are bound and before the store is opened: the moment to give up root.
        """
        self.config.validate()
        self.loop = asyncio.get_running_loop()
        self.deadlines = Deadlines(self.loop)
        self.turns = Turns(self.loop)

        def on_waiting(reason: str) -> None:
            self.standby = reason
            on_standby(reason)

        try:
            if self.store.is_shared:
                self.standby = "the store is being opened"
                await self.observation.serve()
            await self.store.acquire(on_waiting, is_patient=is_patient)
            await self._start(bound)
        except BaseException:
            await self.observation.stop()
            raise
        self.standby = ""

    async def _start(self, bound: Callable[[], None] | None) -> None:
        """Bind, recover and serve. See start()."""
        # The ports first: a broker that cannot listen must not change the store.
        self.bound_listeners = self._listen(
            self.config, self.stats, self.refusals, self.new_connection, self.make_room, bound
        )
        first = self.bound_listeners[0]
        self.host, self.port = (first.listener.path, 0) if first.listener.path else first.sockets[0].getsockname()[:2]
        store_is_open = False
        try:
            recovered = self.store.open(self.loop, self.stats, self.router.flush)
            store_is_open = True
            self.context.expiry.begin()
            self.sessions.recover(recovered)
            self.router.recover(recovered.retained)
            self.sessions.publish_recovered_wills(recovered.wills)
            self._tick()
            await self.observation.start()
            for bound_listener in self.bound_listeners:
                await bound_listener.serve()
        except BaseException:
            for bound_listener in self.bound_listeners:
                bound_listener.close()
            self.bound_listeners = []
            self._stop_ticking()
            await self.observation.stop()
            if store_is_open:
                await self.store.close()
            raise

    def addresses(self) -> list[str]:
        """Return where the broker listens, one text for each address: `127.0.0.1:1883`, `127.0.0.1:8883 (tls)`."""
        return [address for bound_listener in self.bound_listeners for address in bound_listener.addresses()]

    def reload(self, config: BrokerConfig | None = None) -> list[str]:
        """Read permissions and certificates again, and apply the settings that differ in `config`.

        config: the new settings; None: no new settings. No connection is closed. Returns the names of settings that
        differ and need a restart. Raises ConfigError, and changes nothing, if anything is wrong with the new settings.
        """
        return apply(self.config, config, self.bound_listeners, self.sessions.rights_changed)

    async def stop(self) -> None:
        """Stop listening, publish the wills of connected clients, commit, and close. Raises StoreError."""
        if not self.bound_listeners:
            return
        for bound_listener in self.bound_listeners:
            bound_listener.close()
        await self.observation.stop()
        connections = list(self.connections)
        # All wills first, so that clients that are still connected get them.
        for connection in connections:
            if connection.session is not None:
                self.sessions.publish_will(connection.session)
        self.router.flush()
        self.router.stop_working()
        for connection in connections:
            connection.stop()
        self.bound_listeners = []
        self._stop_ticking()
        try:
            await self.store.close()
        finally:
            await self._wait_for_connections()
            for permission in permissions(self.config):
                permission.close()

    async def abandon(self) -> None:
        """End at once without answering any client: another broker has the store and the sessions."""
        for bound_listener in self.bound_listeners:
            bound_listener.close()
        self.bound_listeners = []
        self._stop_ticking()
        for connection in list(self.connections):
            connection.abort("another broker has the store")
        await self.observation.stop()
        await self.store.abandon()

    async def _wait_for_connections(self) -> None:
        """Wait for the last packets to be sent; abort the connections that do not accept them in time."""
        if not self.connections:
            return
        self._all_gone = asyncio.Event()
        try:
            await asyncio.wait_for(self._all_gone.wait(), _STOP_TIMEOUT)
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort("the broker stops")

    # Time

    def _tick(self) -> None:
        """Read the clock, and expire what is too old, once a second."""
        self._ticking = self.loop.call_later(1.0, self._tick)
        self.expire()

    def _stop_ticking(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    def expire(self) -> None:
        """Drop expired messages, wills and sessions. Called once a second."""
        self.context.expiry.tick()
        self.sessions.expire()
        self.router.expire_retained()

    # Connections

    def new_connection(self, listener: Listener) -> Connection:
        """Return a new connection for a client of `listener`. It is counted once it has a transport."""
        return Connection(self, listener)

    def admit(self, connection: Connection) -> bool:
        """Count a new network connection. Returns False if there are too many.

        One more than there may be is admitted if one that is not logged in gives way: see Shares.to_yield().
        """
        listener = connection.listener
        share = client_share(connection.transport)
        if not self._has_room(listener, share):
            self.stats.connections_refused += 1
            return False
        self.connections[connection] = None
        self._connections_of[id(listener)] += 1
        for unfinished in (self._unfinished, self._unfinished_of[id(listener)]):
            unfinished.add(connection, share, self.loop.time())
        self.stats.connections_accepted += 1
        self.stats.connections = len(self.connections)
        self.stats.connections_max = max(self.stats.connections_max, self.stats.connections)
        return True

    def _has_room(self, listener: Listener, share: str) -> bool:
        """Return True if there is room for one more connection, perhaps because another one gives way now."""
        most = listener.max_connections
        if most is not None and self._connections_of[id(listener)] >= most:
            return self._close_one_of(self._unfinished_of[id(listener)], share)
        return len(self.connections) < self.config.max_connections or self._close_one_of(self._unfinished, share)

    def _close_one_of(self, unfinished: Shares[Connection], share: str) -> bool:
        connection = unfinished.to_yield(share, self.loop.time())
        if connection is None:
            return False
        self.stats.connections_refused += 1
        reason = "too many connections, and it sent no whole CONNECT"
        self.refusals.refused(self.loop.time(), connection.peer, reason)
        connection.abort(reason)
        # Its room is free now, not only when the transport reports its end.
        self.forget(connection)
        return True

    def make_room(self) -> bool:
        """Close a client that is not logged in, because the process has no room for one more. See Acceptor."""
        for bound_listener in self.bound_listeners:
            if bound_listener.largest_share > self._unfinished.largest:
                return bound_listener.close_waiting()
        return self._close_one_of(self._unfinished, "")

    def log_in(self, connection: Connection) -> None:
        """Note that a connection's CONNECT is accepted."""
        self._unfinished.discard(connection)
        self._unfinished_of[id(connection.listener)].discard(connection)

    def forget(self, connection: Connection) -> None:
        """Remove a network connection that is gone."""
        if connection in self.connections:
            del self.connections[connection]
            self._unfinished.discard(connection)
            listener = id(connection.listener)
            self._unfinished_of[listener].discard(connection)
            self._connections_of[listener] -= 1
            if not self._connections_of[listener]:
                del self._connections_of[listener], self._unfinished_of[listener]
        self.stats.connections = len(self.connections)
        self.sessions.detach(connection)
        if not self.connections:
            self._all_gone.set()
