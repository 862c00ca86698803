"""Spools that a collector serves over TCP (``--serve``), so that readers need no disk in common with it. ::

    spools = RemoteSpools("10.0.0.7:7071", read_token(Path("token")))
    for name in spools.names():
        print(name, spools.view(name).durable())

The wire is described in ``frames``. A connection is made when first needed, kept, and made anew once when it turns
out to be broken: every request may be repeated. Objects pickle without their connection and print without their token.
"""

import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import DataLoss, IngestError, SpoolDamaged, SpoolUnreachable, UsageError
from ..hosts import is_host
from . import frames
from .blocks import BlockHeader, Position, Run
from .frames import BadFrame

_TIMEOUT_S = 30.0
# An answer must not say which exception this process raises, but for these.
_ERRORS: Mapping[str, type[IngestError]] = {kind.__name__: kind for kind in (DataLoss, SpoolDamaged, UsageError)}
_REFUSALS = {
    frames.WRONG_TOKEN: "it does not accept the token: give both sides the same token file",
    frames.WRONG_VERSION: f"it speaks another version than {frames.VERSION}: install the same release on both sides",
    frames.TOO_MANY: "it has too many clients",
}


class RemoteSpools:
    """The spools of one or several serving collectors, as a :class:`Spools`.

    :param servers: ``HOST:PORT``, several separated by commas; each name must be served by one of them only.
    :param token: what all of them were given in their ``--serve-token-file``; see :func:`frames.read_token`.
    :param timeout_s: for connecting, and for each answer.
    :raises UsageError: `servers` is not that.
    """

    def __init__(self, servers: str, token: bytes, *, timeout_s: float = _TIMEOUT_S) -> None:
        addresses = [_parse(server.strip()) for server in servers.split(",") if server.strip()]
        if not addresses:
            raise UsageError("no server given: HOST:PORT of a collector that was started with --serve")
        self._servers = [_Server(host, port, token, timeout_s) for host, port in addresses]
        self._known: dict[str, _Server] = {}

    def __repr__(self) -> str:
        return f"RemoteSpools({','.join(server.address for server in self._servers)!r})"

    def names(self) -> list[str]:
        """The names of the spools that are served, in order.

        :raises SpoolUnreachable: a server does not answer or refuses.
        :raises UsageError: two servers have a spool of the same name.
        """
        known: dict[str, _Server] = {}
        for server in self._servers:
            for name in server.ask("names"):
                if name in known:
                    raise UsageError(
                        f"both {known[name].address} and {server.address} serve a spool called {name}: "
                        "give one collector another --name"
                    )
                known[name] = server
        self._known = known
        return sorted(known)

    def view(self, name: str) -> "RemoteView":
        """The spool called `name`; one that no server has is looked for at the first. Raises as :meth:`names`."""
        if len(self._servers) > 1 and name not in self._known:
            self.names()
        return RemoteView(self._known.get(name, self._servers[0]), name)

    def close(self) -> None:
        """Close the connections; the next request would make them anew."""
        for server in self._servers:
            server.close()


class RemoteView:
    """One spool of a server, as a :class:`View`. Every method may raise :class:`SpoolUnreachable` as well."""

    def __init__(self, server: "_Server", name: str) -> None:
        self._server = server
        self.name = name

    def __repr__(self) -> str:
        return f"RemoteView({self.where!r})"

    @property
    def where(self) -> str:
        """What a person calls this spool."""
        return f"{self.name} at {self._server.address}"

    def durable(self) -> Position | None:
        """The durable position now; None when the server has no such spool."""
        place = self._server.ask("durable", name=self.name)
        return None if place is None else Position(*place)

    def runs(self) -> list[Run]:
        """The runs whose segments may be there, in order."""
        return [Run(*run) for run in self._server.ask("runs", name=self.name)]

    def retired(self) -> list[Position]:
        """Up to where the spools that had this name were read when they were retired."""
        return [Position(*place) for place in self._server.ask("retired", name=self.name)]

    def segments(self) -> list[int]:
        """Numbers of the segments that exist, in order."""
        return self._server.ask("segments", name=self.name)

    def segment_end(self, segment: int, durable: Position) -> int:
        """Where the readable part of `segment` ends. :raises DataLoss: the segment is gone."""
        if segment == durable.segment:
            return durable.position
        return self._server.ask("length", name=self.name, segment=segment)

    def read(self, segment: int, start: int, end: int) -> bytes:
        """The bytes [`start`, `end`) of a segment.

        :raises DataLoss: the segment is gone.
        :raises SpoolDamaged: it is shorter than `end`.
        """
        pieces: list[bytes] = []
        while start < end:
            until = min(end, start + frames.LONGEST_ANSWER)
            piece = self._server.ask_bytes("read", name=self.name, segment=segment, start=start, end=until)
            if len(piece) != until - start:
                raise self._server.spoiled(f"{len(piece)} bytes for {until - start}")
            pieces.append(piece)
            start = until
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def headers(self, segment: int, start: int, end: int) -> Iterator[BlockHeader]:
        """The headers of the blocks in [`start`, `end`), which lie between two blocks.

        :raises DataLoss: the segment is gone.
        :raises SpoolDamaged: the range does not consist of whole blocks.
        """
        while start < end:
            raw = self._server.ask_bytes("headers", name=self.name, segment=segment, start=start, end=end)
            if not raw or len(raw) % frames.HEADER.size:
                raise self._server.spoiled(f"{len(raw)} bytes of block headers")
            for fields in frames.HEADER.iter_unpack(raw):
                header = BlockHeader(*fields)
                if not start < header.end <= end:
                    raise self._server.spoiled("block headers that were not asked for")
                yield header
                start = header.end

    def remove_before(self, place: Position, *, read_for_s: float) -> int:
        """Note that segments before `place.segment` have been read, remove those read `read_for_s` ago; how many."""
        return self._server.ask("remove", name=self.name, place=list(place), read_for_s=read_for_s)


class _Server:
    """One server and the connection to it. May be used by several threads: requests then take turns."""

    def __init__(self, host: str, port: int, token: bytes, timeout_s: float) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._host, self._port = host, port
        self._token = token
        self._timeout_s = timeout_s
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_link", "_owner", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._owner = os.getpid()

    def ask(self, do: str, **arguments: object) -> Any:
        """What a request answers in JSON."""
        kind, body = self._exchange({"do": do, **arguments})
        if kind != frames.ANSWER:
            raise self.spoiled(f"a frame of kind {kind!r}")
        try:
            return json.loads(body)
        except ValueError as error:
            raise self.spoiled(f"what is not JSON ({error})") from None

    def ask_bytes(self, do: str, **arguments: object) -> bytes:
        """What a request answers in bytes."""
        kind, body = self._exchange({"do": do, **arguments})
        if kind != frames.BYTES:
            raise self.spoiled(f"a frame of kind {kind!r}")
        return body

    def spoiled(self, what: str) -> SpoolUnreachable:
        """The error for an answer that must not be used; the connection is closed."""
        self.close()
        return SpoolUnreachable(f"{self.address} sent a wrong answer: {what}; nothing of it was used")

    def close(self) -> None:
        """Close the connection, if there is one."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _exchange(self, request: dict[str, object]) -> tuple[bytes, bytes]:
        with self._lock:
            # A connection that came over a fork is the parent's: two processes would read each other's answers.
            if self._owner != os.getpid():
                self._link, self._owner = None, os.getpid()
            kept = self._link is not None
            try:
                kind, body = self._once(request)
            except (OSError, EOFError) as error:
                self.close()
                # The server may have been restarted since the last request; a fresh connection that breaks is news.
                if not kept or isinstance(error, TimeoutError):
                    raise self._unreachable(error) from error
                try:
                    kind, body = self._once(request)
                except (OSError, EOFError) as second:
                    self.close()
                    raise self._unreachable(second) from second
        if kind == frames.FAILURE:
            raise self._failure(body)
        return kind, body

    def _once(self, request: dict[str, object]) -> tuple[bytes, bytes]:
        if self._link is None:
            self._link = self._connect()
        try:
            frames.send_json(self._link, frames.REQUEST, request)
            return frames.receive_frame(self._link, frames.LONGEST_ANSWER)
        except BadFrame as error:
            raise self.spoiled(str(error)) from None

    def _connect(self) -> socket.socket:
        link = socket.create_connection((self._host, self._port), timeout=self._timeout_s)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            magic, version, server_nonce = frames.GREETING.unpack(frames.receive_exactly(link, frames.GREETING.size))
            if magic != frames.MAGIC:
                raise SpoolUnreachable(f"{self.address} is not a collector that serves spools", refused=True)
            if version != frames.VERSION:
                raise self._refused(frames.WRONG_VERSION)
            nonce = secrets.token_bytes(frames.NONCE_BYTES)
            shown = frames.proof(self._token, b"client", server_nonce, nonce)
            link.sendall(frames.HELLO.pack(frames.MAGIC, frames.VERSION, nonce, shown))
            verdict, its_proof = frames.WELCOME.unpack(frames.receive_exactly(link, frames.WELCOME.size))
            if verdict != frames.ACCEPTED:
                raise self._refused(verdict)
            if not hmac.compare_digest(its_proof, frames.proof(self._token, b"server", server_nonce, nonce)):
                raise self._refused(frames.WRONG_TOKEN)
        except BadFrame as error:
            link.close()
            raise SpoolUnreachable(f"{self.address} sent a wrong answer: {error}") from None
        except BaseException:
            link.close()
            raise
        return link

    def _refused(self, verdict: int) -> SpoolUnreachable:
        return SpoolUnreachable(
            f"{self.address} refused: {_REFUSALS.get(verdict, 'no reason given')}", refused=verdict != frames.TOO_MANY
        )

    def _unreachable(self, error: Exception) -> SpoolUnreachable:
        reason = getattr(error, "strerror", None) or str(error) or "it closed the connection"
        return SpoolUnreachable(f"cannot reach the spools at {self.address}: {reason}; is the collector running?")

    def _failure(self, body: bytes) -> IngestError:
        try:
            content = json.loads(body)
            kind, message = content["error"], str(content["message"])
        except (ValueError, KeyError, TypeError):
            return self.spoiled("an error that cannot be read")
        return _ERRORS.get(kind, SpoolUnreachable)(f"{self.address}: {message}")


def _parse(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    if not is_host(host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{server!r} is not HOST:PORT of a collector that serves its spools")
    return host.strip("[]"), int(port)
