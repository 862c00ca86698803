"""Properties and packets of MQTT 5: encoding and decoding agree, truncation is noticed, anything else is refused.

The encoder is the test kit's, with its own table, so each table checks the other.
"""

from __future__ import annotations

import os
from typing import Any

import hypothesis.strategies as st
import pytest
from broker_oracle5 import properties_verdict
from hypothesis import given, settings
from umqtt_broker.errors import MalformedPacket
from umqtt_broker.protocol import packets5, properties
from umqtt_broker.protocol.reason_codes import ReasonCode
from umqtt_testkit import encoder

pytestmark = pytest.mark.tier(0)

ANY_SIZE = 1 << 28
_FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
_FUZZ = settings(max_examples=50_000 if _FULL else 150, derandomize=not _FULL)

# The standard's table 2-4: the packet types in which a property may occur; 16 is the will.
PLACES = {
    "payload_format_indicator": {3, 16},
    "message_expiry_interval": {3, 16},
    "content_type": {3, 16},
    "response_topic": {3, 16},
    "correlation_data": {3, 16},
    "subscription_identifier": {3, 8},
    "session_expiry_interval": {1, 2, 14},
    "assigned_client_identifier": {2},
    "server_keep_alive": {2},
    "authentication_method": {1, 2, 15},
    "authentication_data": {1, 2, 15},
    "request_problem_information": {1},
    "will_delay_interval": {16},
    "request_response_information": {1},
    "response_information": {2},
    "server_reference": {2, 14},
    "reason_string": {2, 4, 5, 6, 7, 9, 11, 14, 15},
    "receive_maximum": {1, 2},
    "topic_alias_maximum": {1, 2},
    "topic_alias": {3},
    "maximum_qos": {2},
    "retain_available": {2},
    "user_property": {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16},
    "maximum_packet_size": {1, 2},
    "wildcard_subscription_available": {2},
    "subscription_identifier_available": {2},
    "shared_subscription_available": {2},
}
_WITH_PROPERTIES = (*range(1, 12), 14, 15, 16)
_texts = st.text(st.characters(blacklist_characters="\0+#", blacklist_categories=("Cs",)), min_size=1, max_size=9)


def _values(name: str) -> st.SearchStrategy[Any]:
    _, kind = encoder.PROPERTIES[name]
    known = properties.TABLE[encoder.PROPERTIES[name][0]]
    if kind == "text":
        return _texts.map(str.encode)
    if kind == "pair":
        return st.lists(st.tuples(_texts.map(str.encode), _texts.map(str.encode)), min_size=1, max_size=3)
    highest = 268_435_455 if kind == "variable" else 256**kind - 1
    return st.integers(known.lowest, min(known.highest, highest))


def _some(packet: int) -> st.SearchStrategy[dict[str, Any]]:
    names = [name for name, packets in PLACES.items() if packet in packets]
    return st.fixed_dictionaries({}, optional={name: _values(name) for name in names})


def _named(found: dict[int, Any]) -> dict[str, Any]:
    names = {identifier: name for name, (identifier, _) in encoder.PROPERTIES.items()}
    values = {names[identifier]: value for identifier, value in found.items()}
    return {
        name: value[0] if name == "subscription_identifier" and isinstance(value, list) else value
        for name, value in values.items()
    }


_blocks = st.sampled_from(_WITH_PROPERTIES).flatmap(lambda packet: st.tuples(st.just(packet), _some(packet)))


@_FUZZ
@given(_blocks)
def test_what_is_encoded_is_decoded_again_and_every_cut_is_noticed(block: tuple[int, dict[str, Any]]):
    # Planted: a number is read with a byte too few; a length is not compared with the available bytes.
    packet, values = block
    encoded = encoder.properties(**values)
    found, end = properties.decode(encoded + b"rest", 0, len(encoded) + 4, packet)
    assert (_named(found), end) == (values, len(encoded))
    assert properties.encode(found) == encoded
    for cut in range(len(encoded)):
        with pytest.raises(MalformedPacket):
            properties.decode(encoded, 0, cut, packet)


@pytest.mark.parametrize("name", PLACES)
def test_a_property_may_stand_where_the_standard_says_and_nowhere_else(name: str):
    # Planted: a packet too many, or too few, in a row of the table.
    value = {"text": b"t", "pair": (b"n", b"v")}.get(encoder.PROPERTIES[name][1], 1)
    encoded = encoder.properties(**{name: value})
    for packet in _WITH_PROPERTIES:
        if packet in PLACES[name]:
            properties.decode(encoded, 0, len(encoded), packet)
        else:
            with pytest.raises(MalformedPacket) as refused:
                properties.decode(encoded, 0, len(encoded), packet)
            assert refused.value.reason_code == ReasonCode.MALFORMED_PACKET


@pytest.mark.parametrize("name", PLACES)
def test_only_what_may_repeat_stands_twice(name: str):
    # Planted: `repeats` of a row is empty, or full.
    value = {"text": b"t", "pair": (b"n", b"v")}.get(encoder.PROPERTIES[name][1], 1)
    encoded = encoder.properties(**{name: [value, value]})
    for packet in PLACES[name]:
        if name == "user_property" or (name, packet) == ("subscription_identifier", 3):
            assert properties.decode(encoded, 0, len(encoded), packet)[0] == {
                encoder.PROPERTIES[name][0]: [value, value]
            }
        else:
            with pytest.raises(MalformedPacket) as refused:
                properties.decode(encoded, 0, len(encoded), packet)
            assert refused.value.reason_code == ReasonCode.PROTOCOL_ERROR


_ONE = encoder.one_property
BROKEN = {
    "unknown identifier": (3, b"\x02\x7f\0", ReasonCode.MALFORMED_PACKET),
    "length in more bytes than it needs": (3, b"\x80\0", ReasonCode.MALFORMED_PACKET),
    "length of five bytes": (3, b"\xff\xff\xff\xff\x01", ReasonCode.MALFORMED_PACKET),
    "longer than the packet": (3, b"\x05\x01\0", ReasonCode.MALFORMED_PACKET),
    "value longer than the properties": (3, b"\x04\x03\0\x05ab", ReasonCode.MALFORMED_PACKET),
    "not UTF-8": (3, encoder.properties(content_type=b"\xff"), ReasonCode.MALFORMED_PACKET),
    "NUL": (1, encoder.properties(user_property=(b"a\0", b"")), ReasonCode.MALFORMED_PACKET),
    "payload format 2": (3, encoder.properties(payload_format_indicator=2), ReasonCode.PROTOCOL_ERROR),
    "receive maximum 0": (1, encoder.properties(receive_maximum=0), ReasonCode.PROTOCOL_ERROR),
    "maximum packet size 0": (1, encoder.properties(maximum_packet_size=0), ReasonCode.PROTOCOL_ERROR),
    "subscription identifier 0": (8, encoder.properties(subscription_identifier=0), ReasonCode.PROTOCOL_ERROR),
    "request problem information 2": (
        1, encoder.properties(request_problem_information=2), ReasonCode.PROTOCOL_ERROR,
    ),
    "response topic with a wildcard": (16, encoder.properties(response_topic=b"a/#"), ReasonCode.PROTOCOL_ERROR),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_properties_have_the_reason_code_of_the_standard(name: str):
    # Planted: a bound is missing from the table.
    packet, encoded, reason_code = BROKEN[name]
    with pytest.raises(MalformedPacket) as refused:
        properties.decode(encoded, 0, len(encoded), packet)
    assert refused.value.reason_code == reason_code


# Numbers of each size, texts and invalid texts.
_VALUES = [
    *(number.to_bytes(size, "big") for size in (1, 2, 4) for number in (0, 1, 2, 127, 128, 255)),
    b"\x80\x01", b"\x80\x00", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x01",
    *(encoder.string(text) for text in (b"", b"a", b"a/#", b"+", b"\xff", b"\0", b"\xed\xa0\x80")),
    *(encoder.string(name) + encoder.string(b"") for name in (b"", b"a", b"\xff")),
]  # fmt: skip


@pytest.mark.parametrize("packet", _WITH_PROPERTIES)
def test_every_value_of_every_property_is_judged_alike(packet: int) -> None:
    # Planted: a Receive Maximum of 0 is accepted; a table has one property in the place of another.
    for identifier in range(0x30):
        for value in _VALUES:
            one = bytes((identifier,)) + value
            for content in (one, one + one, one[:-1]):
                data = encoder.variable(len(content)) + content
                reason = 0
                try:
                    properties.decode(data, 0, len(data), packet)
                except MalformedPacket as error:
                    reason = error.reason_code
                assert reason == properties_verdict(data, packet), data


@st.composite
def _damaged_properties(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw properties with bytes changed, left out or inserted, for their own packet or another."""
    packet, values = draw(_blocks)
    data = bytearray(encoder.properties(**values))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 1))] = draw(st.binary(max_size=2))
        if not data:
            break
    return bytes(data), draw(st.sampled_from((packet, packet, *_WITH_PROPERTIES)))


@_FUZZ
@given(_damaged_properties() | st.tuples(st.binary(max_size=40), st.sampled_from(_WITH_PROPERTIES)))
def test_any_bytes_are_properties_or_malformed(properties_of: tuple[bytes, int]):
    # Planted: an index beyond the end (IndexError), an unchecked text, a Receive Maximum of 0 that is accepted.
    data, packet = properties_of
    try:
        found, end = properties.decode(data, 0, len(data), packet)
    except MalformedPacket as error:
        assert error.reason_code == properties_verdict(data, packet)
        return
    assert end <= len(data) and properties_verdict(data, packet) == 0
    assert properties.decode(properties.encode(found), 0, len(data) + 4, packet)[0] == found


@_FUZZ
@given(_some(3), st.binary(max_size=20), st.lists(st.integers(1, 268_435_455), max_size=3))
def test_a_message_goes_on_with_all_its_properties_in_their_order(
    values: dict[str, Any], payload: bytes, identifiers: list[int]
):
    # Planted: the alias is passed on to subscribers; identifiers come before the publisher's properties.
    values.pop("subscription_identifier", None)
    if values.get("topic_alias") == 0:
        del values["topic_alias"]
    encoded = encoder.properties(**values)
    topic_alias, published, at = packets5.decode_publish_properties(
        encoded + payload, 0, len(encoded + payload), ANY_SIZE
    )
    assert at == len(encoded) and topic_alias == values.pop("topic_alias", 0)
    assert published.expiry == values.get("message_expiry_interval")
    content = packets5.encode_content(payload, published.expiry, published.passed_on)
    own = b"".join(map(packets5.encode_identifier, identifiers))
    assert packets5.add_properties(content, own) == packets5.encode_content(
        payload, published.expiry, published.passed_on, own
    )
    found, end = encoder.parse_properties(packets5.add_properties(content, own), 0)
    assert packets5.payload_of(packets5.add_properties(content, own)) == payload
    assert packets5.add_properties(content, own)[end:] == payload
    several = found.pop("subscription_identifier", [])
    assert (several if isinstance(several, list) else [several]) == identifiers and found == values
    aged, _ = encoder.parse_properties(packets5.age(content, 7), 0)
    assert aged == (values | {"message_expiry_interval": 7} if "message_expiry_interval" in values else values)


def _subscribed(packet: bytes) -> list[tuple[bytes, int]]:
    packets5.decode_subscription_identifier(packet, ANY_SIZE)
    return list(packets5.decode_subscribe(packet, 200))


def _unsubscribed(packet: bytes) -> list[bytes]:
    packets5.check_unsubscribe_properties(packet, ANY_SIZE)
    return list(packets5.decode_unsubscribe(packet, 200))


SUBSCRIBE = encoder.subscribe(
    9, (b"a/+", 1), (b"$share/g/#", 0x22), properties=encoder.properties(subscription_identifier=7)
)[2:]


def test_subscribe_and_unsubscribe_come_whole_and_no_cut_of_them_does():
    # Planted: the options byte of the last filter is not required; the properties are skipped unchecked.
    assert packets5.decode_subscription_identifier(SUBSCRIBE, ANY_SIZE) == 7
    assert _subscribed(SUBSCRIBE) == [(b"a/+", 1), (b"$share/g/#", 0x22)]
    unsubscribe = encoder.unsubscribe(9, b"a/+", properties=encoder.properties(user_property=(b"a", b"b")))[2:]
    assert _unsubscribed(unsubscribe) == [b"a/+"]
    for cut in range(len(SUBSCRIBE)):
        if cut != len(SUBSCRIBE) - len(b"\0\x0a$share/g/#\x22"):
            with pytest.raises(MalformedPacket):
                _subscribed(SUBSCRIBE[:cut])
    for cut in range(len(unsubscribe)):
        with pytest.raises(MalformedPacket):
            _unsubscribed(unsubscribe[:cut])


BROKEN_SUBSCRIBE = {
    "QoS 3": (encoder.subscribe(1, (b"a", 3), properties=b"\0"), ReasonCode.PROTOCOL_ERROR),
    "retain handling 3": (encoder.subscribe(1, (b"a", 0x30), properties=b"\0"), ReasonCode.PROTOCOL_ERROR),
    "reserved bits": (encoder.subscribe(1, (b"a", 0x40), properties=b"\0"), ReasonCode.MALFORMED_PACKET),
    "no filter": (encoder.subscribe(1, properties=b"\0"), ReasonCode.PROTOCOL_ERROR),
    "no-local in a group": (encoder.subscribe(1, (b"$share/g/a", 4), properties=b"\0"), ReasonCode.PROTOCOL_ERROR),
    "filter": (encoder.subscribe(1, (b"a/#/b", 0), properties=b"\0"), ReasonCode.TOPIC_FILTER_INVALID),
}


@pytest.mark.parametrize("name", BROKEN_SUBSCRIBE)
def test_a_broken_subscribe_has_the_reason_code_of_the_standard(name: str):
    # Planted: a mask of the options byte that lets one bit through.
    packet, reason_code = BROKEN_SUBSCRIBE[name]
    with pytest.raises(MalformedPacket) as refused:
        _subscribed(packet[2:])
    assert refused.value.reason_code == reason_code


def test_packets_of_the_broker_are_what_an_independent_decoder_reads():
    # Planted: a length that does not include the reason code.
    assert packets5.encode_acknowledgement(0x40, b"\0\x07") == encoder.acknowledgement(4, 7)
    assert packets5.encode_acknowledgement(0x50, b"\0\x07", 0x87) == encoder.acknowledgement(5, 7, b"\x87")
    assert packets5.encode_suback(b"\0\x07", b"\0\x87") == encoder.encode(0x90, b"\0\x07\0\0\x87")
    assert packets5.encode_unsuback(b"\0\x07", b"\x11") == encoder.encode(0xB0, b"\0\x07\0\x11")
    text = encoder.properties(reason_string=b"why")
    assert packets5.encode_disconnect(0x8E, {0x1F: b"why"}) == encoder.disconnect(b"\x8e" + text)
    assert packets5.encode_connack(0, True, {0x1F: b"why"}) == encoder.encode(0x20, b"\x01\0" + text)


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_an_acknowledgement_has_a_reason_code_that_may_stand_there(kind: int):
    # Planted: reason codes of PUBACK are accepted in PUBREL.
    text = encoder.properties(reason_string=b"why")
    for code in range(256):
        allowed = code in ({0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99} if kind < 6 else {0, 0x92})
        for reason in (bytes((code,)), bytes((code,)) + text):
            packet = encoder.acknowledgement(kind, 7, reason)[2:]
            if allowed:
                assert packets5.decode_acknowledgement(packet, kind, ANY_SIZE) == (b"\0\x07", code)
            else:
                with pytest.raises(MalformedPacket):
                    packets5.decode_acknowledgement(packet, kind, ANY_SIZE)
