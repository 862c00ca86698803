"""Other makers' clients, in MQTT 3.1.1 and 5, and our own, each with each through the broker, and after a return.

paho-mqtt, aiomqtt and gmqtt come with the test packages; mosquitto's clients are skipped if they are not installed;
node's mqtt is installed once into a folder of the user's cache if node and npm are installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import paho.mqtt.client as paho
import pytest
from broker_certificates import Pki
from broker_peer import BrokerProcess, StartBroker
from node_mqtt import run_node
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from umqtt_broker import Listener
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from umqtt_robust import Client

_COUNT = 100
_Result = TypeVar("_Result")


class Party(ABC):
    """One implementation of MQTT clients, controlled by the test."""

    @abstractmethod
    def subscribe(self, port: int, client_id: str, topic_filter: str, qos: int) -> None:
        """Create a persistent session with one subscription, and leave."""

    @abstractmethod
    def receive(self, port: int, client_id: str, topic_filter: str, qos: int, count: int) -> list[str]:
        """Return to the session and receive `count` messages."""

    @abstractmethod
    def publish(self, port: int, topic: str, qos: int, payloads: list[str]) -> None:
        """Publish, and return once all are acknowledged."""


class Mosquitto(Party):
    """mosquitto_sub and mosquitto_pub."""

    def __init__(self, version: int) -> None:
        self._version = ["-V", "5"] if version == 5 else ["-V", "311"]
        self._stay = ["-x", "3600"] if version == 5 else []

    def _subscriber(self, port: int, client_id: str, topic_filter: str, qos: int, *more: str) -> list[str]:
        own = [*self._version, *self._stay, "-c", "-q", str(qos), "-t", topic_filter]
        return ["mosquitto_sub", "-p", str(port), "-i", client_id, *own, *more]

    def subscribe(self, port: int, client_id: str, topic_filter: str, qos: int) -> None:
        subprocess.run(self._subscriber(port, client_id, topic_filter, qos, "-E"), check=True, timeout=WAIT_LIMIT_S)

    def receive(self, port: int, client_id: str, topic_filter: str, qos: int, count: int) -> list[str]:
        command = self._subscriber(port, client_id, topic_filter, qos, "-C", str(count), "-W", f"{WAIT_LIMIT_S:.0f}")
        ended = subprocess.run(command, check=True, timeout=2 * WAIT_LIMIT_S, capture_output=True, text=True)
        return ended.stdout.splitlines()

    def publish(self, port: int, topic: str, qos: int, payloads: list[str]) -> None:
        command = ["mosquitto_pub", "-p", str(port), *self._version, "-q", str(qos), "-t", topic, "-l"]
        subprocess.run(command, input="\n".join(payloads) + "\n", check=True, timeout=WAIT_LIMIT_S, text=True)


class Paho(Party):
    """paho-mqtt, the Python client."""

    def __init__(self, version: int) -> None:
        self._version = version

    def _new(self, port: int, client_id: str) -> paho.Client:
        if self._version != 5:
            return paho.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=False)
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        client.connect_async("127.0.0.1", port, clean_start=False, properties=properties)
        return client

    def _connect(
        self, port: int, client_id: str, received: list[str], wanted: int, enough: threading.Event
    ) -> paho.Client:
        client = self._new(port, client_id)

        def on_message(client: paho.Client, userdata: object, message: paho.MQTTMessage) -> None:
            del client, userdata
            received.append(message.payload.decode())
            if len(received) == wanted:
                enough.set()

        client.on_message = on_message
        if self._version == 5:
            client.reconnect()
        else:
            client.connect("127.0.0.1", port)
        client.loop_start()
        return client

    @staticmethod
    def _leave(client: paho.Client) -> None:
        client.disconnect()
        client.loop_stop()

    def subscribe(self, port: int, client_id: str, topic_filter: str, qos: int) -> None:
        subscribed = threading.Event()
        client = self._connect(port, client_id, [], 0, threading.Event())
        client.on_subscribe = lambda *_: subscribed.set()
        client.subscribe(topic_filter, qos)
        assert subscribed.wait(WAIT_LIMIT_S)
        self._leave(client)

    def receive(self, port: int, client_id: str, topic_filter: str, qos: int, count: int) -> list[str]:
        received: list[str] = []
        enough = threading.Event()
        client = self._connect(port, client_id, received, count, enough)
        assert enough.wait(WAIT_LIMIT_S), len(received)
        self._leave(client)
        return received

    def publish(self, port: int, topic: str, qos: int, payloads: list[str]) -> None:
        client = self._connect(port, "paho-publisher", [], 0, threading.Event())
        for message in [client.publish(topic, payload, qos) for payload in payloads]:
            message.wait_for_publish(WAIT_LIMIT_S)
            assert message.is_published()
        self._leave(client)


class Ours(Party):
    """This repository's library, on CPython."""

    @staticmethod
    def _connect(port: int, client_id: str) -> Client:
        # Its store in memory ends with it, so it must request the old session explicitly.
        return Client(
            client_id.encode(),
            (f"mqtt://127.0.0.1:{port}",),
            keep_alive=60,
            clean_session=False,
            keep_broker_queue=True,
        )

    @staticmethod
    def _drive(client: Client, until) -> None:
        eventually(lambda: (client.poll(50), until())[1])

    def _leave(self, client: Client) -> None:
        client.disconnect()
        self._drive(client, lambda: client.closed)

    def subscribe(self, port: int, client_id: str, topic_filter: str, qos: int) -> None:
        client = self._connect(port, client_id)
        client.on(topic_filter.encode(), lambda topic, payload: None)
        client.subscribe(topic_filter.encode(), qos=qos)
        self._drive(client, lambda: client.connected)
        # Its PUBACK comes after the SUBACK.
        client.publish(b"subscribed", b"", qos=1)
        self._drive(client, lambda: client.pending == 0)
        self._leave(client)

    def receive(self, port: int, client_id: str, topic_filter: str, qos: int, count: int) -> list[str]:
        received: list[str] = []
        client = self._connect(port, client_id)
        client.on(topic_filter.encode(), lambda topic, payload: received.append(bytes(payload).decode()))
        client.subscribe(topic_filter.encode(), qos=qos)
        self._drive(client, lambda: len(received) >= count)
        self._leave(client)
        return received

    def publish(self, port: int, topic: str, qos: int, payloads: list[str]) -> None:
        client = self._connect(port, "our-publisher")
        self._drive(client, lambda: client.connected)
        for payload in payloads:
            client.publish(topic.encode(), payload.encode(), qos=qos)
            self._drive(client, lambda: client.pending < 20)
        self._drive(client, lambda: client.pending == 0)
        self._leave(client)


class Aiomqtt(Party):
    """aiomqtt, based on paho, from asyncio."""

    def __init__(self, version: int) -> None:
        self._aiomqtt = pytest.importorskip("aiomqtt")
        assert version == 5

    def _client(self, port: int, client_id: str) -> Any:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        version = self._aiomqtt.ProtocolVersion.V5
        return self._aiomqtt.Client(
            "127.0.0.1", port, identifier=client_id, protocol=version, clean_start=False, properties=properties
        )

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run(asyncio.wait_for(work, WAIT_LIMIT_S))

    def subscribe(self, port: int, client_id: str, topic_filter: str, qos: int) -> None:
        async def work() -> None:
            async with self._client(port, client_id) as client:
                await client.subscribe(topic_filter, qos)

        self._run(work())

    def receive(self, port: int, client_id: str, topic_filter: str, qos: int, count: int) -> list[str]:
        async def work() -> list[str]:
            async with self._client(port, client_id) as client:
                return [(await anext(client.messages)).payload.decode() for _ in range(count)]

        return self._run(work())

    def publish(self, port: int, topic: str, qos: int, payloads: list[str]) -> None:
        async def work() -> None:
            async with self._client(port, "aiomqtt-publisher") as client:
                for payload in payloads:
                    await client.publish(topic, payload, qos)

        self._run(work())


class Gmqtt(Party):
    """gmqtt, which has its own protocol code."""

    def __init__(self, version: int) -> None:
        self._gmqtt = pytest.importorskip("gmqtt")
        assert version == 5

    def _run(
        self, port: int, client_id: str, work: Callable[[Any, asyncio.Queue[Any]], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        async def connected() -> _Result:
            client = self._gmqtt.Client(client_id, clean_session=False, session_expiry_interval=3600)
            events: asyncio.Queue[Any] = asyncio.Queue()
            client.on_subscribe = lambda *_: events.put_nowait("subscribed")
            client.on_message = lambda _, __, payload, *___: (events.put_nowait(payload.decode()), 0)[1]
            await client.connect("127.0.0.1", port)
            try:
                return await work(client, events)
            finally:
                await client.disconnect(session_expiry_interval=3600)

        return asyncio.run(asyncio.wait_for(connected(), WAIT_LIMIT_S))

    def subscribe(self, port: int, client_id: str, topic_filter: str, qos: int) -> None:
        async def work(client: Any, events: asyncio.Queue[Any]) -> None:
            client.subscribe(topic_filter, qos)
            assert await events.get() == "subscribed"

        self._run(port, client_id, work)

    def receive(self, port: int, client_id: str, topic_filter: str, qos: int, count: int) -> list[str]:
        async def work(_: Any, events: asyncio.Queue[Any]) -> list[str]:
            return [await events.get() for _ in range(count)]

        return self._run(port, client_id, work)

    def publish(self, port: int, topic: str, qos: int, payloads: list[str]) -> None:
        async def work(client: Any, _: asyncio.Queue[Any]) -> None:
            for payload in payloads:
                client.publish(topic, payload, qos)
            await client._persistent_storage.wait_empty()

        self._run(port, "gmqtt-publisher", work)


_NODE = """
const [version, action, port, clientId, topic, qos, rest] = JSON.parse(process.argv[2])
const client = require('mqtt').connect({ host: '127.0.0.1', port, clientId, clean: false, protocolVersion: version,
  properties: version === 5 ? { sessionExpiryInterval: 3600 } : undefined })
const received = []
const end = () => client.end(false, {}, () => { console.log(JSON.stringify(received)); process.exit(0) })
client.on('error', error => { console.error(error); process.exit(1) })
if (action === 'receive') {
  client.on('message', (_, payload) => { if (received.push(payload.toString()) === rest) setImmediate(end) })
} else {
  client.once('connect', () => {
    if (action === 'subscribe') client.subscribe(topic, { qos }, end)
    else Promise.all(rest.map(payload => client.publishAsync(topic, payload, { qos }))).then(end)
  })
}
"""


class Node(Party):
    """node's mqtt."""

    def __init__(self, version: int) -> None:
        self._version = version

    def _run(self, *arguments: object) -> list[str]:
        return json.loads(run_node(_NODE, json.dumps([self._version, *arguments]), timeout=2 * WAIT_LIMIT_S))

    def subscribe(self, port: int, client_id: str, topic_filter: str, qos: int) -> None:
        self._run("subscribe", port, client_id, topic_filter, qos, 0)

    def receive(self, port: int, client_id: str, topic_filter: str, qos: int, count: int) -> list[str]:
        return self._run("receive", port, client_id, topic_filter, qos, count)

    def publish(self, port: int, topic: str, qos: int, payloads: list[str]) -> None:
        self._run("publish", port, "node-publisher", topic, qos, payloads)


def party(name: str) -> Party:
    """Return the implementation of that name. Skips if it is not installed."""
    name, _, version = name.partition(" ")
    if name == "ours":
        return Ours()
    if name == "mosquitto" and shutil.which("mosquitto_pub") is None:
        pytest.skip("mosquitto-clients is not installed")
    kinds = {"mosquitto": Mosquitto, "paho": Paho, "node": Node, "aiomqtt": Aiomqtt, "gmqtt": Gmqtt}
    return kinds[name](int(version or 4))


_FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
_PARTIES = ("ours", "paho", "mosquitto", "node", "paho 5", "mosquitto 5", "node 5", "aiomqtt 5", "gmqtt 5")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with BrokerProcess(tmp_path_factory.mktemp("interop") / "broker.db") as broker:
        yield broker.port


@pytest.mark.parametrize(
    ("subscriber", "publisher", "qos"),
    [*((one, other, 2) for one in _PARTIES for other in _PARTIES if _FULL or "ours" in (one, other))]
    + [(one, one, 1) for one in _PARTIES],
)
def test_clients_of_others_get_every_message_in_order(port: int, subscriber: str, publisher: str, qos: int) -> None:
    """The subscriber leaves, all is published while it is away, and it returns to its session."""
    receiving, sending = party(subscriber), party(publisher)
    client_id, topic = f"{subscriber}-{publisher}-{qos}".replace(" ", ""), f"{subscriber}/{publisher}/{qos}"
    payloads = [f"{number}" for number in range(_COUNT)]
    receiving.subscribe(port, client_id, f"{subscriber}/{publisher}/+", qos)
    sending.publish(port, topic, qos, payloads)
    assert receiving.receive(port, client_id, f"{subscriber}/{publisher}/+", qos, _COUNT) == payloads


def test_properties_of_one_client_of_mqtt_5_reach_another(port: int) -> None:
    # Planted: the length of the properties is a byte too small.
    received: list[paho.MQTTMessage] = []
    subscribed, enough = threading.Event(), threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, "reader", protocol=MQTTProtocolVersion.MQTTv5)
    client.on_connect = lambda *_: client.subscribe("properties/+", 1)
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _, __, message: (received.append(message), enough.set())
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        assert subscribed.wait(WAIT_LIMIT_S)
        if shutil.which("mosquitto_pub") is None:
            pytest.skip("mosquitto-clients is not installed")
        said = ["content-type", "text/plain", "user-property", "unit", "°C", "response-topic", "answers"]
        pairs = [said[:2], said[2:5], said[5:]]
        options = [word for pair in pairs for word in ("-D", "publish", *pair)]
        command = ["mosquitto_pub", "-p", str(port), "-V", "5", "-q", "1", "-t", "properties/1", "-m", "21.5", *options]
        subprocess.run(command, check=True, timeout=WAIT_LIMIT_S)
        assert enough.wait(WAIT_LIMIT_S)
    finally:
        client.disconnect()
        client.loop_stop()
    (message,) = received
    found = message.properties
    assert (message.payload, found.ContentType, found.ResponseTopic) == (b"21.5", "text/plain", "answers")
    assert found.UserProperty == [("unit", "°C")]


_NODE_WEBSOCKET = """
const client = require('mqtt').connect(`ws://127.0.0.1:${process.argv[2]}/mqtt`, { protocolVersion: 5 })
const properties = { userProperties: { unit: 'K' }, messageExpiryInterval: 60 }
client.on('error', error => { console.error(error); process.exit(1) })
client.once('connect', async () => {
  await client.subscribeAsync('ws', { qos: 2, properties: { subscriptionIdentifier: 7 } })
  await client.publishAsync('ws', '294', { qos: 2, properties })
})
client.on('message', (_, payload, packet) => {
  console.log(JSON.stringify([payload.toString(), packet.properties]))
  client.end(false, {}, () => process.exit(0))
})
"""


def test_mqtt_5_goes_through_a_websocket(start_broker: StartBroker) -> None:
    # Planted: what follows CONNECT in the same frame is read in the form of 3.1.1.
    broker = start_broker(listeners=(Listener(port=0, protocol="websockets"),))
    payload, found = json.loads(run_node(_NODE_WEBSOCKET, str(broker.port), timeout=2 * WAIT_LIMIT_S))
    assert (payload, found["userProperties"], found["messageExpiryInterval"]) == ("294", {"unit": "K"}, 60)
    assert found["subscriptionIdentifier"] in (7, [7])


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_mqtt_5_goes_through_every_transport(
    start_broker: StartBroker, tmp_path: Path, transport: str, is_encrypted: bool
) -> None:
    # Planted: a WebSocket over TLS that speaks only 3.1.1.
    pki = Pki(tmp_path)
    protocol = "mqtt" if transport == "tcp" else "websockets"
    broker = start_broker(listeners=(Listener(port=0, protocol=protocol, tls=pki.tls() if is_encrypted else None),))
    came: list[paho.MQTTMessage] = []
    subscribed, enough = threading.Event(), threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, "five", protocol=MQTTProtocolVersion.MQTTv5, transport=transport)
    if is_encrypted:
        client.tls_set_context(pki.context())
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "text/plain"
    client.on_connect = lambda *_: client.subscribe("t", 2)
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _, __, message: (came.append(message), enough.set())
    client.connect("localhost", broker.port)
    client.loop_start()
    try:
        assert subscribed.wait(WAIT_LIMIT_S)
        client.publish("t", b"x" * 1000, 2, properties=properties)
        assert enough.wait(WAIT_LIMIT_S)
    finally:
        client.disconnect()
        client.loop_stop()
    assert [(one.payload, one.properties.ContentType) for one in came] == [(b"x" * 1000, "text/plain")]


def _aiomqtt_echo(port: int, transport: str, pki: Pki) -> str:
    aiomqtt = pytest.importorskip("aiomqtt")
    options: dict[str, Any] = {"tls_context": pki.context()} if transport in ("tls", "wss") else {}

    async def work() -> str:
        kind = "websockets" if transport in ("ws", "wss") else "tcp"
        async with aiomqtt.Client(
            "localhost", port, protocol=aiomqtt.ProtocolVersion.V5, transport=kind, **options
        ) as client:
            await client.subscribe("t", 2)
            await client.publish("t", "21.5", 2)
            return (await anext(client.messages)).payload.decode()

    return asyncio.run(asyncio.wait_for(work(), WAIT_LIMIT_S))


def _gmqtt_echo(port: int, _transport: str, pki: Pki) -> str:
    gmqtt = pytest.importorskip("gmqtt")

    async def work() -> str:
        client, came = gmqtt.Client("echo"), asyncio.Queue()
        # At QoS 0: what arrives after its disconnect() is an error to it.
        client.on_subscribe = lambda *_: client.publish("t", "21.5", 0)
        client.on_message = lambda _, __, payload, *___: (came.put_nowait(payload.decode()), 0)[1]
        await client.connect("localhost", port, ssl=pki.context(), version=gmqtt.constants.MQTTv50)
        client.subscribe("t", 2)
        try:
            return await came.get()
        finally:
            await client.disconnect()

    return asyncio.run(asyncio.wait_for(work(), WAIT_LIMIT_S))


def _mosquitto_echo(port: int, _transport: str, pki: Pki) -> str:
    if shutil.which("mosquitto_rr") is None:
        pytest.skip("mosquitto-clients is not installed")
    # It subscribes to its own request.
    own = ["-h", "localhost", "-p", str(port), "--cafile", pki.path("ca.pem"), "-V", "5", "-q", "2", "-W", "30"]
    command = ["mosquitto_rr", *own, "-t", "t", "-e", "t", "-m", "21.5"]
    return subprocess.run(command, check=True, timeout=WAIT_LIMIT_S, capture_output=True, text=True).stdout.strip()


_NODE_ECHO = """
const [url, ca] = [process.argv[2], require('fs').readFileSync(process.argv[3])]
const client = require('mqtt').connect(url, { protocolVersion: 5, ca })
client.on('error', error => { console.error(error); process.exit(1) })
client.once('connect', async () => {
  await client.subscribeAsync('t', { qos: 2 })
  await client.publishAsync('t', '21.5', { qos: 2 })
})
client.on('message', (_, payload) => {
  console.log(payload.toString())
  client.end(false, {}, () => process.exit(0))
})
"""


def _node_echo(port: int, transport: str, pki: Pki) -> str:
    url = f"mqtts://localhost:{port}" if transport == "tls" else f"wss://localhost:{port}/mqtt"
    return run_node(_NODE_ECHO, url, pki.path("ca.pem"), timeout=2 * WAIT_LIMIT_S).strip()


_ECHOES = {"aiomqtt": _aiomqtt_echo, "gmqtt": _gmqtt_echo, "mosquitto": _mosquitto_echo, "node": _node_echo}


@pytest.mark.parametrize(
    ("name", "transport"),
    [("mosquitto", "tls"), ("gmqtt", "tls"), ("aiomqtt", "tls"), ("aiomqtt", "ws"), ("aiomqtt", "wss"),
     ("node", "tls"), ("node", "wss")],
)  # fmt: skip
def test_every_transport_of_other_clients_carries_mqtt_5(
    start_broker: StartBroker, tmp_path: Path, name: str, transport: str
) -> None:
    """gmqtt has no WebSocket, mosquitto's clients have none before 2.1; the others are in the tests above."""
    pki = Pki(tmp_path)
    tls = pki.tls() if transport in ("tls", "wss") else None
    protocol = "websockets" if transport in ("ws", "wss") else "mqtt"
    broker = start_broker(listeners=(Listener(port=0, protocol=protocol, tls=tls),))
    assert _ECHOES[name](broker.port, transport, pki) == "21.5"
