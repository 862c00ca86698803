"""Clients of one address that are silent, slow or many keep no client of another from any of our HTTP servers.

For the broker's other listeners, whose clients log in, see test_broker_before_login.py. No time limit may help: here
the good client gets in by its share alone.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_certificates import Pki
from observed import ObservedBroker
from prometheus_client import CollectorRegistry
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from spark_ingest import metrics

LIMITS = {"metrics": metrics.MAX_CONNECTIONS, "page": 64}


@contextlib.contextmanager
def server(kind: str, folder: Path, pki: Pki) -> Iterator[tuple[int, bytes]]:
    """Run a server; yield its port and a path that it answers."""
    if kind == "page":
        with ObservedBroker(folder) as broker:
            broker.stop_clock()
            yield broker.http_port, b"/healthz"
    else:
        serving = metrics.MetricsServer("127.0.0.1", 0, CollectorRegistry())
        try:
            yield serving.port, b"/metrics"
        finally:
            serving.close()


def answer(port: int, path: bytes, context: ssl.SSLContext | None) -> bytes:
    """Ask as a good client; return the first bytes of the answer."""
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S))
        if context is not None:
            link = stack.enter_context(context.wrap_socket(link, server_hostname="localhost"))
        link.sendall(b"GET %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (path, port))
        return link.recv(12)


@pytest.mark.parametrize("sent", [b"", b"\x16", b"GET / HTTP/1.1\r\nHost: a\r\nX: "])
@pytest.mark.parametrize("kind", LIMITS)
def test_a_good_client_is_served_whatever_those_of_another_address_do(
    tmp_path: Path, pki: Pki, monkeypatch: pytest.MonkeyPatch, kind: str, sent: bytes
) -> None:
    """Planted: a full server refuses the newest connection; a thread and a file for each, for ever; a silent handshake
    cannot be ended."""
    monkeypatch.setattr(metrics._Server, "longest_s", 1e9)
    context = pki.context() if kind.endswith("tls") else None
    before = threading.active_count()
    with server(kind, tmp_path, pki) as (port, path), contextlib.ExitStack() as stack:
        for number in range(2 * LIMITS[kind] + 20):
            address = ("127.0.0.1", port)
            link = stack.enter_context(socket.create_connection(address, WAIT_LIMIT_S, ("127.0.0.2", 0)))
            with contextlib.suppress(ConnectionError):
                link.sendall(sent)
            if number % 30 == 0:
                assert answer(port, path, context).startswith(b"HTTP/1."), f"after {number + 1}"
        assert answer(port, path, context).startswith(b"HTTP/1.")
        eventually(lambda: threading.active_count() - before <= LIMITS[kind] + 2, threading.active_count)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n"])
@pytest.mark.parametrize("kind", LIMITS)
def test_silent_clients_are_closed_in_time(
    tmp_path: Path, pki: Pki, monkeypatch: pytest.MonkeyPatch, kind: str, sent: bytes
) -> None:
    """Planted: no time limit."""
    monkeypatch.setattr(metrics._Server, "longest_s", 0.05)
    with contextlib.ExitStack() as stack:
        if kind == "page":
            broker = stack.enter_context(ObservedBroker(tmp_path))
            broker.stop_clock()
            port = broker.http_port
        else:
            port, _ = stack.enter_context(server(kind, tmp_path, pki))
        link = stack.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S))
        link.sendall(sent)
        if kind == "page":
            assert broker.request("GET", "/healthz").status == 200
            broker.advance(11.0)
        with contextlib.suppress(ConnectionError):
            assert link.recv(1) == b""
