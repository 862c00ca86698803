"""TLS against mosquitto and a scripted server, on both interpreters: always verified, never blocking."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.relay import Direction
from umqtt_testkit.waiting import WAIT_LIMIT_S

CONNACK = b"\x20\x02\x00\x00"


@pytest.fixture
def broker(mosquitto: Callable[..., int], certificates: Path) -> Callable[..., int]:
    """Provide broker("expired"), which runs mosquitto with that certificate and returns its port."""

    def start(name: str = "broker", *lines: str) -> int:
        return mosquitto(f"certfile {certificates / f'{name}.pem'}", f"keyfile {certificates / f'{name}.key'}", *lines)

    return start


class Server:
    """A TLS server that runs `script(link)` for each connection."""

    def __init__(self, certificates: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificates / "broker.pem", certificates / "broker.key")
        self.context.maximum_version = version
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.threads: list[threading.Thread] = []
        self.release = threading.Event()

    def run(self, script: Callable[[ssl.SSLSocket], None]) -> None:
        def serve() -> None:
            link, _ = self.listener.accept()
            with self.context.wrap_socket(link, server_side=True) as secure:
                script(secure)

        self.threads.append(threading.Thread(target=serve, daemon=True))
        self.threads[-1].start()

    def close(self) -> None:
        self.release.set()
        self.listener.close()
        for thread in self.threads:
            thread.join(WAIT_LIMIT_S)


@pytest.fixture
def server(certificates: Path) -> Iterator[Server]:
    one = Server(certificates)
    yield one
    one.close()


def url(port: int) -> str:
    return f"mqtts://localhost:{port}"


@pytest.mark.parametrize("ca", ["ca.pem", "ca.der"])
def test_messages_of_every_size_pass_unchanged(program, broker, certificates: Path, ca: str) -> None:
    """Sizes around the ends of a one-byte length, of TLS's pieces on a board, and of the client's buffers."""
    sizes = [16, 119, 120, 127, 128, 500, 512, 700, 900, 1000]
    tls = {"ca": str(certificates / ca)}
    events = program("talk.py", url=url(broker()), tls=tls, count=60, sizes=sizes).finish()
    assert [event["event"] for event in events] == ["connected", "done"]


def test_a_client_certificate_is_shown(program, broker, certificates: Path) -> None:
    port = broker("broker", f"cafile {certificates / 'ca.pem'}", "require_certificate true")
    tls = {"ca": str(certificates / "ca.pem")}
    assert program("talk.py", url=url(port), tls=tls).finish()[-1]["event"] == "stopped"
    tls |= {"cert": str(certificates / "client.pem"), "key": str(certificates / "client.key")}
    assert program("talk.py", url=url(port), tls=tls).finish()[-1]["event"] == "done"


def test_a_broker_that_knows_the_root_alone_gets_the_intermediate_certificates_too(
    program, broker, certificates: Path
) -> None:
    """Planted: only the first block of the file is sent."""
    port = broker("broker", f"cafile {certificates / 'ca.pem'}", "require_certificate true")
    tls = {"ca": str(certificates / "ca.pem"), "key": str(certificates / "chained.key")}
    events = program("talk.py", url=url(port), tls=tls | {"cert": str(certificates / "chained.pem")}).finish()
    assert events[-1]["event"] == "stopped"
    events = program("talk.py", url=url(port), tls=tls | {"cert": str(certificates / "chain.pem")}).finish()
    assert events[-1]["event"] == "done"


@pytest.mark.parametrize(
    ("name", "host", "server_name"),
    [("expired", "localhost", None), ("stranger", "localhost", None), ("broker", "127.0.0.1", None),
     ("broker", "localhost", "broker.example")],
)  # fmt: skip
def test_a_certificate_that_does_not_hold_is_refused_by_name(
    program, broker, certificates: Path, name: str, host: str, server_name: str | None
) -> None:
    port = broker(name)
    tls = {"ca": str(certificates / "ca.pem"), "server_name": server_name}
    events = program("talk.py", url=f"mqtts://{host}:{port}", tls=tls).finish()
    assert {event["event"] for event in events} == {"error", "stopped"}
    assert events[0]["type"] == "CertificateRefused" and events[0]["text"]


def test_the_server_name_may_differ_from_the_host(program, broker, certificates: Path) -> None:
    tls = {"ca": str(certificates / "ca.pem"), "server_name": "localhost"}
    assert program("talk.py", url=f"mqtts://127.0.0.1:{broker()}", tls=tls).finish()[-1]["event"] == "done"


@pytest.mark.parametrize("year", [1970, 2000, 2021])
def test_before_the_clock_is_set_nothing_is_connected(program, broker, certificates: Path, year: int) -> None:
    tls = {"ca": str(certificates / "ca.pem")}
    events = program("talk.py", url=url(broker()), tls=tls, year=year).finish()
    assert events[0]["type"] == "ClockNotSet"


def test_a_handshake_that_is_never_answered_ends_at_connect_timeout(program, certificates: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        tls = {"ca": str(certificates / "ca.pem")}
        *errors, end = program("talk.py", url=url(port), tls=tls, connect_timeout=2000, errors=2, poll_ms=50).finish()
    assert len(errors) == 2 and end["polls"] < 200, "it must wait for the broker, not spin"
    for error in errors:
        assert error["type"] == "LinkLost" and "connect_timeout" in error["text"]
        assert error["seconds"] >= 1.9
    # A tick that blocked for the broker would take the whole timeout, so there would be only two or three.
    assert max(error["polls"] for error in errors) > 5


@pytest.mark.parametrize("direction", ["up", "down"])
def test_cut_during_the_handshake(program, broker, certificates: Path, direction: Direction) -> None:
    """Each cut causes one error and another attempt. UMQTT_SWEEP=1 cuts at every byte, otherwise some are sampled."""
    tls = {"ca": str(certificates / "ca.pem")}
    with FaultProxy(("127.0.0.1", broker())) as proxy:
        whole = program("talk.py", url=url(proxy.port), tls=tls, only_connect=True)
        whole.until("connected")
        handshake = proxy.connections[0].passed(direction) - 40  # without the records that carry MQTT
        whole.kill()
        cuts = range(0, handshake, 1 if os.environ.get("UMQTT_SWEEP") else 71)
        for at in cuts:
            proxy.cut_next(at, direction)
        running = program(
            "talk.py", url=url(proxy.port), tls=tls, errors=10000, limit_s=10 * WAIT_LIMIT_S, client_id=""
        )
        events = running.finish()
    assert events[-1]["event"] == "done"
    failed = [event for event in events if event["event"] in ("error", "lost")]
    assert len(failed) == len(cuts), events
    assert all(event["type"] != "CertificateRefused" for event in failed)


def test_one_byte_at_a_time(program, broker, certificates: Path) -> None:
    with FaultProxy(("127.0.0.1", broker())) as proxy:
        proxy.dribble(True, interval_ms=0.1)
        tls = {"ca": str(certificates / "ca.pem")}
        events = program("talk.py", url=url(proxy.port), tls=tls, count=2, connect_timeout=60000).finish()
    assert [event["event"] for event in events] == ["connected", "done"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_close_notify_is_the_end_while_tcp_stays_open(program, certificates: Path, version: ssl.TLSVersion) -> None:
    server = Server(certificates, version)
    open_until_then: list[bool] = []

    def script(link: ssl.SSLSocket) -> None:
        link.recv(1000)
        link.sendall(CONNACK)
        link.recv(1000)  # SUBSCRIBE
        link.setblocking(False)
        with suppress(ssl.SSLError, ConnectionError):  # the client sends no close_notify, or has gone
            link.unwrap()  # close_notify; TCP stays open
        open_until_then.append(server.release.wait(WAIT_LIMIT_S))

    server.run(script)
    try:
        event = program("talk.py", url=url(server.port), tls={"ca": str(certificates / "ca.pem")}).until("lost")
        assert "closed by the broker" in event["text"]
    finally:
        server.close()
    assert open_until_then == [True]


def test_what_a_full_link_did_not_take_goes_once_and_whole(program, server: Server, certificates: Path) -> None:
    """The server does not read for a while: a partial write of TLS must continue with the same bytes."""
    got = bytearray()

    def script(link: ssl.SSLSocket) -> None:
        link.recv(1000)
        link.sendall(CONNACK)
        packets = 0
        server.release.wait(1.5)
        link.settimeout(WAIT_LIMIT_S)
        while packets < 400 and (data := link.recv(65536)):
            got.extend(data)
            while len(got) > 3:
                length, shift, i = 0, 0, 1
                while i < len(got):
                    length |= (got[i] & 127) << shift
                    shift += 7
                    i += 1
                    if got[i - 1] < 128:
                        break
                if len(got) < i + length:
                    break
                packet = bytes(got[: i + length])
                del got[: i + length]
                assert packet[0] in (0x30, 0x82), packet[:20]
                if packet[0] == 0x30:
                    assert packet[i:] == b"\x00\x01t" + b"%06d" % packets + b"y" * 20000, packets
                    packets += 1
        link.sendall(b"\xd0\x00")
        done.set()
        server.release.wait(WAIT_LIMIT_S)

    done = threading.Event()
    server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    server.run(script)
    running = program("flood.py", url=url(server.port), tls={"ca": str(certificates / "ca.pem")}, count=400)
    assert running.finish()[-1]["event"] == "done"
    assert done.wait(WAIT_LIMIT_S)


def test_what_tls_has_decrypted_already_is_not_waited_for(program, server: Server, certificates: Path) -> None:
    """One record holds more messages than one tick reads, and nothing follows it.

    Planted: waiting for the socket alone, which never ends.
    """

    def script(link: ssl.SSLSocket) -> None:
        link.recv(1000)
        link.sendall(CONNACK)
        link.sendall((b"\x30\x62\x00\x01t" + b"z" * 95) * 150)
        server.release.wait(WAIT_LIMIT_S)

    server.run(script)
    running = program("listen.py", url=url(server.port), tls={"ca": str(certificates / "ca.pem")}, count=150)
    running.finish()
