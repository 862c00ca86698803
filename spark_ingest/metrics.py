"""An HTTP server for Prometheus metrics and a health check."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.registry import Collector as Families

from .errors import UsageError


class MetricsServer:
    """An HTTP server for ``http://HOST:PORT/metrics`` and, with `health`, ``/health``; it runs until :meth:`close`.

    :param families: yields the metrics at each scrape.
    :param health: returns what is wrong, which is answered with status 503, or "", which is answered with 200.
    :raises UsageError: the server cannot listen on the address.
    """

    def __init__(self, host: str, port: int, families: Families, health: Callable[[], str] | None = None) -> None:
        registry = CollectorRegistry()
        registry.register(families)
        ProcessCollector(registry=registry)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}: give another address or port"
            ) from error
        metrics = self._server.get_app()
        assert metrics is not None

        def answer(environ: dict, start_response: Callable) -> Iterable[bytes]:
            if health is None or environ["PATH_INFO"] != "/health":
                return metrics(environ, start_response)
            wrong = health()
            start_response("503 Service Unavailable" if wrong else "200 OK", [("Content-Type", "text/plain")])
            return [(wrong or "ok").encode() + b"\n"]

        self._server.set_app(answer)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
