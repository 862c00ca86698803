"""Names, their addresses and sockets on CPython; host_tests/laws/test_ports.py covers those of every port."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from app.update_http import Http
from umqtt_kit.firmware_settings import settings_module
from umqtt_testkit.peer import ScriptedPeer
from umqtt_testkit.portable import Clock
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_robust import Client, _host
from umqtt_robust.tls import TLS


@pytest.fixture
def silent_address() -> Iterator[tuple[str, int]]:
    """Provide an address that answers no attempt to connect, because its queue is full."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield server.getsockname()


def drive(client: Client, done) -> None:
    until = time.monotonic() + WAIT_LIMIT_S
    while not done():
        assert time.monotonic() < until
        client.poll(100)


def test_after_an_address_that_does_not_answer_the_next_one_is_tried(monkeypatch, silent_address) -> None:
    with ScriptedPeer() as peer:
        addresses = [silent_address, (peer.host, peer.port)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments: list(found))
        peer.run(lambda peer: peer.accept().accept_session() and None)
        clock = Clock()
        client = Client(b"c", "mqtt://two.example", ticks=clock.ticks_ms, random=lambda n: 0)
        client.tick()
        clock.advance(client.connect_timeout)
        drive(client, lambda: client.connected)
        client.disconnect()
        drive(client, lambda: client.closed)


@pytest.fixture
def closing_address() -> Iterator[tuple[str, int]]:
    """Provide an address that accepts a connection, and closes it at the first bytes."""

    def play() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1024)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=play, daemon=True)
        thread.start()
        yield server.getsockname()
        thread.join(WAIT_LIMIT_S)


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
def test_after_an_address_that_closes_the_connection_the_next_one_is_tried(
    monkeypatch, closing_address, mosquitto, certificates: Path, scheme: str
) -> None:
    secure = (f"certfile {certificates / 'broker.pem'}", f"keyfile {certificates / 'broker.key'}")
    addresses = [closing_address, ("127.0.0.1", mosquitto(*(secure if scheme == "mqtts" else ())))]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments: list(found))
    transports = {"mqtts": TLS(str(certificates / "ca.pem"))} if scheme == "mqtts" else None
    errors: list[BaseException] = []
    client = Client(b"c", f"{scheme}://localhost", transports=transports, on_error=errors.append, random=lambda n: 0)
    drive(client, lambda: client.connected)
    assert len(errors) == 1
    client.disconnect()
    drive(client, lambda: client.closed)


@pytest.mark.parametrize("host", ["a..example", "a" * 64 + ".example"])
def test_a_name_that_cannot_be_a_name_is_an_error_of_the_network(host: str) -> None:
    errors: list[BaseException] = []
    client = Client(b"c", f"mqtt://{host}", on_error=errors.append)
    drive(client, lambda: errors)
    assert isinstance(errors[0], OSError)
    assert host in str(errors[0])


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="this system does not tell what it has sent")
def test_a_socket_tells_what_the_other_end_has_confirmed() -> None:
    # The laws use it in virtual time: host_tests/laws/test_slow_links.py.
    with socket.socket() as server, _host.Socket() as sock:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        server.bind(("127.0.0.1", 0))
        server.listen()
        sock.connect(server.getsockname())
        peer, _ = server.accept()
        with peer:
            begin, waiting = sock.queue()
            assert waiting == 0
            sock.setblocking(False)
            size = sock.write(bytes(40000), 0, 40000)
            read = 0
            while read < size:
                before, waiting = sock.queue()
                assert before - begin <= size - waiting  # asked one after the other
                read += len(peer.recv(1024))
            until = time.monotonic() + WAIT_LIMIT_S
            while sock.queue() != (begin + size, 0):
                assert time.monotonic() < until
    assert sock.queue() is None


def test_every_address_that_settings_may_hold_is_one_that_the_client_takes() -> None:
    # Planted: the settings split an address at its last colon, the client at its first.
    check = settings_module().check_settings
    chosen = random.Random(1)
    pieces = ["a", "b.example", ":", "1883", "[", "]", "fd77", "::1", "127.0.0.1", "0", "65536", ".", "%eth0", "/", "?"]
    addresses = ["".join(chosen.choices(pieces, k=chosen.randint(1, 6))) for _ in range(4000)]
    addresses += ["fd77:1::1", "fd77::1", "a:b:1883", "[]", "[]:1883", "[::1", "[::1]1883", "a]", "[a", "[::1]:", "a:"]
    taken = 0
    for address in ["[::1]", "[::1]:1883", "[fd77:1::1]:1", "a", "a:1", *addresses]:
        brokers = ["mqtt://" + address]
        try:
            check({"brokers": brokers})
        except ValueError:
            continue
        taken += 1
        Client(b"c", brokers, transports={"mqtt": print})
    assert taken >= 100


def test_the_address_of_an_update_takes_brackets() -> None:
    # Planted: the host ends at the first colon.
    asked: list[tuple[str, int]] = []
    source = Http("http://[fd77::1]:8000/releases", {"mqtt": lambda host, port, path: asked.append((host, port))}, None)
    source.open("0" * 64, 0)
    source._factory._factory(source._host, source._port, "")
    assert asked == [("fd77::1", 8000)]
    assert b"GET /releases/000" in source._out and b"\r\nHost: [fd77::1]:8000\r\n" in source._out
