"""Serves a spool tree over TCP, read-only but for retention, to whoever knows the token; see ``spool.frames``.

A thread a client: they mostly wait for the disk and the network, which the collecting threads do not feel.
"""

import hmac
import json
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from ..errors import DataLoss, IngestError, SpoolDamaged, UsageError
from ..spool import frames
from ..spool.access import LocalSpools
from ..spool.blocks import Position
from ..spool.frames import BadFrame
from ..spool.view import SpoolView

_HELLO_WITHIN_S = 10.0
_IDLE_S = 600.0
_MOST_CLIENTS = 256
# Connections that have not shown the token yet; the oldest makes room.
_MOST_STRANGERS = 256
# Guessing a token must be slow, whatever its length.
_AFTER_WRONG_TOKEN_S = 0.5


class SpoolServer:
    """Serves `spools` until :meth:`close`.

    :param token: see :func:`frames.read_token`.
    :param report: takes one line for a person about refused and broken clients; it never holds a token.
    :raises UsageError: the address cannot be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        spools: LocalSpools,
        token: bytes,
        *,
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.spools = spools
        self.token = token
        self.report = report
        self.requests = 0
        self.bytes_sent = 0
        self.refused = 0
        self.malformed = 0
        self._lock = threading.Lock()
        self._clients: set[socket.socket] = set()
        # In the order of their arrival.
        self._strangers: dict[socket.socket, None] = {}
        self._closed = False
        try:
            self._server = _Listener((host, port), self)
        except OSError as error:
            raise UsageError(f"cannot serve spools on {host}:{port}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="serve", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that is listened on; the port that was picked when 0 was asked for."""
        return self._server.server_address[:2]  # pyright: ignore[reportReturnType]

    @property
    def clients(self) -> int:
        """Connections open now whose client has shown the token."""
        return len(self._clients)

    def counts(self) -> dict[str, float]:
        """What has been served since the start."""
        return {
            "requests": self.requests,
            "bytes": self.bytes_sent,
            "refused": self.refused,
            "malformed": self.malformed,
        }

    def close(self) -> None:
        """Stop listening and end every connection. May be called twice."""
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            self._closed = True
            for link in (*self._clients, *self._strangers):
                # Wakes the thread that waits in it.
                _shut(link)

    def handle(self, link: socket.socket, peer: str) -> None:
        """Serve one connection to its end."""
        with self._lock:
            if self._closed:
                # Accepted just before, and its thread comes only now.
                return
            self._strangers[link] = None
            if len(self._strangers) > _MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _shut(oldest)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.settimeout(_HELLO_WITHIN_S)
            if self._greet(link, peer):
                link.settimeout(_IDLE_S)
                self._answer_requests(link)
        except BadFrame as error:
            self.malformed += 1
            self.report(f"serve: {peer} sent a wrong request: {error}; disconnected")
        except (OSError, EOFError):
            # Clients come and go; one that is missed makes itself heard in its own log.
            pass
        finally:
            with self._lock:
                self._clients.discard(link)
                self._strangers.pop(link, None)

    def _greet(self, link: socket.socket, peer: str) -> bool:
        until = time.monotonic() + _HELLO_WITHIN_S
        nonce = secrets.token_bytes(frames.NONCE_BYTES)
        link.sendall(frames.GREETING.pack(frames.MAGIC, frames.VERSION, nonce))
        hello = frames.receive_exactly(link, frames.HELLO.size, until=until)
        magic, version, its_nonce, shown = frames.HELLO.unpack(hello)
        known = hmac.compare_digest(shown, frames.proof(self.token, b"client", nonce, its_nonce))
        if magic != frames.MAGIC or version != frames.VERSION:
            verdict, why = frames.WRONG_VERSION, "another version"
        elif not known:
            verdict, why = frames.WRONG_TOKEN, "a wrong token"
        elif not self._admit(link):
            verdict, why = frames.TOO_MANY, "too many clients"
        else:
            link.sendall(frames.WELCOME.pack(frames.ACCEPTED, frames.proof(self.token, b"server", nonce, its_nonce)))
            return True
        self.refused += 1
        self.report(f"serve: refused {peer}: {why}")
        if verdict == frames.WRONG_TOKEN:
            time.sleep(_AFTER_WRONG_TOKEN_S)
        link.sendall(frames.WELCOME.pack(verdict, bytes(32)))
        return False

    def _admit(self, link: socket.socket) -> bool:
        """Count `link` among the clients, if there is room."""
        with self._lock:
            if len(self._clients) >= _MOST_CLIENTS:
                return False
            self._strangers.pop(link, None)
            self._clients.add(link)
            return True

    def _answer_requests(self, link: socket.socket) -> None:
        while True:
            kind, body = frames.receive_frame(link, frames.LONGEST_REQUEST)
            do, request = _parse(kind, body)
            self.requests += 1
            try:
                answer = do(self.spools, request)
            except (KeyError, TypeError, ValueError, OverflowError):
                raise BadFrame("an argument is missing or cannot be") from None
            except (DataLoss, SpoolDamaged, UsageError) as error:
                frames.send_json(link, frames.FAILURE, {"error": type(error).__name__, "message": str(error)})
            except (IngestError, OSError) as error:
                frames.send_json(link, frames.FAILURE, {"error": "", "message": f"cannot read the spool: {error}"})
            else:
                if isinstance(answer, bytes):
                    self.bytes_sent += len(answer)
                    frames.send_frame(link, frames.BYTES, answer)
                else:
                    frames.send_json(link, frames.ANSWER, answer)


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], owner: SpoolServer) -> None:
        self.owner = owner
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Listener)
        self.server.owner.handle(self.request, f"{self.client_address[0]}:{self.client_address[1]}")


def _view(spools: LocalSpools, request: dict[str, Any]) -> SpoolView:
    name = request["name"]
    # From the network: only what is a spool of this tree is a name, and never a path.
    if name not in spools.names():
        raise DataLoss(f"there is no spool called {name}")
    return spools.view(name)


def _durable(spools: LocalSpools, request: dict[str, Any]) -> list[object] | None:
    if request["name"] not in spools.names():
        return None
    place = _view(spools, request).durable()
    return None if place is None else list(place)


def _retired(spools: LocalSpools, request: dict[str, Any]) -> list[Position]:
    name = request["name"]
    return spools.view(name).retired() if name in spools.folders() else []


def _length(spools: LocalSpools, request: dict[str, Any]) -> int:
    # A durable position in no segment: then the segment's length is what is asked for.
    return _view(spools, request).segment_end(_whole(request, "segment"), Position("", -1, 0))


def _read(spools: LocalSpools, request: dict[str, Any]) -> bytes:
    start, end = _whole(request, "start"), _whole(request, "end")
    if not start <= end <= start + frames.LONGEST_ANSWER:
        raise ValueError("range")
    return _view(spools, request).read(_whole(request, "segment"), start, end)


def _headers(spools: LocalSpools, request: dict[str, Any]) -> bytes:
    found = _view(spools, request).headers(_whole(request, "segment"), _whole(request, "start"), _whole(request, "end"))
    return b"".join(
        frames.HEADER.pack(*header) for header in islice(found, frames.LONGEST_ANSWER // 8 // frames.HEADER.size)
    )


def _remove(spools: LocalSpools, request: dict[str, Any]) -> int:
    spool, segment, position = request["place"]
    place = Position(str(spool), int(segment), int(position))
    return _view(spools, request).remove_before(place, read_for_s=float(request["read_for_s"]))


def _whole(request: dict[str, Any], key: str) -> int:
    value = request[key]
    if not isinstance(value, int) or value < 0:
        raise ValueError(key)
    return value


_REQUESTS: dict[str, Callable[[LocalSpools, dict[str, Any]], object]] = {
    "names": lambda spools, _request: spools.names(),
    "durable": _durable,
    "runs": lambda spools, request: _view(spools, request).runs(),
    "retired": _retired,
    "segments": lambda spools, request: _view(spools, request).segments(),
    "length": _length,
    "read": _read,
    "headers": _headers,
    "remove": _remove,
}


def _parse(kind: bytes, body: bytes) -> tuple[Callable[[LocalSpools, dict[str, Any]], object], dict[str, Any]]:
    try:
        request = json.loads(body)
        if kind == frames.REQUEST:
            return _REQUESTS[request["do"]], request
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise BadFrame("it is not a request")


def _shut(link: socket.socket) -> None:
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:
        # Its client was faster.
        return
