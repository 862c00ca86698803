"""The packets that a client sends rarely, byte for byte, and the decoder of the remaining length."""

from umqtt_testkit.portable import equal, raises

from umqtt_robust import Will, packets
from umqtt_robust.errors import InvalidArgument, ProtocolError


def test_connect_with_everything():
    will = Will("w/t", "gone", qos=1, retain=True)
    equal(
        packets.connect(b"id", 60, False, will, b"user", b"word", 4, False),
        b"\x10\x25\x00\x04MQTT\x04\xec\x00\x3c\x00\x02id\x00\x03w/t\x00\x04gone\x00\x04user\x00\x04word",
    )


def test_connect_with_nothing():
    equal(packets.connect(b"", 0, True, None, None, None, 4, False), b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00")


def test_connect_as_mqtt_3_1():
    equal(
        packets.connect(b"i", 258, True, None, None, None, 3, False),
        b"\x10\x0f\x00\x06MQIsdp\x03\x02\x01\x02\x00\x01i",
    )


def test_connect_to_make_the_broker_forget_carries_no_will():
    equal(
        packets.connect(b"i", 0, False, Will("w", "x"), None, None, 4, True),
        b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01i",
    )


def test_remaining_length_at_every_border():
    for length, encoded in (
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16383, b"\xff\x7f"),
        (16384, b"\x80\x80\x01"),
        (2097151, b"\xff\xff\x7f"),
        (2097152, b"\x80\x80\x80\x01"),
        (268435455, b"\xff\xff\xff\x7f"),
    ):
        equal(packets.decode_length(encoded, 0, len(encoded)), (length, len(encoded)))
        for cut in range(len(encoded)):
            equal(packets.decode_length(encoded, 0, cut), None)
    raises(ProtocolError, packets.decode_length, b"\x80\x80\x80\x80\x01", 0, 5)


def test_packet_prepends_the_remaining_length():
    for n in (0, 127, 128, 16384):
        whole = packets.packet(0x30, bytes(n))
        equal(packets.decode_length(whole, 1, len(whole)), (n, len(whole) - n))


def test_a_will_is_checked_when_it_is_made():
    for arguments in (("a/#", b""), ("", b""), ("a", b"", 3), ("a", bytes(65536))):
        raises(InvalidArgument, Will, *arguments)
