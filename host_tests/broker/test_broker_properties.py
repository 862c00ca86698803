"""The limit of the properties in a packet of MQTT 5: exact, checked before they are decoded, and decoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from broker_peer import StartBroker
from peer5 import Peer5
from umqtt_broker.log import NOTICE
from umqtt_broker.protocol import properties
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL

_LIMIT, _LIMIT_OF_CONNECT = 3000, 2000


def _connect(encoded: bytes) -> bytes:
    return encoder.connect(b"client", level=5, properties=encoded)


def _will(encoded: bytes) -> bytes:
    will = (b"w", b"gone", 0, False)
    return encoder.connect(b"client", level=5, will=will, will_properties=encoded, properties=b"\0")


# The packets with properties that a client sends, each made from its encoded properties.
PACKETS: dict[str, Callable[[bytes], bytes]] = {
    "CONNECT": _connect,
    "will": _will,
    "PUBLISH": lambda encoded: encoder.publish(b"t", b"x", 1, 1, properties=encoded),
    "PUBACK": lambda encoded: encoder.acknowledgement(PUBACK, 1, b"\0" + encoded),
    "PUBREC": lambda encoded: encoder.acknowledgement(PUBREC, 1, b"\0" + encoded),
    "PUBREL": lambda encoded: encoder.acknowledgement(PUBREL, 1, b"\0" + encoded),
    "PUBCOMP": lambda encoded: encoder.acknowledgement(PUBCOMP, 1, b"\0" + encoded),
    "SUBSCRIBE": lambda encoded: encoder.subscribe(1, (b"t", 0), properties=encoded),
    "UNSUBSCRIBE": lambda encoded: encoder.unsubscribe(1, b"t", properties=encoded),
    "DISCONNECT": lambda encoded: encoder.disconnect(b"\0" + encoded),
}
BEFORE_CONNECT = ("CONNECT", "will")


def user_properties(count: int, size: int) -> bytes:
    """Encode `count` user properties of `size` bytes together, with their length before them."""
    value = b"x" * (size - 5 * count)
    encoded = encoder.one_property("user_property", (b"", b"")) * (count - 1)
    encoded += encoder.one_property("user_property", (b"", value))
    assert len(encoded) == size
    return encoder.variable(size) + encoded


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("kind", PACKETS)
def test_properties_beyond_the_limit_end_the_connection_and_those_within_it_do_not(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture, kind: str, count: int
) -> None:
    # Planted: only the bytes count; the will has no limit; a packet is decoded with the limit of another.
    broker = start_broker(max_properties_size=_LIMIT, max_connect_properties_size=_LIMIT_OF_CONNECT)
    limit = _LIMIT_OF_CONNECT if kind in BEFORE_CONNECT else _LIMIT
    size = limit - count * properties.OVERHEAD
    with Peer5(broker.port) as peer:
        if kind not in BEFORE_CONNECT:
            peer.connect5(b"client")
        peer.send(PACKETS[kind](user_properties(count, size)))
        if kind == "DISCONNECT":
            assert peer.wait_closed() == []
        elif kind in BEFORE_CONNECT:
            assert peer.expect(CONNACK).reason_codes == b"\0"
        else:
            peer.flush()
    with caplog.at_level(NOTICE, "umqtt_broker.clients"), Peer5(broker.port) as peer:
        caplog.clear()
        if kind not in BEFORE_CONNECT:
            peer.connect5(b"client")
        peer.send(PACKETS[kind](user_properties(count, size + 1)))
        answered = [(one.kind, one.reason_codes) for one in peer.wait_closed()]
        assert answered == [(CONNACK if kind in BEFORE_CONNECT else DISCONNECT, b"\x97")]
        said = [one.getMessage() for one in caplog.records if "properties too large" in one.getMessage()]
        assert len(said) == 1
    assert broker.call(lambda: broker.stats.malformed["properties too large"]) == 1


@pytest.mark.parametrize("kind", PACKETS)
def test_too_many_bytes_are_refused_before_any_property_is_decoded(start_broker: StartBroker, kind: str) -> None:
    # Planted: the bytes are counted as the properties are decoded.
    broker = start_broker(max_properties_size=_LIMIT, max_connect_properties_size=_LIMIT_OF_CONNECT)
    no_property = b"\x7f" * (_LIMIT + 1)
    with Peer5(broker.port) as peer:
        if kind not in BEFORE_CONNECT:
            peer.connect5(b"client")
        peer.send(PACKETS[kind](encoder.variable(len(no_property)) + no_property))
        assert [one.reason_codes for one in peer.wait_closed()] == [b"\x97"]


@pytest.mark.parametrize("kind", PACKETS)
def test_properties_are_decoded_once(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    # Planted: CONNECT is decoded once more for the limits of its answer, UNSUBSCRIBE once for each of its two passes.
    broker = start_broker()
    walked: list[int] = []
    walk = properties.walk

    def counting(data: bytes, at: int, end: int, packet: int, most: int) -> Iterator[properties.Found]:
        if at < end:
            walked.append(packet)
        return walk(data, at, end, packet, most)

    monkeypatch.setattr(properties, "walk", counting)
    with Peer5(broker.port) as peer:
        if kind not in BEFORE_CONNECT:
            peer.connect5(b"client")
        peer.send(PACKETS[kind](user_properties(3, 100)))
        if kind == "DISCONNECT":
            peer.wait_closed()
        elif kind in BEFORE_CONNECT:
            peer.expect(CONNACK)
        else:
            peer.flush()
    assert len(walked) == 1


def test_the_largest_single_property_is_within_the_limits_without_settings(start_broker: StartBroker) -> None:
    # Planted: a limit of 64 KB.
    broker = start_broker()
    largest: dict[str, Any] = {"correlation_data": b"x" * 65535}
    many: dict[str, Any] = {"user_property": [(b"key-%d" % number, b"x" * 32) for number in range(1000)]}
    with Peer5(broker.port) as reader, Peer5(broker.port) as writer:
        reader.connect5(b"reader", user_property=[(b"key-%d" % number, b"x" * 32) for number in range(100)])
        reader.subscribe5((b"t", 0))
        writer.connect5(b"writer")
        for given in (largest, many):
            writer.publish5(b"t", b"", 0, **given)
            assert reader.receive_message().properties == given
