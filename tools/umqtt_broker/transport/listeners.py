"""Listeners: their sockets, and the protocol with which each accepted connection begins."""

import asyncio
import contextlib
import math
import os
import socket
import ssl
from collections.abc import Callable

from ..access.shares import Shares, network
from ..log import RefusalLog
from ..settings.broker import BrokerConfig, Listener, Tls, is_loopback
from ..stats import Stats
from .sockets import identity_of, open_tcp, open_unix
from .stream import Acceptor, StreamServer
from .tls import expires_at, handshake_socket, make_context, reason_of
from .websocket.stream import Upgrade

# Makes the protocol of a network connection, which gets plain bytes from every kind of transport.
NewConnection = Callable[[Listener], asyncio.Protocol]

# TLS handshakes at once on one listening socket, and how many begin in one turn of the event loop: each costs a
# millisecond of CPU.
_MAX_HANDSHAKES = 256
_BEGIN_AT_ONCE = 8

# Accepted clients of one listening socket whose handshake has not begun. See Shares.to_yield() for one more.
_MAX_WAITING = 4096


class BoundListener:
    """One listener and its sockets: open(), then serve(), then close().

    context: its TLS context; expires_at: when its certificate expires, in seconds since 1970; None without TLS.
    sockets: the listening sockets. make_room: see open_listeners().
    """

    def __init__(
        self,
        listener: Listener,
        config: BrokerConfig,
        stats: Stats,
        refusals: RefusalLog,
        new_connection: NewConnection,
        make_room: Callable[[], bool],
    ) -> None:
        self.listener = listener
        self.context: ssl.SSLContext | None = None
        self.expires_at: float | None = None
        if listener.tls is not None:
            self.use(make_context(listener.tls), listener.tls)
        self.sockets: list[socket.socket] = []
        self._config = config
        self._stats = stats
        self._refusals = refusals
        self._new_connection = new_connection
        self._make_room = make_room
        self._servers: list[StreamServer | _TlsServer] = []
        self._file: tuple[int, int] | None = None  # of the Unix socket: device and inode
        self._is_local = is_loopback(listener)

    def use(self, context: ssl.SSLContext, tls: Tls) -> None:
        """Use this TLS context, which was made of `tls`, for new connections."""
        self.context = context
        with contextlib.suppress(OSError, ValueError):
            self.expires_at = expires_at(tls)

    def open(self) -> None:
        """Bind and listen. Raises PortInUse, ConfigError or BrokerError."""
        self.sockets = [open_unix(self.listener)] if self.listener.path else open_tcp(self.listener)
        if self.listener.path:
            self._file = identity_of(self.listener.path)

    async def serve(self) -> None:
        """Accept clients from now on."""
        loop = asyncio.get_running_loop()
        for listening in self.sockets:
            if self.context is not None:
                self._servers.append(
                    _TlsServer(self, listening, self._config, self._stats, self._refusals, self._make_room)
                )
                continue
            self._servers.append(StreamServer(loop, listening, self.new_protocol, self._make_room))

    def close(self) -> None:
        """Stop listening. Connections stay."""
        for server in self._servers:
            server.close()
        for listening in self.sockets:
            listening.close()
        # Do not remove the file if it is another broker's by now.
        if self._file is not None and identity_of(self.listener.path) == self._file:
            with contextlib.suppress(OSError):
                os.unlink(self.listener.path)
        self._file = None

    @property
    def largest_share(self) -> int:
        """How many of the clients that wait for a TLS handshake have the same address, at most."""
        return max((server.waiting.largest for server in self._tls_servers()), default=0)

    def close_waiting(self) -> bool:
        """Close a client that waits for its TLS handshake. Returns False if none gives way."""
        return any(server.close_waiting() for server in self._tls_servers())

    def _tls_servers(self) -> "list[_TlsServer]":
        return [server for server in self._servers if isinstance(server, _TlsServer)]

    def new_protocol(self) -> asyncio.Protocol:
        """Return the first protocol of a connection."""
        if self.listener.protocol == "websockets":
            connection = self._new_connection(self.listener)
            return Upgrade(connection, self.listener, self._stats, self._refusals, self._is_local)
        return self._new_connection(self.listener)

    @property
    def port(self) -> int:
        """The TCP port once open() has bound it, 0 for a Unix socket."""
        return 0 if self.listener.path else self.sockets[0].getsockname()[1]

    def addresses(self) -> list[str]:
        """Return the addresses it listens on, as text: `127.0.0.1:8883 (tls)`."""
        kinds = [
            *(["unix"] if self.listener.path else []),
            *(["websockets"] if self.listener.protocol == "websockets" else []),
            *(["tls"] if self.listener.tls is not None else []),
        ]
        suffix = f" ({', '.join(kinds)})" if kinds else ""
        if self.listener.path:
            return [f"{self.listener.path}{suffix}"]
        names = [listening.getsockname() for listening in self.sockets]
        return [
            f"[{name[0]}]:{name[1]}{suffix}" if ":" in name[0] else f"{name[0]}:{name[1]}{suffix}" for name in names
        ]


class _TlsServer:
    """Accepts TLS clients and does the handshake. asyncio's own server could not change its certificate at a reload.

    A handshake begins with the client's first byte. The addresses whose clients wait take turns, and the address with
    most handshakes loses its oldest one to a new client of an address with fewer.

    make_room: see open_listeners(). waiting: clients whose handshake has not begun.
    """

    def __init__(
        self,
        bound_listener: BoundListener,
        listening: socket.socket,
        config: BrokerConfig,
        stats: Stats,
        refusals: RefusalLog,
        make_room: Callable[[], bool],
    ) -> None:
        self._bound_listener = bound_listener
        self._config = config
        self._stats = stats
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self.waiting: Shares[socket.socket] = Shares()
        # The timers that close them, and those of them that have sent a byte.
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        self._ready: Shares[socket.socket] = Shares()
        self._handshakes: Shares[asyncio.Task[None]] = Shares()
        self._next_turn: asyncio.Handle | None = None
        self._acceptor = Acceptor(self._loop, listening, self._watch, make_room)

    def close(self) -> None:
        """Stop accepting, and cancel unfinished handshakes."""
        self._acceptor.close()
        if self._next_turn is not None:
            self._next_turn.cancel()
        for client in list(self.waiting):
            self._drop(client)
        for handshake in list(self._handshakes):
            handshake.cancel()

    def close_waiting(self) -> bool:
        """Close a client whose handshake has not begun. Returns False if none gives way."""
        client = self.waiting.to_yield("", self._loop.time())
        if client is None:
            return False
        self._stats.connections_refused += 1
        self._drop(client)
        return True

    def _watch(self, client: socket.socket, address: tuple[str, int]) -> None:
        """Wait for the client's first byte."""
        share = network(address[0])
        if len(self.waiting) >= _MAX_WAITING:
            self._stats.connections_refused += 1
            found = self.waiting.to_yield(share, self._loop.time())
            if found is None:
                client.close()
                return
            self._drop(found)
        self.waiting.add(client, share, self._loop.time())
        self._timers[client] = self._loop.call_later(self._config.connect_timeout, self._timed_out, client)
        self._loop.add_reader(client.fileno(), self._on_first_byte, client)

    def _forget(self, client: socket.socket) -> None:
        self._loop.remove_reader(client.fileno())
        self._timers.pop(client).cancel()
        self.waiting.discard(client)
        self._ready.discard(client)

    def _drop(self, client: socket.socket) -> None:
        self._forget(client)
        client.close()

    def _timed_out(self, client: socket.socket) -> None:
        self._stats.connect_timeouts += 1
        self._drop(client)

    def _on_first_byte(self, client: socket.socket) -> None:
        self._loop.remove_reader(client.fileno())
        share = self.waiting.address_of(client)
        self._ready.add(client, share, self._loop.time())
        if len(self._handshakes) >= _MAX_HANDSHAKES:
            oldest = self._handshakes.to_yield(share, self._loop.time(), grace=math.inf)
            if oldest is not None:
                self._stats.connections_refused += 1
                self._handshakes.discard(oldest)
                oldest.cancel()
                self._begin_handshake(client)
        elif self._next_turn is None:
            self._begin_handshakes()

    def _begin_handshakes(self) -> None:
        """Begin a few handshakes, as far as there is room; continue in the next turn of the event loop."""
        self._next_turn = None
        for _ in range(_BEGIN_AT_ONCE):
            if not len(self._ready) or len(self._handshakes) >= _MAX_HANDSHAKES:
                return
            self._begin_handshake(self._ready.next())
        if len(self._ready):
            self._next_turn = self._loop.call_soon(self._begin_handshakes)

    def _begin_handshake(self, client: socket.socket) -> None:
        share = self._ready.address_of(client)
        self._forget(client)
        handshake = self._loop.create_task(self._shake_hands(client))
        self._handshakes.add(handshake, share, self._loop.time())
        handshake.add_done_callback(lambda handshake: self._done(handshake, client))

    def _done(self, handshake: asyncio.Task[None], client: socket.socket) -> None:
        self._handshakes.discard(handshake)
        if handshake.cancelled():
            client.close()  # its handshake may not have begun, so no transport closes it
        if len(self._ready) and self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._begin_handshakes)

    async def _shake_hands(self, client: socket.socket) -> None:
        address = ""
        try:
            address = client.getpeername()[0]
            handshake_socket.set(client)
            await self._loop.connect_accepted_socket(
                self._bound_listener.new_protocol,
                client,
                ssl=self._bound_listener.context,
                ssl_handshake_timeout=self._config.connect_timeout,
            )
        except ssl.SSLError as error:
            self._stats.malformed[f"TLS {error.reason or 'broken off'}"] += 1
            self._refusals.refused(self._loop.time(), address, f"TLS handshake failed: {reason_of(error)}")
        except ConnectionError as error:
            # A handshake that takes too long ends as ConnectionAbortedError.
            if isinstance(error, ConnectionAbortedError):
                self._stats.connect_timeouts += 1
            else:
                self._stats.malformed["TLS broken off"] += 1
        except OSError:
            client.close()  # it had gone before its handshake, so no transport closes it
            self._stats.malformed["TLS broken off"] += 1


def open_listeners(
    config: BrokerConfig,
    stats: Stats,
    refusals: RefusalLog,
    new_connection: NewConnection,
    make_room: Callable[[], bool],
    bound: Callable[[], None] | None,
) -> list[BoundListener]:
    """Open all listeners of the configuration; then call `bound`, which may give up root.

    make_room: closes a connection if the process has no room for one more, see Acceptor.

    Raises PortInUse, ConfigError or BrokerError; then all listeners are closed.
    """
    # This reads the certificates first: nothing is bound if a listener could not serve.
    bound_listeners = [
        BoundListener(listener, config, stats, refusals, new_connection, make_room)
        for listener in config.all_listeners()
    ]
    try:
        for bound_listener in bound_listeners:
            bound_listener.open()
        if bound is not None:
            bound()
    except BaseException:
        for bound_listener in bound_listeners:
            bound_listener.close()
        raise
    return bound_listeners
