"""MQTT over WebSocket: frames in every shape, refused requests, other makers' clients."""

import asyncio
import random
import struct
from collections.abc import Iterator

import pytest
import websockets
from broker_peer import StartBroker
from umqtt_broker import Listener
from umqtt_broker.transport.websocket.frames import BadFrame, FrameDecoder
from umqtt_broker.transport.websocket.upgrade import UpgradeRefused, answer_upgrade
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually
from websocket_peer import BINARY, CLOSE, CONTINUATION, MASKS, PING, PONG, TEXT, WebSocketPeer, frame, request

from umqtt_robust import Client
from umqtt_robust.websocket import WebSocket

CONNACK = b"\x20\x02\x00\x00"


@pytest.fixture
def port(start_broker: StartBroker) -> int:
    """Provide the port of a broker's WebSocket listener."""
    return start_broker(listeners=(Listener(port=0, protocol="websockets"),)).port


@pytest.fixture
def peer(port: int) -> Iterator[WebSocketPeer]:
    """Provide an open WebSocket."""
    with WebSocketPeer(port) as peer:
        peer.upgrade()
        yield peer


# Frames, without a broker


def session() -> tuple[bytes, bytes]:
    """Return the MQTT bytes of a session, and the same in frames of every kind: fragments, pings, masks."""
    packets = [
        encoder.connect(b"peer"),
        encoder.subscribe(1, (b"a/#", 1)),
        encoder.publish(b"a/b", bytes(range(256)), 1, 7),
        encoder.acknowledgement(4, 1),
        encoder.publish(b"a", b""),
    ]
    mqtt = b"".join(packets)
    third = len(mqtt) // 3
    frames = [
        frame(BINARY, mqtt[:1], mask=MASKS[0]),
        frame(BINARY, mqtt[1:third], mask=MASKS[1], fin=False),
        frame(PING, b"ping", mask=MASKS[2]),
        frame(CONTINUATION, b"", fin=False),
        frame(CONTINUATION, mqtt[third : 2 * third], mask=MASKS[2]),
        frame(PONG, b"unasked"),
        frame(BINARY, b""),
        frame(BINARY, mqtt[2 * third :], mask=MASKS[1]),
        frame(PING, b""),
    ]
    return mqtt, b"".join(frames)


def decode(pieces: list[bytes]) -> tuple[bytes, list[bytes]]:
    decoder = FrameDecoder()
    return b"".join(decoder.receive(piece) for piece in pieces), decoder.replies


def test_every_split_of_a_session_gives_the_same_mqtt_bytes_and_answers() -> None:
    mqtt, frames = session()
    answers = [b"\x8a\x04ping", b"\x8a\x00"]
    for at in range(len(frames) + 1):
        assert decode([frames[:at], frames[at:]]) == (mqtt, answers), at
    assert decode([frames[at : at + 1] for at in range(len(frames))]) == (mqtt, answers)


@pytest.mark.parametrize("seed", range(20))
def test_random_splits_and_frame_sizes_give_the_same_mqtt_bytes(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    mqtt = chance.randbytes(70_000)
    frames, at = b"", 0
    while at < len(mqtt):
        size = chance.choice((1, 2, 3, 125, 126, 127, 5_000, 65_535, 65_536))
        frames += frame(BINARY, mqtt[at : at + size], mask=chance.randbytes(4))
        at += size
    pieces, at = [], 0
    while at < len(frames):
        size = chance.choice((1, 2, 3, 5, 7, 1_000, 65_536))
        pieces.append(frames[at : at + size])
        at += size
    assert decode(pieces) == (mqtt, [])


BROKEN = [
    (frame(BINARY, b"x", mask=None), 1002, "without mask"),
    (frame(BINARY, b"x", bits=0x40), 1002, "reserved"),
    (frame(TEXT, b"x"), 1003, "text"),
    (frame(3, b"x"), 1002, "opcode"),
    (frame(11, b"x"), 1002, "opcode"),
    (frame(CONTINUATION, b"x"), 1002, "order"),
    (frame(BINARY, b"x", fin=False) + frame(BINARY, b"x"), 1002, "order"),
    (frame(PING, b"x", fin=False), 1002, "fragmented"),
    (frame(PING, bytes(126)), 1002, "too long"),
    (frame(CLOSE, b"x"), 1002, "one byte"),
    (b"\x82\xfe\x00\x05" + bytes(4) + b"12345", 1002, "length"),
    (b"\x82\xff" + struct.pack(">Q", 65535) + bytes(4), 1002, "length"),
    (b"\x82\xff" + struct.pack(">Q", 1 << 63) + bytes(4), 1002, "length"),
]


@pytest.mark.parametrize(("data", "code", "reason"), BROKEN)
def test_a_broken_frame_fails_with_its_code_at_every_split_and_keeps_what_came_before(
    data: bytes, code: int, reason: str
) -> None:
    data = frame(BINARY, b"before") + data
    for at in range(len(data)):
        decoder = FrameDecoder()
        payload = b""
        with pytest.raises(BadFrame, match=reason) as caught:
            payload += decoder.receive(data[:at])
            payload += decoder.receive(data[at:])
        assert (payload + caught.value.received).startswith(b"before") and caught.value.code == code


@pytest.mark.parametrize(
    ("sent", "answered"),
    [(b"", 1000), (b"\x03\xe8", 1000), (b"\x03\xe9bye", 1001), (b"\x0f\xa0", 4000), (b"\x03\xed", 1000)],
)
def test_a_close_frame_is_answered_and_ends_the_input(sent: bytes, answered: int) -> None:
    decoder = FrameDecoder()
    assert decoder.receive(frame(BINARY, b"a") + frame(CLOSE, sent) + frame(BINARY, b"b")) == b"a"
    assert decoder.closed and decoder.replies == [b"\x88\x02" + struct.pack(">H", answered)]
    assert decoder.receive(frame(BINARY, b"c")) == b""


# The upgrade


def test_the_answer_to_a_request_is_the_one_of_the_specification() -> None:
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    answer = answer_upgrade(request(sec_websocket_key=key), (), True)
    assert answer.startswith(b"HTTP/1.1 101 ") and b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in answer and answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [("mqtt", "mqtt"), ("mqttv3.1", "mqttv3.1"), ("chat, mqttv3.1, mqtt", "mqtt"), ("MQTT", "mqtt")],
)
def test_the_subprotocol_is_mqtt_if_it_is_offered(offered: str, chosen: str) -> None:
    answer = answer_upgrade(request(sec_websocket_protocol=offered), (), True)
    assert f"Sec-WebSocket-Protocol: {chosen}\r\n".encode() in answer


REFUSED = [
    (request(remove="host"), 400),
    (request(remove="upgrade"), 426),
    (request(remove="connection"), 426),
    (request(connection="close"), 426),
    (request(remove="sec-websocket-key"), 400),
    (request(sec_websocket_key="short"), 400),
    (request(sec_websocket_key="é" * 22), 400),
    (request(sec_websocket_version="8"), 426),
    (request(remove="sec-websocket-protocol"), 400),
    (request(sec_websocket_protocol="chat"), 400),
    (request().replace(b"GET", b"POST", 1), 405),
    (request().replace(b"HTTP/1.1", b"HTTP/1.0", 1), 400),
    (request().replace(b"upgrade: websocket", b"upgrade websocket"), 400),
    (request().replace(b"host: ", b"host : "), 400),
    (request(path="/a b"), 400),
    (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00\r\n\r\n", 400),
    (request(origin="https://evil.example"), 403),
    (request(origin="null"), 403),
    (request(origin="http://localhost.evil.example"), 403),
]


@pytest.mark.parametrize(("data", "status"), REFUSED)
def test_a_request_that_is_no_mqtt_websocket_is_told_why(data: bytes, status: int) -> None:
    with pytest.raises(UpgradeRefused) as caught:
        answer_upgrade(data, (), True)
    assert caught.value.status == status
    assert caught.value.answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_pages_of_this_machine_may_connect_to_loopback_and_listed_ones_where_there_is_a_list() -> None:
    for origin in ("http://localhost:8000", "http://127.0.0.1", "http://[::1]:80"):
        answer_upgrade(request(origin=origin), (), True)
    answer_upgrade(request(origin="https://shop.example"), (), False)
    answer_upgrade(request(origin="https://shop.example"), ("https://shop.example",), True)
    with pytest.raises(UpgradeRefused):
        answer_upgrade(request(origin="http://localhost"), ("https://shop.example",), False)


def test_a_refused_request_is_answered_counted_and_closed(start_broker: StartBroker) -> None:
    broker = start_broker(listeners=(Listener(port=0, protocol="websockets"),))
    with WebSocketPeer(broker.port) as peer:
        peer.send(request(sec_websocket_protocol="chat"))
        assert peer.answer().startswith(b"HTTP/1.1 400 ")
        while peer.socket.recv(1000):
            pass
    assert broker.stats.connections_refused == 1


def test_a_connection_without_a_request_counts_as_any_other(start_broker: StartBroker) -> None:
    broker = start_broker(listeners=(Listener(port=0, protocol="websockets"),), max_connections=2)
    broker.stop_clock()
    with WebSocketPeer(broker.port) as silent, WebSocketPeer(broker.port) as refused:
        broker.wait_until(lambda: broker.stats.connections == 2)
        with WebSocketPeer(broker.port) as third:
            assert third.socket.recv(1) == b""
        refused.send(b"nothing that is HTTP\r\n\r\n")
        assert refused.answer().startswith(b"HTTP/1.1 400")
        broker.wait_until(lambda: broker.stats.connections == 1)
        with WebSocketPeer(broker.port) as next_one:
            next_one.upgrade()
            assert broker.stats.connections == 2
        broker.wait_until(lambda: broker.stats.connections == 1)
        silent.socket.close()
        broker.wait_until(lambda: broker.stats.connections == 0)
    assert broker.stats.connections_accepted == 3


def test_one_that_has_said_nothing_does_not_keep_a_broker_from_stopping(start_broker: StartBroker) -> None:
    broker = start_broker(listeners=(Listener(port=0, protocol="websockets"),))
    with WebSocketPeer(broker.port) as silent:
        broker.wait_until(lambda: broker.stats.connections == 1)
        broker.call(lambda: [connection.close() for connection in broker.view.connections])
        # Closed, and without a frame, which the client could not understand.
        assert silent.socket.recv(1) == b""
        broker.wait_until(lambda: broker.stats.connections == 0)


def test_a_request_without_end_is_refused_at_its_limit(port: int) -> None:
    with WebSocketPeer(port) as peer:
        peer.send(b"GET / HTTP/1.1\r\nx: " + b"y" * 9000)
        assert peer.answer().startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("sent", [b"", b"GET /mqtt HTTP/1.1\r\n", request()])
def test_a_client_that_stops_talking_before_connect_is_cut_in_time(start_broker: StartBroker, sent: bytes) -> None:
    broker = start_broker(listeners=(Listener(port=0, protocol="websockets"),), connect_timeout=0.05)
    with WebSocketPeer(broker.port) as peer:
        peer.send(sent)
        try:
            while peer.socket.recv(1000):
                pass
        except ConnectionResetError:
            pass
    assert broker.stats.connect_timeouts == 1


# A session with a broker


def test_every_split_of_request_and_session_works_with_a_broker(port: int) -> None:
    data = request() + frame(BINARY, encoder.connect(b"p")) + frame(BINARY, encoder.pingreq())
    for at in range(1, len(data)):
        with WebSocketPeer(port) as peer:
            peer.send(data[:at])
            peer.send(data[at:])
            assert peer.answer().startswith(b"HTTP/1.1 101 ")
            assert peer.receive_payload(6) == CONNACK + b"\xd0\x00"


def test_a_ping_is_answered_and_text_closes_with_1003(peer: WebSocketPeer) -> None:
    peer.send(frame(PING, b"hello"))
    assert peer.receive() == (PONG, b"hello")
    peer.send(frame(TEXT, b"hello"))
    assert peer.close_code() == 1003 and peer.receive() is None


@pytest.mark.parametrize("code", [1000, 1001])
def test_a_close_frame_ends_the_connection_in_order(peer: WebSocketPeer, code: int) -> None:
    peer.send(frame(BINARY, encoder.connect(b"p")))
    assert peer.receive_payload(4) == CONNACK
    peer.send(frame(CLOSE, struct.pack(">H", code)))
    assert peer.close_code() == code and peer.receive() is None


def test_what_the_broker_ends_it_ends_with_a_close_frame(peer: WebSocketPeer) -> None:
    peer.send(frame(BINARY, encoder.connect(b"p")))
    assert peer.receive_payload(4) == CONNACK
    peer.send(frame(BINARY, encoder.disconnect()))
    assert peer.close_code() == 1000
    peer.send(frame(CLOSE, b"\x03\xe8"))
    assert peer.receive() is None


def test_messages_of_every_length_of_frame_come_whole(peer: WebSocketPeer) -> None:
    peer.send(frame(BINARY, encoder.connect(b"p") + encoder.subscribe(1, (b"a", 0))))
    assert peer.receive_payload(9)[4:] == b"\x90\x03\x00\x01\x00"
    for size in (0, 1, 119, 120, 121, 65_525, 65_535, 65_536, 300_000):
        message = encoder.publish(b"a", bytes(size))
        peer.send(frame(BINARY, message))
        assert peer.receive_payload(len(message)) == message


def test_a_client_that_pings_and_reads_nothing_fills_no_memory(start_broker: StartBroker) -> None:
    broker = start_broker(listeners=(Listener(port=0, protocol="websockets"),), max_output_buffer=20_000)
    with WebSocketPeer(broker.port) as peer:
        peer.upgrade()
        peer.send(frame(BINARY, encoder.connect(b"p") + encoder.subscribe(1, (b"a", 0))))
        peer.receive_payload(9)
        connection = next(iter(broker.view.connections))
        while not broker.call(lambda: connection.congested):
            peer.send(frame(BINARY, encoder.publish(b"a", bytes(100_000))))
        before = broker.call(lambda: connection.transport.get_write_buffer_size())
        for number in range(3000):
            peer.send(frame(PING, b"%0100d" % number))
        seen = broker.stats.messages_in
        peer.send(frame(BINARY, encoder.publish(b"end", b"")))
        broker.wait_until(lambda: broker.stats.messages_in > seen)
        assert broker.call(lambda: connection.transport.get_write_buffer_size()) <= before
        # Once it reads, the newest ping is answered.
        while (found := peer.receive()) != (PONG, b"%0100d" % 2999):
            assert found is not None and found[0] == BINARY


# Other makers' clients


def test_the_websockets_package_agrees_on_every_frame(port: int) -> None:
    async def talk() -> None:
        options = {"subprotocols": ["mqtt"], "open_timeout": WAIT_LIMIT_S, "close_timeout": WAIT_LIMIT_S}
        async with websockets.connect(f"ws://127.0.0.1:{port}/mqtt", **options) as link:
            assert link.subprotocol == "mqtt"
            await link.send([encoder.connect(b"w")[:5], encoder.connect(b"w")[5:]])  # in fragments
            assert await link.recv() == CONNACK
            await (await link.ping(b"are you there"))
            await link.send(encoder.encode(0xE0, b""))
            with pytest.raises(websockets.ConnectionClosedOK):
                await link.recv()
            assert link.close_code == 1000

    asyncio.run(talk())


def test_our_own_client_talks_over_websocket(port: int) -> None:
    received: list[tuple[bytes, bytes]] = []
    client = Client(b"pump-7", (f"ws://127.0.0.1:{port}/mqtt",), transports={"ws": WebSocket()})
    client.on(b"a/#", lambda topic, payload: received.append((topic, payload)))
    client.subscribe(b"a/#", qos=1)
    client.publish(b"a/b", b"x" * 900, qos=1)
    eventually(lambda: (client.poll(10), received and not client.pending)[1])
    assert received == [(b"a/b", b"x" * 900)]
    client.disconnect()
    eventually(lambda: (client.poll(10), client.closed)[1])
