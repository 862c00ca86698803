"""An HTTPS server for the spools of a folder. The client is in ``remote``.

======  ================================================  ==========================================================
GET     /spools                                           ``{"spools": [NAME, …]}``
GET     /spools/NAME                                      ``{"durable": …, "runs": …, "retired": …, "segments": …,
                                                          "times": …}``: the results of the :class:`View` methods
GET     /spools/NAME/segments/N                           bytes of a segment, selected by a Range header; HEAD: its
                                                          length
GET     /spools/NAME/segments/N/headers?start=S&end=E     the block headers in [S, E), concatenated in their form on
                                                          disk; at most ``MOST_HEADERS``: then ask from a later S
DELETE  /spools/NAME/segments?before=N&spool=UUID&read_for_s=S    removal by retention: ``{"removed": COUNT}``
======  ================================================  ==========================================================

Each request needs ``Authorization: Bearer TOKEN``. Reading and deleting are separate rights with a token each. An
error is answered with ``{"error": NAME, "message": TEXT}``. TLS is required except on loopback addresses.
"""

import asyncio
import hmac
import itertools
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from ..errors import DataLoss, IngestError, UsageError
from ..hosts import is_loopback
from .access import LocalSpools
from .blocks import Position, segment_path
from .view import SpoolView

MOST_HEADERS = 1 << 16
"""Most block headers in one answer."""

_AUTHENTICATE_WITHIN_S = 10.0
# Limit of unauthenticated connections; beyond it, the oldest is closed.
_MOST_STRANGERS = 256
# Delays each refusal, so that guessing a token is slow.
_AFTER_WRONG_TOKEN_S = 0.5
_STOP_WITHIN_S = 1.0
_BACKLOG = 128
_ACCEPT_AGAIN_S = 1.0

Handler = Callable[[web.Request], Any]


def server_tls(cert: Path, key: Path) -> ssl.SSLContext:
    """Make a server's TLS context (TLS 1.2 or newer) with this certificate chain and private key (PEM files).

    :raises UsageError: the files cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password callback, OpenSSL would ask on the terminal for the password of an encrypted key.
        context.load_cert_chain(cert, key, password=lambda: b"")
    except OSError as error:
        raise UsageError(f"cannot use the certificate {cert} with {key}: {error.strerror or error}") from error
    return context


class SpoolServer:
    """A server for `spools` that runs in a thread of its own until :meth:`close`.

    :param read_token: the token for reading; see :func:`tokens.read_token`.
    :param delete_token: the token for deleting; None to allow no deletion.
    :param tls: see :func:`server_tls`; None for plain HTTP, which is allowed on a loopback address only.
    :param report: called with one line of text about each refused client; the text never contains a token.
    :raises UsageError: the server cannot listen on the address, TLS is missing, or both tokens are the same.
    """

    def __init__(
        self,
        host: str,
        port: int,
        spools: LocalSpools,
        read_token: str,
        *,
        delete_token: str | None = None,
        tls: ssl.SSLContext | None = None,
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        if tls is None and not is_loopback(host):
            raise UsageError(
                f"spools are served on {host} over TLS only: give --serve-cert and --serve-key "
                "(umqtt certs makes both), or serve this machine alone: --serve PORT"
            )
        if read_token == delete_token:
            raise UsageError("the tokens to read and to delete are the same: whoever may read could delete")
        self._spools = spools
        self._tokens = {"GET": read_token, "HEAD": read_token, "DELETE": delete_token}
        self._tls = tls
        self._report = report
        self._counts: dict[str, float] = {"requests": 0, "bytes": 0, "refused": 0, "malformed": 0}
        # Unauthenticated connections, in the order of arrival.
        self._strangers: dict[object, socket.socket] = {}
        try:
            self._listening = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=_BACKLOG
            )
        except OSError as error:
            raise UsageError(
                f"cannot serve spools on {host}:{port}: {error.strerror or error}: give another address or port"
            ) from error
        self._listening.setblocking(False)
        self._ended = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), name="serve")
        self._thread.daemon = True
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the server, with the actual port if port 0 was requested."""
        host, port = self._listening.getsockname()[:2]
        return f"{'http' if self._tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"

    def counts(self) -> dict[str, float]:
        """Return the numbers of requests, bytes, refused and malformed requests since the start."""
        return dict(self._counts)

    def close(self) -> None:
        """Stop listening and end every connection. May be called twice."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
            self._loop.close()
            self._listening.close()

    async def _run(self) -> None:
        application = web.Application(middlewares=[self._guard])
        application.on_response_prepare.append(self._count_bytes)
        router = application.router
        router.add_get("/spools", self._names)
        router.add_get("/spools/{name}", self._describe)
        router.add_get(r"/spools/{name}/segments/{segment:\d{1,10}}", self._segment)
        router.add_get(r"/spools/{name}/segments/{segment:\d{1,10}}/headers", self._headers)
        router.add_delete("/spools/{name}/segments", self._remove)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=_STOP_WITHIN_S)
        await runner.setup()
        accepting = asyncio.create_task(self._accept(runner))
        await self._ended.wait()
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        for link in self._strangers.values():
            _shut(link)
        await runner.cleanup()
        await self._loop.shutdown_default_executor()

    async def _accept(self, runner: web.AppRunner) -> None:
        greeting: set[asyncio.Task[None]] = set()
        while True:
            try:
                link, _peer = await self._loop.sock_accept(self._listening)
            except OSError:
                # The client has gone, or there are no free file descriptors, which may change when others close.
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            task = asyncio.create_task(self._greet(runner, link))
            greeting.add(task)
            task.add_done_callback(greeting.discard)

    async def _greet(self, runner: web.AppRunner, link: socket.socket) -> None:
        assert runner.server is not None
        protocol = runner.server()
        self._strangers[protocol] = link
        if len(self._strangers) > _MOST_STRANGERS:
            self._disconnect(next(iter(self._strangers)))
        # This limits the whole authentication: sending a byte now and then does not extend it.
        self._loop.call_later(_AUTHENTICATE_WITHIN_S, self._disconnect, protocol)
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, link, ssl=self._tls)
        except OSError:
            # Includes clients that do not speak TLS. They are not reported here, since they see the error themselves.
            self._strangers.pop(protocol, None)

    def _disconnect(self, protocol: object) -> None:
        """Close the connection of a client if it is still unauthenticated."""
        link = self._strangers.pop(protocol, None)
        if link is not None:
            _shut(link)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = self._tokens.get(request.method)
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        known = scheme.lower() == "bearer" and hmac.compare_digest(
            shown.strip().encode("utf-8", "surrogateescape"), (wanted or "").encode()
        )
        if not wanted or not known:
            self._counts["refused"] += 1
            right = "delete" if request.method == "DELETE" else "read"
            self._report(f"serve: refused {request.remote}: no token to {right}")
            await asyncio.sleep(_AFTER_WRONG_TOKEN_S)
            return _error(401, "SpoolUnreachable", f"it does not accept the token to {right}")
        self._strangers.pop(request.protocol, None)
        self._counts["requests"] += 1
        try:
            return await handler(request)
        except web.HTTPException as error:
            self._counts["malformed"] += 1
            return _error(error.status, "SpoolUnreachable", error.reason)
        except (KeyError, ValueError, OverflowError):
            self._counts["malformed"] += 1
            return _error(400, "SpoolUnreachable", "an argument is missing or invalid")
        except DataLoss as error:
            return _error(404, "DataLoss", str(error))
        except IngestError as error:
            return _error(500, type(error).__name__, str(error))
        except OSError as error:
            return _error(500, "SpoolUnreachable", f"cannot read the spool: {error}")

    async def _count_bytes(self, request: web.Request, answer: web.StreamResponse) -> None:
        if request.method == "GET":
            self._counts["bytes"] += answer.content_length or 0

    async def _names(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"spools": await asyncio.to_thread(self._spools.names)})

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(await asyncio.to_thread(_description, self._view(request)))

    async def _segment(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(segment_path(self._view(request).folder, int(request.match_info["segment"])))

    async def _headers(self, request: web.Request) -> web.StreamResponse:
        view, segment = self._view(request), int(request.match_info["segment"])
        start, end = int(request.query["start"]), int(request.query["end"])

        def collect() -> bytes:
            found = itertools.islice(view.headers(segment, start, end), MOST_HEADERS)
            return b"".join(header.encode() for header in found)

        return web.Response(body=await asyncio.to_thread(collect))

    async def _remove(self, request: web.Request) -> web.StreamResponse:
        place = Position(request.query["spool"], int(request.query["before"]), 0)
        read_for_s = float(request.query["read_for_s"])
        view = self._view(request)
        removed = await asyncio.to_thread(lambda: view.remove_before(place, read_for_s=read_for_s))
        return web.json_response({"removed": removed})

    def _view(self, request: web.Request) -> SpoolView:
        name = request.match_info["name"]
        # The name comes from the network: accept only the name of an existing folder, never a path.
        if name not in self._spools.folders():
            raise DataLoss(f"there is no spool called {name!r}")
        return self._spools.view(name)


def _description(view: SpoolView) -> dict[str, object]:
    # The durable position is read first, so that the other values are at least as new.
    return {
        "durable": view.durable(),
        "runs": view.runs(),
        "retired": view.retired(),
        "segments": view.segments(),
        "times": view.times(),
    }


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"error": kind, "message": message}, status=status)


def _shut(link: socket.socket) -> None:
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The client has closed the connection already.
        return
