"""The test kit's encoder writes packets as the specification shows them, and its parsers read them back."""

from umqtt_testkit import encoder
from umqtt_testkit.portable import Rng, equal

# Packets of MQTT 3.1.1, written by hand.
_WRITTEN = (
    (encoder.connect(b"c"), "100d 0004 4d515454 04 02 0000 0001 63"),
    (encoder.connect(b"", clean_session=False, keep_alive=258), "100c 0004 4d515454 04 00 0102 0000"),
    (encoder.connect(b"c", level=3), "100f 0006 4d5149736470 03 02 0000 0001 63"),
    (encoder.connect(b"c", level=0x84), "100d 0004 4d515454 84 02 0000 0001 63"),
    (
        encoder.connect(b"c", will=(b"w", b"gone", 2, True), user_name=b"u", password=b"p"),
        "101c 0004 4d515454 04 f6 0000 0001 63 0001 77 0004 676f6e65 0001 75 0001 70",
    ),
    (encoder.connack(), "2002 00 00"),
    (encoder.connack(True, 5), "2002 01 05"),
    (encoder.publish(b"a/b", b"hi"), "3007 0003 612f62 6869"),
    (encoder.publish(b"a/b", b"hi", 1, 10, dup=True, retain=True), "3b09 0003 612f62 000a 6869"),
    (encoder.publish(b"t", b"", 2, 65535), "3405 0001 74 ffff"),
    (encoder.acknowledgement(encoder.PUBACK, 1), "4002 0001"),
    (encoder.acknowledgement(encoder.PUBREC, 1), "5002 0001"),
    (encoder.acknowledgement(encoder.PUBREL, 256), "6202 0100"),
    (encoder.acknowledgement(encoder.PUBCOMP, 1), "7002 0001"),
    (encoder.subscribe(10, (b"a/b", 1), (b"c/d", 2)), "820e 000a 0003 612f62 01 0003 632f64 02"),
    (encoder.suback(10, 0, 2, 0x80), "9005 000a 00 02 80"),
    (encoder.unsubscribe(10, b"a/b", b"c/d"), "a20c 000a 0003 612f62 0003 632f64"),
    (encoder.acknowledgement(encoder.UNSUBACK, 10), "b002 000a"),
    (encoder.pingreq(), "c000"),
    (encoder.pingresp(), "d000"),
    (encoder.disconnect(), "e000"),
)


def test_every_packet_is_the_one_of_the_specification():
    for packet, written in _WRITTEN:
        equal(packet, bytes.fromhex(written.replace(" ", "")))


def test_lengths_of_one_to_three_bytes_come_back():
    for size, head in ((0, "00"), (127, "7f"), (128, "8001"), (16383, "ff7f"), (16384, "808001"), (70000, "f0a204")):
        packet = encoder.encode(0x30, bytes(size))
        equal(packet[1 : -size or None], bytes.fromhex(head))
        equal(encoder.split_packets(packet), ([(0x30, bytes(size))], b""))


def test_a_stream_gives_its_packets_however_it_was_split():
    rng = Rng(31)
    for _ in range(30):
        sent = [(rng.below(256), rng.bytes(rng.choice((0, 1, 5, 127, 128, 300)))) for _ in range(5)]
        stream = b"".join([encoder.encode(first, body) for first, body in sent])
        came, rest = [], b""
        for piece in rng.pieces(stream, 200):
            packets, rest = encoder.split_packets(rest + piece)
            came += packets
        equal((came, rest), (sent, b""))


def test_an_incomplete_packet_stays_in_the_rest():
    packet = encoder.publish(b"t", bytes(200))
    for end in range(len(packet)):
        equal(encoder.split_packets(encoder.pingreq() + packet[:end]), ([(0xC0, b"")], packet[:end]), end)


def test_a_publish_comes_back_as_it_was_given():
    rng = Rng(32)
    for _ in range(50):
        qos = rng.below(3)
        topic_name, payload = rng.bytes(rng.between(0, 40)), rng.bytes(rng.between(0, 200))
        packet_id = rng.between(1, 65535) if qos else 0
        retain, dup = rng.chance(50), rng.chance(50)
        packet = encoder.publish(topic_name, payload, qos, packet_id, retain=retain, dup=dup)
        ((first, body),), rest = encoder.split_packets(packet)
        equal(rest, b"")
        equal((first >> 4, first >> 1 & 3, bool(first & 1), bool(first & 8)), (encoder.PUBLISH, qos, retain, dup))
        equal(encoder.parse_publish(first, body), (topic_name, packet_id, payload))


def test_what_is_wrong_is_written_as_told():
    equal(encoder.publish(b"t", b"x", 3, 0), b"\x36\x06\0\1t\0\0x")
    equal(encoder.connack(False, 255), b"\x20\x02\0\xff")
    equal(encoder.subscribe(0), b"\x82\x02\0\0")
    equal(encoder.first_byte(15), 0xF0)
    assert b"\0\4MQTX" in encoder.connect(b"c", name=b"MQTX")
