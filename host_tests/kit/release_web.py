"""A web server for the objects of a release: GET /SHA256, and nothing else."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from umqtt_kit.ota.release import Release


def https(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the context of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


@contextlib.contextmanager
def serving(release: Release, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve the release on 127.0.0.1; yield the folder's URL, with a slash at its end."""

    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            if tls is not None:
                self.request.do_handshake()
            super().setup()

        def do_GET(self) -> None:
            content = release.objects.get(self.path.lstrip("/"), b"")
            self.send_response(200 if content else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        def get_request(self) -> tuple[Any, Any]:
            request, address = super().get_request()
            # The handshake waits for the client, so the handler's thread does it.
            if tls is not None:
                request = tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            return request, address

        def handle_error(self, request: object, client_address: object) -> None:
            """Print nothing about a client that went away."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
