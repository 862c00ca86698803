"""A web server for the objects of a release: GET /SHA256, whole or from an offset on, and nothing else."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.limited_threads import LimitedThreads
from umqtt_kit.ota.release import Release

_RANGE = re.compile(r"bytes=(\d+)-$")
# A device that went away in the middle must not keep a thread for ever.
_SILENT_FOR_S = 30.0


@dataclass(frozen=True)
class Web:
    """Where the server listens (port 0: a free one). cert, key: PEM files; with them it serves https."""

    host: str
    port: int
    cert: Path | None = None
    key: Path | None = None

    @contextlib.contextmanager
    def serve(self, release: Release, on_sent: Callable[[int], object]) -> Iterator[str]:
        """Serve the release within the context; yield the folder's URL, with a slash at its end. Raises KitError."""
        tls = self._tls()
        where = f"[{self.host}]" if ":" in self.host else self.host
        try:
            server = _Server((self.host, self.port), _handler(release, on_sent), tls)
        except OSError as error:
            raise KitError(
                f"cannot listen on {where}:{self.port} ({error.strerror}) — choose another --listen", EXIT_USAGE
            ) from error
        with server:
            thread = threading.Thread(target=server.serve_forever, name="web server of ota", daemon=True)
            thread.start()
            try:
                yield f"http{'s' if tls else ''}://{where}:{server.server_address[1]}/"
            finally:
                server.shutdown()

    def _tls(self) -> ssl.SSLContext | None:
        if self.cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key)
        except (ssl.SSLError, OSError) as error:
            raise KitError(
                f"--web-cert {self.cert}: not a certificate with the key --web-key ({error.strerror or error}) — make "
                "both: umqtt certs broker HOST",
                EXIT_USAGE,
            ) from error
        return context


class _Server(LimitedThreads, HTTPServer):
    max_connections = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None):
        self._tls = tls
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def begin(self, request: Any) -> Any:
        request.settimeout(_SILENT_FOR_S)
        if self._tls is None:
            return request
        # The handshake waits for the client, so the handler does it.
        return self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)


def _handler(release: Release, on_sent: Callable[[int], object]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            if isinstance(self.request, ssl.SSLSocket):
                self.request.do_handshake()
            super().setup()

        def do_GET(self) -> None:
            content = release.objects.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            asked = _RANGE.match(self.headers.get("Range", ""))
            start = int(asked[1]) if asked else 0
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content[start:])))
            self.end_headers()
            self.wfile.write(content[start:])
            on_sent(len(content) - start)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: the progress display shows it."""

    return Handler
