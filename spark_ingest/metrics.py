"""An HTTP server for Prometheus metrics and a health check."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector as Families

from .errors import UsageError
from .limited_threads import LimitedThreads

#: Connections at once, each with a thread and a file. For one more, the oldest one of the address with most of them is
#: closed.
MAX_CONNECTIONS = 32
#: Seconds that a connection has for its only request and the answer.
REQUEST_S = 10.0


class MetricsServer:
    """An HTTP server for ``http://HOST:PORT/metrics`` and, with `health`, ``/health``; it runs until :meth:`close`.

    Idle and slow clients cost at most :data:`MAX_CONNECTIONS` threads, and never keep others out.

    :param families: yields the metrics at each scrape.
    :param health: returns what is wrong, which is answered with status 503, or "", which is answered with 200.
    :raises UsageError: the server cannot listen on the address.
    """

    def __init__(self, host: str, port: int, families: Families, health: Callable[[], str] | None = None) -> None:
        registry = CollectorRegistry()
        registry.register(families)
        ProcessCollector(registry=registry)
        metrics = make_wsgi_app(registry)

        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if health is None or environ["PATH_INFO"] != "/health":
                return metrics(environ, start_response)
            wrong = health()
            start_response("503 Service Unavailable" if wrong else "200 OK", [("Content-Type", "text/plain")])
            return [(wrong or "ok").encode() + b"\n"]

        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(family, str(address[0]), port)
        except OSError as error:
            raise UsageError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}: give another address or port"
            ) from error
        self._server.set_app(answer)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(WSGIRequestHandler):
    def handle(self) -> None:
        # The client may be gone, or have been hung up on.
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: Prometheus asks every few seconds."""


class _Server(LimitedThreads, WSGIServer):
    max_connections = MAX_CONNECTIONS
    longest_s = REQUEST_S

    def __init__(self, family: socket.AddressFamily, host: str, port: int) -> None:
        self.address_family = family
        super().__init__((host, port), _Handler)
