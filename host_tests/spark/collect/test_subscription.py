"""Laws of the topic filters that a collector asks for: nothing is missed, and no message comes twice."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_helpers import Process, status
from test_process import payloads, publisher
from umqtt_testkit.waiting import eventually

from spark_ingest.collector.subscription import covers, distinct_filters, overlapping_filters, overlaps
from umqtt_robust.topics import matches

WORDS = st.sampled_from(["a", "b", "", "$x"])
TOPICS = st.lists(WORDS, min_size=1, max_size=4).map("/".join).filter(bool)
PLAIN_FILTERS = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(WORDS | st.just("+"), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)
FILTERS = st.builds(
    lambda group, rest: group + rest, st.sampled_from(["", "", "", "$share/g/", "$share/h/"]), PLAIN_FILTERS
)


def selects(topic_filter: str, topic: str) -> bool:
    return bool(matches(topic_filter.encode(), topic.encode()))


@given(PLAIN_FILTERS, PLAIN_FILTERS, st.lists(TOPICS, min_size=1, max_size=30))
def test_a_filter_that_covers_another_selects_all_its_topics_and_two_that_share_one_overlap(one, other, topics):
    # Planted: # at the end does not select the level above it; a wildcard that selects $SYS.
    for topic in topics:
        if selects(other, topic):
            assert selects(one, topic) or not covers(one, other), topic
            assert overlaps(one, other) == overlaps(other, one)
            assert overlaps(one, other) or not selects(one, topic), topic


@given(st.lists(FILTERS, min_size=1, max_size=6))
def test_the_filters_that_stay_cover_those_that_are_left_out_and_none_of_them_covers_another(filters):
    kept = distinct_filters(filters)
    assert all(any(covers(one, other) for one in kept) for other in filters)
    assert not any(covers(one, other) for one in kept for other in kept if one != other)


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("fleet/#", "fleet/+/log", True),
        ("fleet/#", "fleet", True),
        ("fleet/+", "fleet/#", False),
        ("+/#", "$SYS/#", False),
        ("$share/g/fleet/#", "$share/g/fleet/+", True),
        ("$share/g/fleet/#", "fleet/+", False),
        ("$share/g/fleet/#", "$share/h/fleet/+", False),
    ],
)
def test_which_filter_covers_which(wide, narrow, expected):
    assert covers(wide, narrow) == expected


def test_filters_that_share_some_topics_are_named():
    assert overlapping_filters(["a/+/c", "a/b/+", "a/d/+", "x/#"]) == [("a/+/c", "a/b/+"), ("a/+/c", "a/d/+")]
    assert overlapping_filters(["$share/g/a/#", "a/+"]) == [("$share/g/a/#", "a/+")]


def test_a_broker_that_sends_a_copy_for_each_subscription_fills_no_spool_twice(mosquitto, tmp_path):
    """mosquitto 2.0 does. Planted: all filters are subscribed to."""
    log, state = tmp_path / "log", tmp_path / "status.json"
    command = [sys.executable, "-m", "spark_ingest.collector", "--broker", f"mqtt://127.0.0.1:{mosquitto}"]
    command += ["--spool", tmp_path / "spool", "--name", "north.1", "--log", "json", "--status", state]
    for topic_filter in ("fleet/#", "fleet/+/telemetry", "fleet/pump/+", "other/+/log", "other/x/#"):
        command += ["--topic", topic_filter]
    with log.open("wb") as err, Process(command, stderr=err) as one:
        one.wait_for_line("subscribed north.1")
        client = publisher(mosquitto)
        for number in range(50):
            client.publish("fleet/pump/telemetry", b"%d" % number, qos=1)
        client.publish("fleet/pump/telemetry", b"last", qos=1).wait_for_publish(60)
        client.disconnect()
        client.loop_stop()
        eventually(lambda: b"last" in payloads(tmp_path / "spool", "north.1"), "all came")
        assert one.terminate()[0] == 0
    assert max(Counter(payloads(tmp_path / "spool", "north.1")).values()) == 1
    lines = list(map(json.loads, log.read_text().splitlines()))
    assert "NATS refuses the client id" in next(line["message"] for line in lines if line["event"] == "client_id")
    (told,) = [line for line in lines if line["event"] == "overlap"]
    assert (told["level"], "other/+/log and other/x/#" in told["message"]) == ("warning", True)
    assert status(state)["messages"] == 51
