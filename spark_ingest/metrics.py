"""Figures for Prometheus over HTTP, and whether all is well."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.registry import Collector as Families

from .errors import UsageError


class MetricsServer:
    """Answers ``http://HOST:PORT/metrics``, and ``/health`` where there is one, until :meth:`close`.

    :param families: the figures, asked for at each scrape.
    :param health: what is wrong, or an empty text; the answer is then 503, or 200.
    :raises UsageError: the address cannot be listened on.
    """

    def __init__(self, host: str, port: int, families: Families, health: Callable[[], str] | None = None) -> None:
        registry = CollectorRegistry()
        registry.register(families)
        ProcessCollector(registry=registry)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(f"cannot serve metrics on {host}:{port}: {error.strerror or error}") from error
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
        """The port that is listened on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
