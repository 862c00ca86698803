"""Where clients reach the broker: addresses, TLS, Unix sockets, several at once, and other makers' clients."""

import asyncio
import os
import queue
import shutil
import socket
import stat
import subprocess
import threading
from collections import Counter
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from broker_certificates import CONNACK, Pki, answer, receive
from broker_peer import BrokerThread, Peer, StartBroker
from paho.mqtt.enums import CallbackAPIVersion
from umqtt_broker import Broker, BrokerConfig, BrokerError, Listener, PortInUse
from umqtt_testkit import encoder
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from umqtt_robust import Client
from umqtt_robust.tls import TLS
from umqtt_robust.websocket import WebSocket


def has_ipv6_loopback() -> bool:
    """Return whether this machine reaches itself over IPv6; a kernel may support it while no interface has it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def refuse_to_start(config: BrokerConfig, error: type[Exception], reason: str) -> None:
    """Assert that a broker with these settings does not start."""

    async def start() -> None:
        await Broker(config).start()

    with pytest.raises(error, match=reason):
        asyncio.run(start())


# Addresses


def test_port_0_picks_one_free_port_for_all_addresses_of_a_host(start_broker: StartBroker) -> None:
    broker = start_broker(listeners=(Listener("", 0, allow_anonymous=True),)).broker
    addresses = broker.addresses()
    assert addresses[0] == f"0.0.0.0:{broker.port}" and {text.rpartition(":")[2] for text in addresses} == {
        str(broker.port)
    }
    if has_ipv6_loopback():
        assert addresses[1] == f"[::]:{broker.port}"
        with socket.create_connection(("::1", broker.port), WAIT_LIMIT_S) as peer:
            peer.sendall(encoder.connect(b"p"))
            assert receive(peer) == CONNACK
    assert answer(broker.port) == CONNACK


@pytest.mark.parametrize(("domain", "expected"), [("ipv4", ["0.0.0.0"]), ("ipv6", ["[::]"])])
def test_socket_domain_leaves_the_other_kind_of_address_out(
    start_broker: StartBroker, domain: str, expected: list[str]
) -> None:
    listener = Listener("", 0, allow_anonymous=True, socket_domain=domain)
    broker = start_broker(listeners=(listener,)).broker
    assert [text.rpartition(":")[0] for text in broker.addresses()] == expected


def test_a_port_in_use_names_the_line_that_asks_for_it_and_nothing_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port, other = holder.getsockname()[1], reserved_port()
        listeners = (Listener(port=other), Listener(port=port, where="broker.conf:7"))
        reason = f"^broker.conf:7: port {port} on 127.0.0.1 is in use"
        refuse_to_start(BrokerConfig(listeners=listeners), PortInUse, reason)
        # A leftover listener would prevent this.
        with socket.create_server(("127.0.0.1", other)):
            pass


def test_an_address_of_another_machine_is_one_line() -> None:
    listener = Listener("192.0.2.1", 0, allow_anonymous=True)
    reason = r"^cannot listen on 192.0.2.1 port 0 \(.*\) — choose another"
    refuse_to_start(BrokerConfig(listeners=(listener,)), BrokerError, reason)


# Unix sockets


def unix_answer(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(WAIT_LIMIT_S)
        peer.connect(str(path))
        peer.sendall(encoder.connect(b"p"))
        return receive(peer)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_a_unix_socket_has_its_permissions_and_goes_with_the_broker(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "socket"
    before = os.umask(0o027)
    try:
        with BrokerThread(BrokerConfig(listeners=(Listener(path=str(path), mode=mode),))) as broker:
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert unix_answer(path) == CONNACK
            assert broker.broker.addresses() == [f"{path} (unix)"]
        assert not path.exists()
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_a_socket_left_behind_is_replaced_and_one_in_use_never(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    config = BrokerConfig(listeners=(Listener(path=str(path)),))
    with BrokerThread(config):
        assert unix_answer(path) == CONNACK
        refuse_to_start(config, BrokerError, f"^another program listens on {path}")
        assert unix_answer(path) == CONNACK


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    refuse_to_start(BrokerConfig(listeners=(Listener(path=str(path)),)), BrokerError, "is not a socket")
    assert path.read_text() == "mine"


def test_a_socket_that_another_broker_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    config = BrokerConfig(listeners=(Listener(path=str(path)),))
    with BrokerThread(config):
        path.unlink()
        other = socket.socket(socket.AF_UNIX)
        other.bind(str(path))
    assert path.exists()
    other.close()


# Several listeners at once, and other makers' clients


def test_clients_of_every_kind_of_listener_share_topics(start_broker: StartBroker, pki: Pki, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    broker = start_broker(
        listeners=(
            Listener(port=0),
            Listener(port=0, tls=pki.tls()),
            Listener(port=0, protocol="websockets"),
            Listener(port=0, protocol="websockets", tls=pki.tls()),
            Listener(path=str(path)),
        )
    )
    ports = [int(text.split(":")[1].split(" ")[0]) for text in broker.broker.addresses()[:4]]
    clients: list[paho.Client] = []
    # Each client has its own thread.
    received: queue.Queue[str] = queue.Queue()
    all_subscribed = threading.Semaphore(0)

    def on_message(client: paho.Client, name: str, message: paho.MQTTMessage) -> None:
        del client, message
        received.put(name)

    transports = ["tcp", "tcp", "websockets", "websockets", "unix"]
    for number, transport in enumerate(transports):
        client = paho.Client(CallbackAPIVersion.VERSION2, f"client-{number}", userdata=str(number), transport=transport)
        if number in (1, 3):
            client.tls_set_context(pki.context())
        client.on_message = on_message
        client.on_subscribe = lambda *_: all_subscribed.release()
        client.connect(*((str(path), 1) if transport == "unix" else ("localhost", ports[number])))
        client.loop_start()
        client.subscribe("all", 1)
        clients.append(client)
    try:
        for _ in clients:
            assert all_subscribed.acquire(timeout=WAIT_LIMIT_S)
        for client in clients:
            client.publish("all", "hello", 1)
        names = [received.get(timeout=WAIT_LIMIT_S) for _ in range(25)]
        assert Counter(names) == dict.fromkeys(map(str, range(5)), 5)
    finally:
        for client in clients:
            client.disconnect()
            client.loop_stop()


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
def test_our_own_client_verifies_this_broker(start_broker: StartBroker, pki: Pki, scheme: str) -> None:
    protocol = "mqtt" if scheme == "mqtts" else "websockets"
    tls = pki.tls(cafile=pki.path("ca.pem"), require_certificate=True)
    broker = start_broker(listeners=(Listener(port=0, tls=tls, protocol=protocol),))
    secure = TLS(pki.path("ca.pem"), pki.path("good.pem"), pki.path("good.key"), server_name="localhost")
    transport = secure if scheme == "mqtts" else WebSocket(secure)
    received: list[bytes] = []
    client = Client(b"pump-7", (f"{scheme}://127.0.0.1:{broker.port}/mqtt",), transports={scheme: transport})
    client.on(b"a", lambda _, payload: received.append(payload))
    client.subscribe(b"a", qos=1)
    client.publish(b"a", b"hello", qos=1)
    eventually(lambda: (client.poll(10), received and not client.pending)[1])
    assert received == [b"hello"]
    client.disconnect()
    eventually(lambda: (client.poll(10), client.closed)[1])


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed")
def test_mosquitto_pub_shows_its_certificate(start_broker: StartBroker, pki: Pki) -> None:
    tls = pki.tls(cafile=pki.path("ca.pem"), require_certificate=True)
    broker = start_broker(listeners=(Listener(port=0, tls=tls), Listener(port=0)))
    plain = int(broker.broker.addresses()[1].rpartition(":")[2])
    with Peer(plain) as peer:
        peer.connect(b"peer")
        peer.subscribe(b"a", 0)
        command = ["mosquitto_pub", "-h", "localhost", "-p", str(broker.port), "-t", "a", "-m", "x"]
        credentials = ["--cafile", pki.path("ca.pem"), "--cert", pki.path("good.pem"), "--key", pki.path("good.key")]
        subprocess.run([*command, *credentials], check=True, timeout=WAIT_LIMIT_S)
        assert peer.receive_message().payload == b"x"
