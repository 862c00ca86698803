"""The asyncio client on both interpreters, over TCP, TLS and WebSocket."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from umqtt_testkit.encoder import acknowledgement, connack, suback
from umqtt_testkit.peer import ScriptedPeer
from umqtt_testkit.waiting import WAIT_LIMIT_S
from umqtt_testkit.wire import Type
from web_relay import WebRelay

from umqtt_robust import _host


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws"])
def test_what_the_client_promises(program, mosquitto, certificates: Path, closed_port: int, scheme: str) -> None:
    lines = ["max_inflight_messages 10"]
    closed_url = f"{'mqtts' if scheme == 'mqtts' else 'mqtt'}://127.0.0.1:{closed_port}"
    tls = None
    if scheme == "mqtts":
        lines += [f"certfile {certificates / 'broker.pem'}", f"keyfile {certificates / 'broker.key'}"]
        tls = {"ca": str(certificates / "ca.pem")}
    port = mosquitto(*lines)
    if scheme == "ws":
        with WebRelay(port) as relay:
            events = program("aio_cases.py", url=f"ws://127.0.0.1:{relay.port}/mqtt", closed_url=closed_url).finish()
    else:
        url = f"{scheme}://localhost:{port}"
        events = program("aio_cases.py", url=url, closed_url=closed_url, tls=tls).finish()
    assert len(events) == (18 if scheme == "mqtt" else 17)
    idle = next(event for event in events if event["event"] == "idle_ticks")
    assert idle["ticks"] <= 2, "it must wait, not poll"


def test_a_refused_subscription_is_raised_where_it_was_asked_for(program) -> None:
    def script(peer: ScriptedPeer) -> None:
        link = peer.accept()
        link.expect(Type.CONNECT)
        link.send(connack())
        for return_code in (0x80, 0):
            packet = link.expect(Type.SUBSCRIBE)
            link.send(suback(packet.packet_id, return_code))
        packet = link.expect(Type.UNSUBSCRIBE)
        link.send(acknowledgement(Type.UNSUBACK, packet.packet_id))
        link.expect(Type.DISCONNECT)

    with ScriptedPeer() as peer:
        peer.run(script)
        events = program("aio_cases.py", url=peer.url, refuses=True).finish()
    assert [event["event"] for event in events] == ["refused", "done"]


def test_a_handshake_without_answer_is_waited_for_and_not_polled(program, certificates: Path) -> None:
    tls = {"ca": str(certificates / "ca.pem")}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for url in (f"mqtts://localhost:{port}", f"ws://localhost:{port}/"):
            running = program("aio_silent.py", url=url, tls=tls)
            event = running.finish()[-1]
            assert event["ticks"] < 60, (url, event)
            assert event["error"] == "LinkLost"


class _Decrypted(_host._SecureSocket):
    """A socket whose kernel has nothing to read, while TLS has decrypted a byte already."""

    _sslobj = None

    def __new__(cls) -> _Decrypted:
        made = super().__new__(cls)
        socket.socket.__init__(made, socket.AF_INET, socket.SOCK_DGRAM)
        return made

    def __init__(self) -> None:
        pass

    def pending(self) -> int:
        return 1


def test_what_tls_has_decrypted_already_ends_the_wait_that_follows() -> None:
    # Planted: the task is woken before it rests, and waits for the next byte from the network.
    async def main() -> None:
        tasks: list[object] = []
        watch = _host.watch(sock, False, tasks)
        await _host.rest(tasks, 1000 * 2 * WAIT_LIMIT_S)
        watch.cancel()

    with _Decrypted() as sock:
        asyncio.run(asyncio.wait_for(main(), WAIT_LIMIT_S))
