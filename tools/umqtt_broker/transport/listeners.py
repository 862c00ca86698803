"""Listeners: their sockets, and the protocol with which each accepted connection begins."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import cast

from ..log import RefusalLog
from ..settings.broker import BrokerConfig, Listener, is_loopback
from ..stats import Stats
from .sockets import identity_of, open_tcp, open_unix
from .stream import AcceptTrouble, StreamServer
from .tls import make_context
from .websocket.stream import Upgrade

# Makes the protocol of a network connection, which gets plain bytes from every kind of transport.
NewConnection = Callable[[Listener], asyncio.Protocol]

# TLS handshakes at once on one listener. Each costs a millisecond of CPU; further clients wait in the kernel's queue.
_MAX_HANDSHAKES = 256

# Connections of one TLS listener that have not sent a byte yet. For one more, the oldest is closed, since a client
# normally begins at once.
_MAX_SILENT = 1024

_log = logging.getLogger(__name__)


class BoundListener:
    """One listener and its sockets: open(), then serve(), then close().

    context: its TLS context, replaced at a reload; None without TLS. sockets: the listening sockets.
    """

    def __init__(
        self,
        listener: Listener,
        config: BrokerConfig,
        stats: Stats,
        refusals: RefusalLog,
        new_connection: NewConnection,
    ) -> None:
        self.listener = listener
        self.context = None if listener.tls is None else make_context(listener.tls)
        self.sockets: list[socket.socket] = []
        self._config = config
        self._stats = stats
        self._refusals = refusals
        self._new_connection = new_connection
        self._servers: list[StreamServer | _TlsServer] = []
        self._file: tuple[int, int] | None = None  # of the Unix socket: device and inode
        self._is_local = is_loopback(listener)

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
                self._servers.append(_TlsServer(self, listening, self._config, self._stats))
            else:
                self._servers.append(StreamServer(loop, listening, self._new_plain_protocol, self._is_delayed))

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

    def new_protocol(self) -> asyncio.Protocol:
        """Return the first protocol of a connection that asyncio serves (TLS)."""
        protocol = self._new_plain_protocol()
        return _DelaySmallPackets(protocol) if self._is_delayed() else protocol

    def _new_plain_protocol(self) -> asyncio.Protocol:
        if self.listener.protocol == "websockets":
            connection = self._new_connection(self.listener)
            return Upgrade(connection, self.listener, self._stats, self._refusals, self._is_local)
        return self._new_connection(self.listener)

    def _is_delayed(self) -> bool:
        return not self._config.set_tcp_nodelay

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

    A handshake begins with the client's first byte: clients that never send one do not count as handshakes.
    """

    def __init__(
        self, bound_listener: BoundListener, listening: socket.socket, config: BrokerConfig, stats: Stats
    ) -> None:
        self._bound_listener = bound_listener
        self._socket = listening
        self._config = config
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        # Clients that have not sent a byte, the oldest first, with the timers that close them.
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_MAX_HANDSHAKES)
        self._may_accept = asyncio.Event()
        self._may_accept.set()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Stop accepting, and cancel unfinished handshakes."""
        self._accepting.cancel()
        for client in list(self._silent):
            self._watch_no_more(client)
            client.close()
        for handshake in self._handshakes:
            handshake.cancel()

    async def _accept(self) -> None:
        trouble = AcceptTrouble(self._socket.getsockname())
        while True:
            await self._may_accept.wait()
            try:
                client, _ = await self._loop.sock_accept(self._socket)
            except ConnectionError:
                continue  # the client has gone before it was accepted
            except OSError as error:
                await asyncio.sleep(trouble.failed(error))
                continue
            trouble.over()
            self._watch(client)
            # Accept one client in each turn of the loop, so that earlier clients can begin their handshakes.
            await asyncio.sleep(0)

    def _watch(self, client: socket.socket) -> None:
        """Wait for the client's first byte; close the oldest silent client if there are too many."""
        self._silent[client] = self._loop.call_later(self._config.connect_timeout, self._timed_out, client)
        self._loop.add_reader(client.fileno(), self._begin, client)
        if len(self._silent) > _MAX_SILENT:
            oldest = next(iter(self._silent))
            self._stats.connections_refused += 1
            self._watch_no_more(oldest)
            oldest.close()

    def _watch_no_more(self, client: socket.socket) -> None:
        self._silent.pop(client).cancel()
        self._loop.remove_reader(client.fileno())

    def _timed_out(self, client: socket.socket) -> None:
        self._stats.connect_timeouts += 1
        self._watch_no_more(client)
        client.close()

    def _begin(self, client: socket.socket) -> None:
        self._watch_no_more(client)
        handshake = self._loop.create_task(self._shake_hands(client))
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._done)
        if len(self._handshakes) >= _MAX_HANDSHAKES:
            self._may_accept.clear()

    def _done(self, handshake: asyncio.Task[None]) -> None:
        self._handshakes.discard(handshake)
        if len(self._handshakes) < _MAX_HANDSHAKES:
            self._may_accept.set()

    async def _shake_hands(self, client: socket.socket) -> None:
        timeout = self._config.connect_timeout
        try:
            async with self._room:
                await self._loop.connect_accepted_socket(
                    self._bound_listener.new_protocol,
                    client,
                    ssl=self._bound_listener.context,
                    ssl_handshake_timeout=timeout,
                )
        except ssl.SSLError as error:
            reason = error.reason or "broken off"
            self._stats.malformed[f"TLS {reason}"] += 1
            _log.info("TLS handshake failed: %s", reason)
        except ConnectionError as error:
            # A handshake that takes too long ends as ConnectionAbortedError.
            if isinstance(error, ConnectionAbortedError):
                self._stats.connect_timeouts += 1
            else:
                self._stats.malformed["TLS broken off"] += 1
        except OSError as error:
            self._stats.malformed["TLS broken off"] += 1
            _log.info("TLS handshake failed: %s", error)


class _DelaySmallPackets(asyncio.Protocol):
    """Switches Nagle's algorithm on, which asyncio switches off; then `protocol` replaces it."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        cast(asyncio.Transport, transport).set_protocol(self._protocol)
        self._protocol.connection_made(transport)


def open_listeners(
    config: BrokerConfig,
    stats: Stats,
    refusals: RefusalLog,
    new_connection: NewConnection,
    bound: Callable[[], None] | None,
) -> list[BoundListener]:
    """Open all listeners of the configuration; then call `bound`, which may give up root.

    Raises PortInUse, ConfigError or BrokerError; then all listeners are closed.
    """
    # This reads the certificates first: nothing is bound if a listener could not serve.
    bound_listeners = [
        BoundListener(listener, config, stats, refusals, new_connection) for listener in config.all_listeners()
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
