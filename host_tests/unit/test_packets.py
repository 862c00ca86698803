"""The packets that a client rarely sends, byte for byte, and the decoder of the remaining length."""

from umqtt_testkit.portable import equal, raises

from umqtt_robust import Client, Will, packets
from umqtt_robust.errors import InvalidArgument, ProtocolError
from umqtt_robust.packets import PUBACK, PUBLISH, QOS_1, SendBuffer, decode_length


def test_connect_with_everything():
    will = Will("w/t", "gone", qos=1, retain=True)
    equal(
        packets.connect(b"id", 60, False, will, b"user", b"word", 4),
        b"\x00\x04MQTT\x04\xec\x00\x3c\x00\x02id\x00\x03w/t\x00\x04gone\x00\x04user\x00\x04word",
    )


def test_connect_with_nothing():
    equal(packets.connect(b"", 0, True, None, None, None, 4), b"\x00\x04MQTT\x04\x02\x00\x00\x00\x00")


def test_connect_as_mqtt_3_1():
    equal(
        packets.connect(b"i", 258, True, None, None, None, 3),
        b"\x00\x06MQIsdp\x03\x02\x01\x02\x00\x01i",
    )


def test_connect_to_make_the_broker_forget_carries_no_will():
    client = Client("i", "mqtt://h", 0, False, will=Will("w", "x"))
    sent = []
    for client.purge in (False, True):
        client.open(lambda buf, i, n: sent.append(bytes(buf[i : i + n])) or n)
        client.close()
    assert b"\x00\x01x" in sent[0]
    equal(sent[1], b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01i")


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
        equal(decode_length(encoded, 0, len(encoded)), (length, len(encoded)))
        for cut in range(len(encoded)):
            equal(decode_length(encoded, 0, cut), None)
    raises(ProtocolError, decode_length, b"\x80\x80\x80\x80\x01", 0, 5)


def test_the_send_buffer_prepends_the_remaining_length():
    for n in (0, 127, 128, 16384):
        written = []
        out = SendBuffer(64)
        out.open(lambda buf, i, size: written.append(bytes(buf[i : i + size])) or size)
        assert out.put(0x30, bytes(n)) and out.flush()
        whole = b"".join(written)
        equal(decode_length(whole, 1, len(whole)), (n, len(whole) - n))


def test_a_publish_of_any_size_is_the_same_wherever_it_lies_in_the_send_buffer():
    """Planted: what reaches beyond the front of the buffer is written there all the same."""
    rest = b"\0\1t\0\7" + bytes(range(100, 200)) * 3
    for size in (40, 255, 256, 257, 600):
        for before in (0, 4, 240, 252):
            for n in range(5, 300, 1 if size == 600 else 7):
                if size < before + n + 32:
                    break
                written = []
                out = SendBuffer(size)
                out.open(lambda buf, i, size: written.append(bytes(buf[i : i + size])) or size)
                for _ in range(before // 4):
                    out.put_ack(PUBACK, 1)
                assert out.put(PUBLISH | QOS_1, rest[5:n], b"t", 7) and out.flush()
                length = bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7))
                equal(written[0][before:], bytes((PUBLISH | QOS_1,)) + length + rest[:n])
                equal(len(written), 1)


def test_a_topic_larger_than_the_send_buffer_goes_beside_it():
    for packet_id, ident in ((0, b""), (258, b"\1\2")):
        written = []
        out = SendBuffer(32)
        out.open(lambda buf, i, size: written.append(bytes(buf[i : i + size])) or size)
        assert out.put(0x30, b"payload", b"t" * 100, packet_id) and out.flush()
        equal(b"".join(written), b"0" + bytes((109 + len(ident),)) + b"\0\x64" + b"t" * 100 + ident + b"payload")


def test_a_will_is_checked_when_it_is_made():
    for arguments in (("a/#", b""), ("", b""), ("a", b"", 3), ("a", bytes(65536))):
        raises(InvalidArgument, Will, *arguments)


def test_an_acknowledgement_is_four_bytes_for_every_packet_id_and_pingreq_is_two():
    for packet_id in (0, 1, 255, 256, 65535):  # id 0: a faulty broker gets it back
        out = SendBuffer(32)
        out.put_ack(0x62, packet_id)
        equal(out.end, 4)
    out = SendBuffer(32)
    out.put_ack(0xC0)
    equal(out.end, 2)
