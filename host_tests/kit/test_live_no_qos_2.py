"""umqtt pub and cmd with a broker that treats QoS 2 as QoS 1, as RabbitMQ does; a relay before a broker plays it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest
from broker_here import broker_here
from live_device import PlayedDevice
from umqtt_testkit.encoder import PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBSCRIBE, encode, split_packets
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import run

pytestmark = pytest.mark.tier(1)


def without_qos_2(head: int, body: bytes) -> bytes:
    """Return a client's packet as a broker without QoS 2 understands it."""
    kind = head >> 4
    assert kind not in (PUBREC, PUBREL, PUBCOMP), "a step of QoS 2"
    if kind == PUBLISH and head & 6 == 4:
        head ^= 6
    elif kind == SUBSCRIBE:
        body = body[:-1] + bytes((min(body[-1], 1),))
    return encode(head, body)


@contextlib.contextmanager
def broker_without_qos_2() -> Iterator[int]:
    """Run such a broker; yield its port."""
    ends: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def carry(source: socket.socket, sink: socket.socket, translated: bool) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                packets, rest = split_packets(rest + data) if translated else ([], b"")
                sink.sendall(b"".join(without_qos_2(*packet) for packet in packets) if translated else data)
        for end in (source, sink):  # after an error too, so that the client sees that the link is gone
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def start(*arguments: object, target=carry) -> None:
        threads.append(threading.Thread(target=target, args=arguments))
        threads[-1].start()

    def accept(port: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            upstream = socket.create_connection(("127.0.0.1", port))
            ends.extend((client, upstream))
            start(client, upstream, True)
            start(upstream, client, False)

    with broker_here() as port, socket.create_server(("127.0.0.1", 0)) as listener:
        start(port, target=accept)
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for end in ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(WAIT_LIMIT_S)
            for end in ends:
                end.close()


def test_pub_and_cmd_work_at_qos_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Planted: PUBACK of a message at QoS 2 ends the link.
    with broker_without_qos_2() as port:
        monkeypatch.setenv("UMQTT_BROKER", f"mqtt://127.0.0.1:{port}")
        assert run(["pub", "greenhouse/fan", "on", "--retain", "--qos", "2"]) == 0
        said = f"mqtt://127.0.0.1:{port}: took 1 messages at QoS 2 for QoS 1: it may deliver some twice\n"
        assert capsys.readouterr().err == said
        assert run(["sub", "greenhouse/fan", "-n", "1", "--qos", "2", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["payload"], found["qos"]) == ("on", 1)
        device = PlayedDevice(port, "pump-7", lambda command: [{"id": command["id"], "ok": True, "result": "done"}])
        try:
            assert run(["cmd", "pump-7", "ping"]) == 0
            assert capsys.readouterr() == ("done\n", "")
        finally:
            device.sleep()
