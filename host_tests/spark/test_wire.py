"""Laws of splitting a broker's stream: any cut gives the same packets, malformed data is refused."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spark_helpers import in_version_5, publish_packet
from umqtt_testkit import encoder

from spark_ingest.collector.wire import split
from spark_ingest.collector.wire5 import parse_answer
from spark_ingest.errors import MalformedStream

PUBLISHES = st.builds(
    publish_packet,
    st.text(min_size=1, max_size=20).filter(lambda t: t.isprintable()),
    st.binary(max_size=300),
    st.integers(1, 65535),
    qos=st.sampled_from([0, 1]),
)
OTHERS = st.sampled_from([b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x01", b"\xb0\x02\x00\x02", b"\xd0\x00"])


@given(st.lists(PUBLISHES | OTHERS, max_size=12), st.data())
def test_any_cutting_of_the_stream_gives_the_same_packets(packets, data):
    stream = b"".join(packets)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    buffer, publishes, pubacks, others, messages = bytearray(), b"", b"", [], 0
    for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer += stream[a:b]
        received = split(buffer)
        del buffer[: received.consumed]
        publishes += received.publishes
        pubacks += received.pubacks
        others += received.others
        messages += received.messages
    wanted = [p for p in packets if p[0] & 0xF0 == 0x30]
    assert not buffer
    assert publishes == b"".join(wanted)
    assert messages == len(wanted)
    assert others == [p for p in packets if p[0] & 0xF0 != 0x30]
    assert len(pubacks) == 4 * sum(p[0] & 6 == 2 for p in wanted)


PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "payload_format_indicator": st.integers(0, 1),
        "message_expiry_interval": st.integers(0, 2**32 - 1),
        "content_type": st.binary(max_size=200),
        "subscription_identifier": st.lists(st.integers(1, 2**28 - 1), max_size=3),
        "user_property": st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=3),
    },
)


@example([(b"t", b"x", 1, {"content_type": bytes(200)}), (b"t", b"", 0, {})])
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=300), st.integers(0, 1), PROPERTIES)))
def test_messages_with_properties_are_kept_as_they_came_and_a_group_without_any_in_the_form_of_3_1_1(messages):
    """Planted: the form of 3.1.1 for a group whose last message has properties; a remaining length that is not
    adjusted.
    """
    stream = wanted = b""
    for number, (name, payload, qos, properties) in enumerate(messages, 1):
        stream += encoder.publish(name, payload, qos, number, properties=encoder.properties(**properties))
        wanted += encoder.publish(name, payload, qos, number)
    pings = b"\xd0\x00"
    received = split(pings + stream + pings, 5)
    has_properties = any(encoder.properties(**properties) != b"\0" for *_, properties in messages)
    assert (received.consumed, received.messages) == (len(stream) + 4, len(messages))
    assert (received.publishes, received.level) == ((stream, 5) if has_properties else (wanted, 4))
    assert received.others == [pings, pings]


def test_properties_that_are_malformed_within_their_length_do_not_stop_the_collector():
    """The broker would send the message again for ever. Planted: properties that are decoded here."""
    for inside in (
        b"\x26\x00\x05a",
        b"\x99",
        b"\x03\x00\x01\xff",
        b"\x26\x00\x01\xff\x00\x01\xfe",
        b"\x0b\xff\xff\xff\xff\xff",
    ):
        packet = encoder.publish(b"t", b"x", 1, 9, properties=encoder.variable(len(inside)) + inside)
        received = split(packet, 5)
        assert (received.publishes, received.level, received.pubacks) == (packet, 5, b"\x40\x02\x00\x09")


@pytest.mark.parametrize(
    "packet",
    [
        encoder.publish(b"", b"x", 1, 1, properties=encoder.properties(topic_alias=1)),
        encoder.publish(b"t", b"", 1, 1, properties=b""),
        encoder.publish(b"t", b"", 1, 1, properties=b"\x05"),
        encoder.publish(b"t", b"", 1, 1, properties=b"\xff\xff\xff\xff\x01"),
        encoder.publish(b"t", b"", 0, properties=b""),
        b"\xf0\x00",
    ],
    ids=["an alias", "no properties", "cut short", "a length without an end", "none at QoS 0", "AUTH"],
)
def test_what_no_broker_of_mqtt_5_may_send_is_refused(packet):
    """Planted: properties that are looked for behind the packet; a length that is cut short is none."""
    with pytest.raises(MalformedStream) as caught:
        split(packet + bytes(8), 5)
    assert "type 0x00" not in str(caught.value), "what follows was refused, and the packet accepted"


@given(st.lists(PUBLISHES | OTHERS, max_size=6))
def test_both_versions_of_a_stream_are_the_same_to_a_spool(packets):
    older, newer = split(b"".join(packets)), split(in_version_5(b"".join(packets)), 5)
    assert (older.publishes, older.pubacks, older.messages) == (newer.publishes, newer.pubacks, newer.messages)


def test_pubacks_leave_in_the_order_in_which_the_publishes_came():
    stream = b"".join(publish_packet("t", b"", packet_id) for packet_id in (9, 2, 700))
    assert split(stream).pubacks == b"\x40\x02\x00\x09\x40\x02\x00\x02\x40\x02\x02\xbc"


@pytest.mark.parametrize("size", [0, 121, 122, 16377, 16378, 2097146, 2097147])
def test_lengths_of_one_to_four_bytes_are_taken(size):
    packet = publish_packet("ab", bytes(size), 1)
    assert split(packet + b"\x30").publishes == packet
    assert split(packet[:-1]).consumed == 0


@pytest.mark.parametrize(
    "stream",
    [
        b"\x00\x00",
        b"\x10\x00",
        b"\x62\x02\x00\x01",  # PUBREL: QoS 2 was never granted
        b"\xf0\x00",
        b"\x21\x02\x00\x00",  # CONNACK with flags
        b"\xd0\xff\xff\xff\xff\x01",
        publish_packet("t", b"", 0),
        publish_packet("t", b"", 1, qos=2),
        publish_packet("t", b"", 1, qos=3),
        publish_packet("t", b"", qos=0, dup=True),
        b"\x30\x01\x00",
        b"\x30\x02\x00\x01",
        b"\x32\x03\x00\x00\x01",
        b"\x32\x04\x00\x01t\x01",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=lambda stream: stream[:8].hex(),
)
def test_what_no_broker_may_send_is_refused(stream):
    with pytest.raises(MalformedStream):
        split(stream)


@given(st.binary(max_size=200))
def test_garbage_is_split_or_refused_but_never_anything_else(garbage):
    try:
        received = split(garbage)
    except MalformedStream:
        return
    assert received.consumed <= len(garbage)
    assert len(received.publishes) + sum(map(len, received.others)) == received.consumed


@given(st.binary(max_size=200))
def test_nor_is_garbage_of_mqtt_5(garbage):
    try:
        received = split(garbage, 5)
        for packet in received.others:
            parse_answer(packet, min(3, len(packet)))
    except MalformedStream:
        return
    assert received.consumed <= len(garbage)


def test_more_properties_than_an_answer_needs_are_refused_before_they_are_decoded():
    """Planted: a broker that sends 256 MB of them stops the collector for a minute."""
    most = encoder.properties(user_property=[(b"", b"")] * 13_000)
    assert parse_answer(b"\0\0" + most, 2).reason == ""
    with pytest.raises(MalformedStream, match="65535"):
        parse_answer(b"\0\0" + encoder.properties(user_property=[(b"", b"")] * 14_000), 2)
