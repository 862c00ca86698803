"""The client treats packets made by Hypothesis as an independent decoder does."""

from __future__ import annotations

import os

from fuzz_packets import BAD, ODD, OK, Eater, connack, verdict
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from test_fuzz_packets import check
from umqtt_testkit.encoder import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    UNSUBACK,
    acknowledgement,
    encode,
    publish,
    string,
)

from umqtt_robust.errors import MQTTError
from umqtt_robust.topics import check_topic_filter, check_topic_name, matches

settings.register_profile(
    "client",
    max_examples=20000 if os.environ.get("UMQTT_FULL_SWEEPS") else 200,
    deadline=None,
    derandomize=not os.environ.get("UMQTT_FULL_SWEEPS"),  # the same examples in every `make test`
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
FUZZ = settings.get_profile("client")

packet_ids = st.sampled_from([0, 1, 2, 255, 256, 65535])
topics = st.sampled_from([b"t", b"a/b", b"", b"a/+", b"#", b"a\0b", b"\xff", "ä".encode(), b"x" * 60])
publishes = st.builds(
    publish,
    topics,
    st.binary(max_size=160),
    st.sampled_from([0, 1, 2, 3]),  # 3 is malformed
    packet_ids,
    retain=st.booleans(),
    dup=st.booleans(),
)
acknowledgements = st.builds(acknowledgement, st.sampled_from([PUBACK, PUBREC, PUBREL, PUBCOMP, UNSUBACK]), packet_ids)
anything = st.builds(encode, st.integers(0, 255), st.binary(max_size=12))
streams = st.lists(st.one_of(publishes, acknowledgements, anything, st.binary(max_size=9)), max_size=8).map(b"".join)


@FUZZ
@given(streams, st.lists(st.integers(1, 60), max_size=20))
def test_any_stream_is_an_error_or_the_events_that_it_means(stream: bytes, sizes: list[int]):
    """Planted: PUBLISH may have QoS 3."""
    pieces: list[bytes] = []
    rest = stream
    for size in sizes:
        if rest:
            pieces.append(rest[:size])
            rest = rest[size:]
    note(repr((stream, pieces)))
    check(stream, pieces + ([rest] if rest else []))


@FUZZ
@given(streams, st.data())
def test_a_truncated_packet_is_never_an_event(stream: bytes, data: st.DataObject):
    """Planted: a packet is taken for complete where the bytes end."""
    cut = stream[: data.draw(st.integers(0, len(stream)))]
    eater = Eater()
    assert not eater.eat([connack() + cut], fin=True)
    messages, _, state = verdict(cut)
    assert state == ODD or eater.messages == messages


@FUZZ
@given(st.lists(streams, min_size=2, max_size=4))
def test_after_any_stream_the_next_link_is_clean(links: list[bytes]):
    """Planted: half a packet of the last link is joined with the first one of the next."""
    eater = Eater()
    for stream in links:
        eater.eat([connack() + stream])
    up = eater.eat([connack() + publish(b"t", b"after", 1, 7)])
    assert up or eater.eat([connack() + publish(b"t", b"after", 1, 7)])
    assert (b"t", b"after") in eater.messages


@FUZZ
@given(st.binary(max_size=20), st.binary(max_size=20))
def test_topics_are_refused_or_usable(topic_filter: bytes, topic: bytes):
    """Planted: a filter that ends in /# does not select its parent level."""
    for function, text in ((check_topic_filter, topic_filter), (check_topic_name, topic)):
        try:
            assert function(text) == text
        except MQTTError:
            return
    assert matches(topic_filter, topic) in (True, False)
    assert matches(b"#", topic) is not topic.startswith(b"$")
    assert matches(topic, topic) and not matches(topic + b"/x", topic) and matches(topic + b"/#", topic)


def test_the_second_opinion_knows_good_from_bad():
    """Planted: a verdict that accepts a PUBLISH whose topic name is longer than the packet."""
    assert verdict(publish(b"t", b"x"))[::2] == ([(b"t", b"x")], OK)
    # Wildcards in a topic name do not disturb the stream.
    assert verdict(encode(0x30, string(b"a/#")))[2] == OK
    assert verdict(encode(0x30, string(b"a/b")[:-1]))[2] == BAD
