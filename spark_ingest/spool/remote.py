"""Read access to spools that a collector serves over HTTPS (``--serve``), for readers on other machines. ::

    spools = RemoteSpools("https://10.0.0.7:7071", token, ca=Path("ca.pem").read_text())
    for name in spools.names():
        print(name, spools.view(name).durable())

``server`` documents the requests. A connection is made when first needed and then kept; if it turns out to be broken,
the request is repeated once on a new one, which is safe for every request. Pickled objects contain neither the
connection nor the right to delete. Tokens are never part of a printed object.
"""

import json
import os
import ssl
import threading
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from ..errors import DataLoss, IngestError, SpoolDamaged, SpoolUnreachable, UsageError
from ..hosts import is_host, is_loopback
from .blocks import BLOCK_HEADER, BlockHeader, Position, Run, Times, damage_message, decode_block_header, segment_path

_TIMEOUT_S = 30.0
# The only exceptions that a server's answer can select; any other name becomes SpoolUnreachable.
_ERRORS: Mapping[str, type[IngestError]] = {kind.__name__: kind for kind in (DataLoss, SpoolDamaged, UsageError)}


class RemoteSpools:
    """The spools of one or several serving collectors, as a :class:`Spools`.

    :param servers: ``https://HOST:PORT``, several separated by commas; ``http://`` only for loopback addresses. Two
        servers must not serve spools of the same name.
    :param token: the token for reading; see :mod:`tokens`.
    :param delete_token: the token for deleting; without it, :meth:`RemoteView.remove_before` raises UsageError.
    :param ca: PEM text of the authority that signed the servers' certificates; None to use the system's trusted ones.
    :param timeout_s: seconds allowed for connecting, and for each read from the socket.
    :raises UsageError: `servers` is malformed, or `ca` is not a certificate.
    """

    def __init__(
        self,
        servers: str,
        token: str,
        *,
        delete_token: str | None = None,
        ca: str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        urls = [server.strip() for server in servers.split(",") if server.strip()]
        if not urls:
            raise UsageError("no server given: https://HOST:PORT of a collector that was started with --serve")
        tokens = {"GET": token, "HEAD": token, "DELETE": delete_token}
        self._servers = [_Server(*_parse(url), tokens, ca, timeout_s) for url in urls]
        self._known: dict[str, _Server] = {}

        self.may_delete = delete_token is not None

    def __repr__(self) -> str:
        return f"RemoteSpools({','.join(server.url for server in self._servers)!r})"

    def names(self) -> list[str]:
        """Return the names of the served spools, in order.

        :raises SpoolUnreachable: a server does not answer or refuses.
        :raises UsageError: two servers have a spool of the same name.
        """
        known: dict[str, _Server] = {}
        for server in self._servers:
            for name in server.ask("GET", "/spools", "spools"):
                if name in known:
                    raise UsageError(
                        f"both {known[name].url} and {server.url} serve a spool called {name}: "
                        "give one collector another --name"
                    )
                known[name] = server
        self._known = known
        return sorted(known)

    def view(self, name: str) -> "RemoteView":
        """Return the spool called `name`, at the first server if none has it. Raises as :meth:`names`."""
        if len(self._servers) > 1 and name not in self._known:
            self.names()
        return RemoteView(self._known.get(name, self._servers[0]), name)

    def close(self) -> None:
        """Close the connections. The next request opens a new one."""
        for server in self._servers:
            server.close()


class RemoteView:
    """One spool of a server, as a :class:`View`. Every method may raise :class:`SpoolUnreachable`."""

    def __init__(self, server: "_Server", name: str) -> None:
        self._server = server
        self._path = f"/spools/{quote(name, safe='')}"
        self.name = name

    def __repr__(self) -> str:
        return f"RemoteView({self.where!r})"

    @property
    def where(self) -> str:
        """The spool's location for messages: NAME at HOST:PORT."""
        return f"{self.name} at {self._server.address}"

    def durable(self) -> Position | None:
        """Return the current durable position; None if the server has no such spool."""
        place = self._describe("durable")
        return None if place is None else Position(*place)

    def runs(self) -> list[Run]:
        """Return the runs that may still have segments, in order."""
        return [Run(*run) for run in self._describe("runs") or []]

    def retired(self) -> list[Position]:
        """Return the positions up to which retired spools of this name had been read."""
        return [Position(*place) for place in self._describe("retired") or []]

    def segments(self) -> list[int]:
        """Return the numbers of the existing segments, in order."""
        return self._describe("segments") or []

    def times(self) -> list[Times]:
        """Return the receive times of segments, for those where they are known without reading the segment."""
        return [Times(*times) for times in self._describe("times") or []]

    def segment_end(self, segment: int, durable: Position) -> int:
        """Return the end of the readable part of `segment` in bytes: `durable` if that is in it, else its length.

        :raises DataLoss: the segment is gone.
        """
        if segment == durable.segment:
            return durable.position
        answer = self._server.exchange("HEAD", self._segment(segment))
        if not (length := answer.headers.get("content-length", "")).isdecimal():
            raise self._server.wrong_answer("a segment without a length")
        return int(length)

    def read(self, segment: int, start: int, end: int) -> bytes:
        """Return the bytes [`start`, `end`) of a segment.

        :raises DataLoss: the segment is gone.
        :raises SpoolDamaged: it is shorter than `end`.
        """
        if start == end:
            return b""
        answer = self._server.exchange("GET", self._segment(segment), {"Range": f"bytes={start}-{end - 1}"})
        if answer.status == 416 or (answer.status == 206 and len(answer.body) < end - start):
            position = start + (len(answer.body) if answer.status == 206 else 0)
            raise SpoolDamaged(damage_message(segment_path(Path(self.where), segment), position))
        if answer.status != 206 or len(answer.body) != end - start:
            raise self._server.wrong_answer(f"{len(answer.body)} bytes for {end - start}")
        return answer.body

    def headers(self, segment: int, start: int, end: int) -> Iterator[BlockHeader]:
        """Yield the headers of the blocks in [`start`, `end`), both block boundaries; data is not checked.

        :raises DataLoss: the segment is gone.
        :raises SpoolDamaged: the range does not consist of complete blocks.
        """
        while start < end:
            query = urlencode({"start": start, "end": end})
            raw = self._server.exchange("GET", f"{self._segment(segment)}/headers?{query}").body
            for at in range(0, max(len(raw), 1), BLOCK_HEADER.size):
                header = decode_block_header(raw[at : at + BLOCK_HEADER.size], start)
                if header is None or header.end > end:
                    raise self._server.wrong_answer("invalid block headers")
                yield header
                start = header.end

    def remove_before(self, place: Position, *, read_for_s: float) -> int:
        """Mark the segments before `place.segment` as read; remove those marked at least `read_for_s` seconds ago.

        Returns the number of removed segments.

        :raises UsageError: there is no token for deleting.
        """
        query = urlencode({"before": place.segment, "spool": place.spool, "read_for_s": read_for_s})
        return self._server.ask("DELETE", f"{self._path}/segments?{query}", "removed")

    def _segment(self, segment: int) -> str:
        return f"{self._path}/segments/{segment}"

    def _describe(self, key: str) -> Any:
        try:
            return self._server.ask("GET", self._path, key)
        except DataLoss:
            # The server has no such spool.
            return None


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Server:
    """One server and the connection to it. Several threads may use it; their requests are serialized."""

    def __init__(
        self, scheme: str, host: str, port: int, tokens: Mapping[str, str | None], ca: str | None, timeout_s: float
    ) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.url = f"{scheme}://{self.address}"
        self._scheme, self._host, self._port = scheme, host, port
        self._tokens = tokens
        self._ca = ca
        self._timeout_s = timeout_s
        self._reset()
        if scheme == "https":
            self._tls()

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("_link", "_owner", "_lock")}
        # Executors only read; segments are removed only by the process that was given the token for deleting.
        return {**state, "_tokens": {**self._tokens, "DELETE": None}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._link: HTTPConnection | None = None
        self._owner = os.getpid()

    def ask(self, method: str, path: str, key: str) -> Any:
        """Send a request and return the value of `key` in the JSON object of the answer.

        :raises SpoolUnreachable: the answer has no such key; or as :meth:`exchange`.
        :raises DataLoss, SpoolDamaged, UsageError: as :meth:`exchange`.
        """
        try:
            return json.loads(self.exchange(method, path).body)[key]
        except (ValueError, KeyError, TypeError):
            raise self.wrong_answer(f"no {key}") from None

    def wrong_answer(self, what: str) -> SpoolUnreachable:
        """Close the connection and return the error for an answer that must not be used."""
        self.close()
        return SpoolUnreachable(f"{self.url} sent a wrong answer: {what}; nothing of it was used")

    def close(self) -> None:
        """Close the connection, if there is one, once no thread waits for an answer on it."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def exchange(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> _Answer:
        """Send a request and return the answer, whose status is 200, 206 or 416.

        :raises SpoolUnreachable: there is no answer, or it is a refusal or an unknown error.
        :raises DataLoss: the requested object does not exist.
        :raises SpoolDamaged: the server reports damage.
        :raises UsageError: there is no token for this method, or the server reports a usage error.
        """
        token = self._tokens[method]
        if token is None:
            raise UsageError(f"{self.url} removes segments for its token to delete only: give option deleteTokenFile")
        headers = {"Authorization": f"Bearer {token}", **(headers or {})}
        with self._lock:
            # After a fork, the connection belongs to the parent: two processes would read each other's answers.
            if self._owner != os.getpid():
                self._link, self._owner = None, os.getpid()
            kept = self._link is not None
            try:
                answer = self._once(method, path, headers)
            except (OSError, HTTPException) as error:
                self._drop()
                # The server may have restarted since the last request, so retry once; not if the connection was new.
                if not kept or isinstance(error, TimeoutError):
                    raise self._unreachable(error) from error
                try:
                    answer = self._once(method, path, headers)
                except (OSError, HTTPException) as second:
                    self._drop()
                    raise self._unreachable(second) from second
        if answer.status not in (200, 206, 416):
            raise self._failure(path, answer)
        return answer

    def _once(self, method: str, path: str, headers: Mapping[str, str]) -> _Answer:
        if self._link is None:
            self._link = self._connection()
        self._link.request(method, path, headers=dict(headers))
        answer = self._link.getresponse()
        # Raises IncompleteRead when the connection ends before the announced length.
        body = answer.read()
        return _Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, body)

    def _connection(self) -> HTTPConnection:
        if self._scheme == "http":
            return HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls())

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cadata=self._ca)
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(f"what was given as the authority for {self.url} is no certificate: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def _unreachable(self, error: Exception) -> SpoolUnreachable:
        if isinstance(error, ssl.SSLCertVerificationError):
            return SpoolUnreachable(
                f"{self.url} shows a certificate that is not trusted ({error.verify_message}): "
                "give its authority's file as caFile, --ca of umqtt spool, --server-ca of umqtt ingest",
                refused=True,
            )
        reason = getattr(error, "strerror", None) or str(error) or "it closed the connection"
        return SpoolUnreachable(f"cannot reach the spools at {self.url}: {reason}; is the collector running?")

    def _failure(self, path: str, answer: _Answer) -> IngestError:
        """Return the error for an answer with an error status."""
        if answer.status == 404:
            return DataLoss(f"{self.url}{path.partition('?')[0]} was removed before it was read")
        try:
            content = json.loads(answer.body)
            kind, message = str(content["error"]), str(content["message"])
        except (ValueError, KeyError, TypeError):
            kind, message = "", f"it answered with status {answer.status}"
        if answer.status == 401:
            what = f"{self.url} refused: {message}; give the token that the collector was started with"
            return SpoolUnreachable(what, refused=True)
        return _ERRORS.get(kind, SpoolUnreachable)(f"{self.url}: {message}")


def _parse(url: str) -> tuple[str, str, int]:
    """Parse ``https://HOST:PORT`` into (scheme, host, port).

    :raises UsageError: the URL is malformed, or it is ``http://`` and not a loopback address.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.scheme not in ("http", "https") or not is_host(host) or not port or parts.path not in ("", "/"):
        raise UsageError(f"{url!r} is not https://HOST:PORT of a collector that serves its spools")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError("the address of a server is https://HOST:PORT and nothing more; a token has a file")
    if parts.scheme == "http" and not is_loopback(host):
        raise UsageError(f"{url} is without TLS, which is for this machine alone: give https://")
    return parts.scheme, host, port
