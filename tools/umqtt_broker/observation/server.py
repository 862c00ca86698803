"""The HTTP listener: metrics, the API, the health checks and the page."""

import asyncio
import errno
import socket
from importlib.resources import files

import umqtt_page
from aiohttp import web
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from ..errors import BrokerError, ConfigError
from ..settings.broker import is_loopback_name
from ..transport.stream import Acceptor
from .api import Api
from .guard import Guard, Handler, error_response
from .metrics import BrokerCollector, Scrape
from .openapi import describe
from .rates import History
from .routes import MAX_BODY, ROUTES
from .survey import Survey
from .token_file import read_or_create, token_path
from .view import BrokerView, ObservedBroker

_SAMPLE_SECONDS = 1.0
# Seconds that a request may continue when the broker stops.
_STOP_TIMEOUT = 1.0

# Connections at once. For one more, the oldest one is closed.
_MAX_CONNECTIONS = 64
# Seconds that a connection has for its first request, and between two requests.
_SILENCE = 10.0

# The files of the page; nothing else is served from the folder. What it shares with other pages is in umqtt_page.
_PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_SHARED = {f"/{name}": (name, kind) for name, kind in umqtt_page.NAMES.items()}
_HEALTH = ("/healthz", "/readyz")


class Server:
    """The HTTP listener on http_host and http_port. host, port, token: set once it has started."""

    def __init__(self, broker: ObservedBroker, view: BrokerView, survey: Survey, started_at: float) -> None:
        self._broker = broker
        self._view = view
        self._survey = survey
        self._started_at = started_at
        self._runner: web.AppRunner | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._acceptor: Acceptor | None = None
        # The connections, the oldest first, with the timers of those that have sent no request.
        self._connections: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self._beginning: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises ConfigError for an unsafe setting, BrokerError if it cannot listen on the address."""
        config = self._broker.config
        check_loopback(config.http_host)
        self.token = config.http_token or read_or_create(token_path(config))
        listening = _listen(config.http_host, config.http_port)
        self.host, self.port = listening.getsockname()[:2]
        self._guard = Guard(
            self.token,
            frozenset(
                f"{name}:{self.port}"
                for name in ("127.0.0.1", "localhost", "[::1]", f"[{self.host}]" if ":" in self.host else self.host)
            ),
            frozenset(_PAGE) | frozenset(_SHARED) | frozenset(_HEALTH),
            lambda: self._view.standby,
        )
        self._history = History(self._counters, self._broker.loop.time())
        self._runner = web.AppRunner(
            self._application(), access_log=None, shutdown_timeout=_STOP_TIMEOUT, keepalive_timeout=_SILENCE
        )
        await self._runner.setup()
        listening.setblocking(False)
        self._listening = listening
        self._acceptor = Acceptor(self._broker.loop, listening, self._on_accepted, lambda: False)
        self._sample()

    @property
    def name(self) -> str:
        """Host and port in the form for a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def stop(self) -> None:
        """Stop listening; requests under way get a second."""
        if self._timer is not None:
            self._timer.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
            self._listening.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _on_accepted(self, client: socket.socket, address: object) -> None:
        """Serve a connection. aiohttp limits neither their number nor the time for the first request."""
        del address
        assert self._runner is not None and self._runner.server is not None
        for transport in [one for one in self._connections if one.is_closing()]:
            self._forget(transport)
        while len(self._connections) >= _MAX_CONNECTIONS:
            self._close(next(iter(self._connections)))
        task = self._broker.loop.create_task(self._begin(self._runner.server, client))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, server: web.Server, client: socket.socket) -> None:
        transport, _ = await self._broker.loop.connect_accepted_socket(server, client)
        self._connections[transport] = self._broker.loop.call_later(_SILENCE, self._close, transport)

    def _close(self, transport: asyncio.Transport) -> None:
        self._forget(transport)
        transport.abort()

    def _forget(self, transport: asyncio.Transport) -> None:
        self._connections.pop(transport).cancel()

    @web.middleware
    async def _on_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a connection has sent a request: from now on, aiohttp closes it when it is silent."""
        timer = self._connections.get(request.transport) if request.transport is not None else None
        if timer is not None:
            timer.cancel()
        return await handler(request)

    def _application(self) -> web.Application:
        middlewares = [self._on_request, self._guard.middleware()]
        application = web.Application(middlewares=middlewares, client_max_size=MAX_BODY)
        api = Api(self._broker, self._view, self._survey, self._history, self._guard, self._started_at)
        for route in ROUTES:
            application.router.add_route(route.method, route.path, api.handler(route))
        self._registry = CollectorRegistry()
        self._registry.register(BrokerCollector(self._scrape))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        description = describe()

        async def openapi(request: web.Request) -> web.Response:
            del request
            return web.json_response(description)

        application.router.add_get("/api/openapi.json", openapi, allow_head=False)
        application.router.add_get("/metrics", self._metrics, allow_head=False)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        folder = files(__name__.rpartition(".")[0]) / "page"
        for path, (name, content_type) in _PAGE.items():
            application.router.add_get(path, _static((folder / name).read_bytes(), content_type))
        for path, (name, content_type) in _SHARED.items():
            application.router.add_get(path, _static(umqtt_page.read(name), content_type))
        return application

    # The figures

    def _sample(self) -> None:
        self._history.sample(self._broker.loop.time())
        self._timer = self._broker.loop.call_later(_SAMPLE_SECONDS, self._sample)

    def _counters(self) -> dict[str, int]:
        stats = self._broker.stats
        return {
            "messages_received": stats.messages_in,
            "messages_sent": stats.messages_out,
            "bytes_received": stats.bytes_in,
            "bytes_sent": stats.bytes_out,
            "dropped": stats.dropped,
            "commits": stats.commits,
        }

    def _scrape(self) -> Scrape:
        return Scrape(self._view, self._view.stats, self._survey.latest, self._started_at, self._guard.refused)

    async def _metrics(self, request: web.Request) -> web.Response:
        await self._survey.update()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    # Health

    async def _healthz(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        del request
        if self._view.standby:
            return error_response(503, f"standby: {self._view.standby}")
        if self._view.store_failure:
            return error_response(503, "the store cannot write — see the broker's log for the cause")
        return web.json_response({"status": "ready"})


def _static(content: bytes, content_type: str) -> Handler:
    async def serve(request: web.Request) -> web.Response:
        del request
        return web.Response(body=content, content_type=content_type, charset="utf-8")

    return serve


def check_loopback(host: str) -> None:
    """Raise ConfigError unless only this machine reaches `host`: the token would cross the network in the clear."""
    if not is_loopback_name(host):
        raise ConfigError(
            f"http_host {host} is not a loopback address — use 127.0.0.1, and a proxy with TLS or ssh -L for others"
        )


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises BrokerError."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
        raise BrokerError(
            f"http_port {port} on {host} {reason} — choose another, or stop the program that holds it"
        ) from error
