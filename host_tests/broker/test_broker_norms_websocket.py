"""What MQTT 3.1.1 demands of a server about WebSocket (section 6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker_peer import BrokerThread
from umqtt_broker import BrokerConfig
from umqtt_broker.settings.broker import Listener
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

_CONNACK, _SUBACK = b"\x20\x02\0\0", b"\x90\x03\0\1\0"


@pytest.fixture
def port() -> Iterator[int]:
    with BrokerThread(BrokerConfig(listeners=(Listener(port=0, protocol="websockets"),))) as broker:
        yield broker.port


def open_socket(port: int) -> ClientConnection:
    subprotocols = [Subprotocol("other"), Subprotocol("mqtt")]
    return connect(f"ws://127.0.0.1:{port}/mqtt", subprotocols=subprotocols, open_timeout=WAIT_LIMIT_S)


def test_the_sub_protocol_selected_is_mqtt(port: int) -> None:
    with open_socket(port) as client:
        assert client.subprotocol == "mqtt"


def test_packets_and_frames_need_not_begin_and_end_together(port: int) -> None:
    stream = (
        encoder.connect(b"c")
        + encoder.subscribe(1, (b"a", 0))
        + encoder.publish(b"a", b"x")
        + encoder.publish(b"a", b"y")
    )
    for size in (1, 3, 7, len(stream)):
        with open_socket(port) as client:
            for at in range(0, len(stream), size):
                client.send(stream[at : at + size])
            received = b""
            while len(received) < len(_CONNACK + _SUBACK) + 2 * 6:
                frame = client.recv(WAIT_LIMIT_S)
                assert isinstance(frame, bytes)
                received += frame
            assert received == _CONNACK + _SUBACK + encoder.publish(b"a", b"x") + encoder.publish(b"a", b"y"), size


def test_a_text_frame_closes_the_connection(port: int) -> None:
    with open_socket(port) as client:
        client.send(encoder.connect(b"c"))
        assert client.recv(WAIT_LIMIT_S) == _CONNACK
        client.send("text")
        with pytest.raises(ConnectionClosed):
            client.recv(WAIT_LIMIT_S)
