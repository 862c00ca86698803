"""The kit's own MQTT decoder refuses what a server must refuse."""

import pytest
from umqtt_testkit.encoder import (
    acknowledgement,
    connack,
    connect,
    disconnect,
    encode,
    first_byte,
    pingreq,
    pingresp,
    publish,
    suback,
    subscribe,
    unsubscribe,
)
from umqtt_testkit.wire import Type, WireError, decode

# Only bytes are tested.
pytestmark = pytest.mark.tier(0)

CONNECT = bytes.fromhex("101a 0004 4d515454 04 2e 003c 0001 63 0001 74 0002 7b7d".replace(" ", ""))
CONNECT = CONNECT[:1] + bytes([len(CONNECT) - 2]) + CONNECT[2:]


def whole(data: bytes):
    decoded = decode(data)
    assert decoded is not None
    packet, length = decoded
    assert length == len(data)
    return packet


def test_connect_with_will_is_decoded_field_by_field():
    packet = whole(CONNECT)
    assert (packet.type, packet.protocol_level, packet.keep_alive) == (Type.CONNECT, 4, 60)
    assert (packet.client_id, packet.clean_session) == (b"c", True)
    assert (packet.will_topic, packet.will_payload, packet.will_qos, packet.will_retain) == (
        b"t",
        b"{}",
        1,
        True,
    )
    assert packet.user_name is None


@pytest.mark.parametrize("size", [0, 1, 127 - 3, 128 - 3, 16383 - 3, 16384 - 3, 70000])
def test_a_packet_is_decoded_at_its_last_byte_and_not_before(size: int):
    data = publish(b"t", bytes(size), retain=True)
    for end in {*range(min(8, len(data))), len(data) - 1}:
        assert decode(data[:end]) is None
    packet = whole(data)
    assert (packet.payload, packet.retain, packet.packet_id) == (bytes(size), True, None)


def test_encoders_and_decoder_agree():
    assert whole(connack(True, 0)).session_present
    assert whole(connack(False, 5)).return_code == 5
    assert whole(suback(7, 1, 0x80)).return_codes == [1, 0x80]
    for kind in (Type.PUBACK, Type.PUBREC, Type.PUBREL, Type.PUBCOMP, Type.UNSUBACK):
        assert whole(acknowledgement(kind, 65535)).packet_id == 65535
    packet = whole(publish(b"a/b", b"x", 2, 9, dup=True))
    assert (packet.qos, packet.packet_id, packet.dup, packet.topic_name) == (2, 9, True, b"a/b")
    packet = whole(subscribe(3, (b"a/+", 0), (b"#", 2)))
    assert (packet.packet_id, packet.topic_filters) == (3, [(b"a/+", 0), (b"#", 2)])
    packet = whole(unsubscribe(4, b"a/+", b"#"))
    assert (packet.packet_id, packet.topic_filters) == (4, [(b"a/+", 0), (b"#", 0)])
    assert [whole(each).type for each in (pingreq(), pingresp(), disconnect())] == [
        Type.PINGREQ, Type.PINGRESP, Type.DISCONNECT,
    ]  # fmt: skip


@pytest.mark.parametrize("will", [None, (b"w", b"", 0, False), (b"w/1", b"gone", 2, True)])
@pytest.mark.parametrize(("user_name", "password"), [(None, None), (b"u", None), (b"u", b"\xff\0")])
@pytest.mark.parametrize("level", [3, 4])
def test_a_connect_comes_back_field_by_field(will, user_name, password, level: int):
    data = connect(
        b"c", clean_session=False, keep_alive=65535, will=will, user_name=user_name, password=password, level=level
    )
    packet = whole(data)
    assert (packet.client_id, packet.clean_session, packet.keep_alive) == (b"c", False, 65535)
    assert (packet.user_name, packet.password, packet.protocol_level) == (user_name, password, level)
    expected = will or (None, b"", 0, False)
    assert (packet.will_topic, packet.will_payload, packet.will_qos, packet.will_retain) == expected


@pytest.mark.parametrize(
    "bad",
    [
        bytes([0x00, 0]),
        bytes([0xF0, 0]),
        bytes([0x30, 0xFF, 0xFF, 0xFF, 0xFF, 1]),
        encode(Type.PUBREL << 4, b"\0\1"),
        encode(Type.PINGREQ << 4 | 1),
        encode(Type.PINGREQ << 4, b"x"),
        acknowledgement(Type.PUBACK, 0),
        publish(b"", b""),
        publish(b"a/#", b""),
        publish(b"a\0", b""),
        publish(b"\xff", b""),
        publish(b"t", b"", 1, 0),
        publish(b"t", b"", 3, 1),
        publish(b"t", b"", 0, dup=True),
        encode(Type.PUBLISH << 4, b"\0\5t"),
        encode(first_byte(Type.SUBSCRIBE), b"\0\1"),
        encode(first_byte(Type.SUBSCRIBE), b"\0\1\0\1t\3"),
        CONNECT.replace(b"MQTT\4\x2e", b"MQTT\4\x2f"),
        CONNECT.replace(b"MQTT\4\x2e", b"MQTT\4\x3e"),
        CONNECT.replace(b"MQTT\4\x2e", b"MQTT\4\x6e"),
        CONNECT.replace(b"MQTT\4", b"MQTT\3"),
    ],
    ids=lambda data: data[:12].hex(),
)
def test_a_malformed_packet_is_refused(bad: bytes):
    with pytest.raises(WireError):
        decode(bad)
