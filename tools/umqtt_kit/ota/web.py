"""A web server for the objects of a release: GET /SHA256, whole or from an offset on, and nothing else."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from umqtt_kit.errors import EXIT_USAGE, KitError
from umqtt_kit.ota.release import Release

_RANGE = re.compile(r"bytes=(\d+)-$")


class WebServer:
    """Serves while the context is open. url: of the folder, with a slash at its end. Raises KitError."""

    def __init__(self, release: Release, host: str, port: int, on_sent: Callable[[int], object]) -> None:
        class Handler(BaseHTTPRequestHandler):
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
                """Progress says it."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise KitError(
                f"cannot listen on {host}:{port} ({error.strerror}) — choose another --listen", EXIT_USAGE
            ) from error
        self._server.daemon_threads = True
        host_name, bound = self._server.server_address[:2]
        self.url = f"http://{host_name!s}:{bound}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="web server of ota", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
