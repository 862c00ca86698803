"""A web hook on loopback that receives alerts."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def webhook(receive: Callable[[bytes], object]) -> Iterator[int]:
    """Run a server that passes each request's body to `receive`, and answers unless that raises; yield its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receive(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionError):  # The client was killed.
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
