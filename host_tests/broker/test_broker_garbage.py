"""A client that has gone leaves nothing that only Python's garbage collector could free.

The broker's program runs the collector seldom, since the packet loop makes no cycles. What connections leave in
cycles stays in memory until thousands of others have come and gone, and after an attack for ever.
"""

from __future__ import annotations

import gc
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_certificates import Authority
from broker_peer import BrokerThread, Peer, StartBroker
from peer5 import Peer5
from umqtt_broker import Listener, Tls
from umqtt_broker.access.files import FilePermission
from umqtt_broker.access.passwords import PasswordFile, PasswordHash
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PUBACK, PUBLISH
from websocket_peer import BINARY, WebSocketPeer, frame, request

_VISITS = 5


def _without_a_word(port: int, number: int) -> None:
    with Peer(port) as peer:
        peer.connect(b"visitor%d" % number)


def _with_disconnect(port: int, number: int) -> None:
    with Peer(port) as peer:
        peer.connect(b"visitor%d" % number, will=(b"will", b"gone", 1, False))
        peer.subscribe(b"visited/#", 1)
        peer.disconnect()


def _reset(port: int, number: int) -> None:
    with Peer(port) as peer:
        peer.connect(b"visitor%d" % number)
        peer.reset()


def _taken_over(port: int, number: int) -> None:
    with Peer(port) as before, Peer(port) as after:
        before.connect(b"visitor%d" % number)
        after.connect(b"visitor%d" % number)
        before.wait_closed()


def _persistent(port: int, number: int) -> None:
    del number
    with Peer(port) as peer:
        peer.connect(b"visitor", clean_session=False)
        peer.subscribe(b"visited/#", 1)
        peer.send(encoder.publish(b"visited/by", b"me", 1, 1))
        packets = [peer.receive(), peer.receive()]
        assert {packet.kind for packet in packets} == {PUBACK, PUBLISH}
        # Nothing waits for the next visit.
        peer.send(b"".join(encoder.acknowledgement(PUBACK, one.packet_id) for one in packets if one.kind == PUBLISH))
        assert peer.flush() == []


def _version_5(port: int, number: int) -> None:
    with Peer5(port) as peer:
        peer.connect5(b"visitor%d" % number, topic_alias_maximum=3)
        peer.subscribe5((b"visited/#", 1), subscription_identifier=1)
        peer.send(encoder.disconnect())
        peer.wait_closed()


def _malformed(port: int, number: int) -> None:
    del number
    with Peer(port) as peer:
        peer.send(b"\xc8\x01" * 20)
        peer.wait_closed()


def _wrong_password(port: int, number: int) -> None:
    with Peer(port) as peer:
        peer.send(encoder.connect(b"visitor", user_name=b"ada", password=b"%d" % number))
        assert peer.expect(CONNACK).body[1] in (3, 4)
        peer.wait_closed()


def _by_websocket(port: int, number: int) -> None:
    with WebSocketPeer(port) as peer:
        peer.socket.sendall(request() + frame(BINARY, encoder.connect(b"visitor%d" % number)))
        while not peer.socket.recv(4096).endswith(b"\x20\x02\x00\x00"):
            pass


def _by_tls(port: int, number: int) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with Peer(connected=context.wrap_socket(socket.create_connection(("127.0.0.1", port)))) as peer:
        peer.connect(b"visitor%d" % number)


VISITS: dict[str, Callable[[int, int], None]] = {
    "that ends without a word": _without_a_word,
    "that ends with DISCONNECT": _with_disconnect,
    "that ends with a reset": _reset,
    "that is taken over": _taken_over,
    "of a persistent session": _persistent,
    "of MQTT 5": _version_5,
    "that is malformed": _malformed,
    "with a wrong password": _wrong_password,
    "by WebSocket": _by_websocket,
    "by TLS": _by_tls,
}


def _garbage(broker: BrokerThread, visit: Callable[[int], None]) -> Counter[str]:
    """Return what visits leave to the collector, by type: the broker's objects, and futures."""

    def is_quiet() -> bool:
        return broker.stats.connections == 0

    for number in range(2):
        visit(number)  # fills what is made once and kept
    broker.wait_until(is_quiet)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for number in range(2, 2 + _VISITS):
            visit(number)
        broker.wait_until(is_quiet)
        broker.call(lambda: None)
        gc.collect()
        names = [f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage]
        # asyncio's own transport below TLS consists of two small objects that refer to each other.
        return Counter(name for name in names if name.startswith(("umqtt_broker.", "_asyncio.")))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("kind", VISITS)
def test_a_connection_leaves_nothing_to_the_garbage_collector(
    start_broker: StartBroker, tmp_path: Path, kind: str
) -> None:
    # Planted: a transport, or a WebSocket, keeps its protocol when the connection is lost; a connection keeps its
    # backpressure.
    passwords = PasswordFile(tmp_path / "passwords")
    passwords.set(b"ada", PasswordHash.make(b"right", 1))
    passwords.write()
    protocol = "websockets" if kind == "by WebSocket" else "mqtt"
    permission = FilePermission(str(passwords.path), allow_anonymous=True)
    tls = None
    if kind == "by TLS":
        Authority(tmp_path).sign("broker")
        tls = Tls(certfile=str(tmp_path / "broker.pem"), keyfile=str(tmp_path / "broker.key"))
    broker = start_broker(listeners=(Listener(port=0, protocol=protocol, permission=permission, tls=tls),))
    assert not _garbage(broker, lambda number: VISITS[kind](broker.port, number))
