"""The two tries against brute force; UMQTT_FULL_SWEEPS=1 makes them larger."""

import os
import random

import pytest
from broker_model import matches
from umqtt_broker.protocol.topics import is_topic_filter, is_topic_name
from umqtt_broker.routing.subscriptions import SubscriptionTrie

pytestmark = pytest.mark.tier(0)

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))

LEVELS = [b"a", b"b", b"c", b"", b"$x", b"long-level"]


def random_name(rng: random.Random) -> bytes:
    return b"/".join(rng.choice(LEVELS) for _ in range(rng.randint(1, 5))) or b"/"


def random_filter(rng: random.Random) -> bytes:
    levels = [rng.choice([*LEVELS, b"+", b"+"]) for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.3:
        levels[-1] = b"#"
    return b"/".join(levels) or b"/"


@pytest.mark.parametrize("seed", range(5))
def test_subscriptions_match_as_brute_force_does_and_leave_an_empty_trie(seed: int) -> None:
    rng = random.Random(seed)
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    model: dict[tuple[bytes, int], int] = {}
    for step in range(2000):
        key = random_filter(rng), rng.randrange(8)
        if rng.random() < 0.6:
            qos = rng.randrange(3)
            assert trie.subscribe(*key, qos) is (key not in model)
            model[key] = qos
        else:
            if model and rng.random() < 0.8:
                key = rng.choice(list(model))
            assert trie.unsubscribe(*key) is (model.pop(key, None) is not None)
        if step % 10 == 0:
            topic_name = random_name(rng)
            expected: dict[int, int] = {}
            for (topic_filter, subscriber), qos in model.items():
                if matches(topic_filter, topic_name):
                    expected[subscriber] = max(qos, expected.get(subscriber, 0))
            found = trie.match(topic_name)
            assert len(found) == len(dict(found)), (seed, step)
            assert dict(found) == expected, (seed, step, topic_name)
            # Planted: _join() does nothing.
            filters = {topic_filter for topic_filter, _ in model}
            assert trie.node_count() < 2 * len(filters) + (not filters), (seed, step)
    keys = list(model)
    rng.shuffle(keys)
    for key in keys:
        assert trie.unsubscribe(*key)
    assert not trie and trie.node_count() == 0


def test_a_filter_takes_no_more_nodes_for_its_levels() -> None:
    # Planted: a trie with a node for each level, in which one packet of such filters took gigabytes.
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    filters = [b"/".join([b"%d" % number] + [b"+", b"a"] * 100) for number in range(50)]
    filters += [b"/".join([b"+"] * number + [b"x"] * (200 - number)) for number in range(1, 50)]
    for number, topic_filter in enumerate(filters):
        trie.subscribe(topic_filter, number, 1)
    assert trie.node_count() < 2 * len(filters)
    assert trie.match(b"/".join([b"7"] + [b"b", b"a"] * 100)) == [(7, 1)]
    assert {found for found, _ in trie.match(b"/".join([b"x"] * 200))} == set(range(50, 99))


@pytest.mark.parametrize("seed", range(2) if FULL else [0])
def test_very_many_subscribes_and_unsubscribes_in_any_order_leave_an_empty_trie(seed: int) -> None:
    count = 50_000 if FULL else 2_000
    rng = random.Random(seed)
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    fleets = [b"fleet/%d/" % number for number in range(count // 50)]
    made = {(rng.choice(fleets), random_filter(rng), rng.randrange(20)) for _ in range(count * 6 // 5)}
    keys = [(fleet + rest, subscriber) for fleet, rest, subscriber in made][:count]
    of_fleet: dict[bytes, set[tuple[bytes, int]]] = {fleet: set() for fleet in fleets}
    # Every subscription ends some time after its beginning.
    moments = sorted((moment, number) for number in range(count) for moment in (rng.random(), rng.random()))
    model: dict[tuple[bytes, int], int] = {}
    for step, (_, number) in enumerate(moments):
        key = keys[number]
        fleet = key[0][: key[0].index(b"/", 6) + 1]
        if key in model:
            assert trie.unsubscribe(*key)
            del model[key]
            of_fleet[fleet].remove(key)
        else:
            assert trie.subscribe(*key, number % 3)
            model[key] = number % 3
            of_fleet[fleet].add(key)
        if step % 100 == 0:
            # Only filters of the name's own fleet can match: they all begin with two plain levels.
            fleet = rng.choice(fleets)
            topic_name = fleet + random_name(rng)
            expected: dict[int, int] = {}
            for topic_filter, subscriber in of_fleet[fleet]:
                if matches(topic_filter, topic_name):
                    expected[subscriber] = max(model[topic_filter, subscriber], expected.get(subscriber, -1))
            assert dict(trie.match(topic_name)) == expected, (seed, step, topic_name)
    assert len(keys) == count and not model
    assert not trie and trie.node_count() == 0


@pytest.mark.parametrize(
    ("topic_filter", "valid"),
    [(b"#", True), (b"+", True), (b"a/+/b/#", True), (b"/", True), (b"a//b", True), (b"+/", True), (b"", False),
     (b"a#", False), (b"a/#/b", False), (b"a/b+", False), (b"+a/b", False), (b"#/", False), (b"\0", False),
     (b"\xc3\x28", False), (b"\xed\xa0\x80", False), ("ünïcode/+".encode(), True)],
)  # fmt: skip
def test_wildcards_fill_whole_levels(topic_filter: bytes, valid: bool) -> None:
    assert is_topic_filter(topic_filter) is valid
    assert is_topic_name(topic_filter) is (valid and not {*topic_filter} & {*b"#+"})
