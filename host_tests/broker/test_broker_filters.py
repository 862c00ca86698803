"""The algebra of topic filters, exhaustively over small alphabets against brute force, and against libmosquitto."""

import ctypes
import ctypes.util
import itertools
import os
import random

import pytest
from umqtt_broker.protocol.topic_filters import Effort, Levels, TooHard, intersection, matches, split
from umqtt_broker.protocol.topic_filters import is_covered as is_covered_within
from umqtt_broker.protocol.topics import is_topic_filter
from umqtt_broker.routing.subscriptions import SubscriptionTrie

pytestmark = pytest.mark.tier(0)

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))


def _filters(levels: tuple[bytes, ...], depth: int) -> list[bytes]:
    names = [b"/".join(parts) for count in range(1, depth + 1) for parts in itertools.product(levels, repeat=count)]
    return [name for name in names if is_topic_filter(name)]


# One level more than the filters have, and a name ("c") that none of them contains: enough to show every difference.
FILTERS = _filters((b"a", b"b", b"+", b"#", b"$"), 3)
SMALL = _filters((b"a", b"", b"+", b"#"), 3)
TOPICS = [
    b"/".join(parts) for count in range(1, 5) for parts in itertools.product((b"a", b"b", b"c", b"$"), repeat=count)
]
EMPTY_TOPICS = [
    name for count in range(1, 5) for parts in itertools.product((b"", b"a", b"c", b"$"), repeat=count)
    if (name := b"/".join(parts))
]  # fmt: skip


def is_covered(topic_filter: Levels, others: list[Levels]) -> bool:
    return is_covered_within(topic_filter, others, Effort(10_000))


def _language(topic_filter: bytes, topics: list[bytes]) -> frozenset[bytes]:
    """Return what a filter matches, according to the trie, which is other code than the tested one."""
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    trie.subscribe(topic_filter, 1, 0)
    return frozenset(topic for topic in topics if trie.match(topic))


LANGUAGES = {topic_filter: _language(topic_filter, TOPICS) for topic_filter in FILTERS}
SMALL_LANGUAGES = {topic_filter: _language(topic_filter, EMPTY_TOPICS) for topic_filter in SMALL}


@pytest.mark.parametrize(("languages", "topics"), [(LANGUAGES, TOPICS), (SMALL_LANGUAGES, EMPTY_TOPICS)])
def test_a_filter_matches_what_the_trie_says(languages, topics) -> None:
    for topic_filter, language in languages.items():
        assert {topic for topic in topics if matches(split(topic_filter), split(topic))} == language, topic_filter


@pytest.mark.parametrize("languages", [LANGUAGES, SMALL_LANGUAGES])
def test_the_intersection_of_two_filters_matches_exactly_what_both_match(languages) -> None:
    topics = TOPICS if languages is LANGUAGES else EMPTY_TOPICS
    found: dict[bytes, frozenset[bytes]] = dict(languages)
    for one, other in itertools.product(languages, repeat=2):
        common = intersection(split(one), split(other))
        both = languages[one] & languages[other]
        if common is None:
            assert not both, (one, other)
            continue
        name = b"/".join(common)
        assert both, (one, other, name)
        if name not in found:
            found[name] = _language(name, topics)
        assert found[name] == both, (one, other, name)


@pytest.mark.parametrize("languages", [LANGUAGES, SMALL_LANGUAGES])
def test_a_filter_is_covered_by_another_exactly_when_the_other_matches_all_it_matches(languages) -> None:
    for one, other in itertools.product(languages, repeat=2):
        assert is_covered(split(one), [split(other)]) == (languages[one] <= languages[other]), (one, other)


def test_a_filter_is_covered_by_several_exactly_when_together_they_match_all_it_matches() -> None:
    for one in SMALL:
        assert not is_covered(split(one), [])
    # Pairs of all filters of two levels, and samples of filters with three.
    short = [topic_filter for topic_filter in SMALL if topic_filter.count(b"/") < 2]
    for one in short:
        for others in itertools.combinations(short, 2):
            union = frozenset().union(*(SMALL_LANGUAGES[other] for other in others))
            assert is_covered(split(one), [split(other) for other in others]) == (SMALL_LANGUAGES[one] <= union), (
                one,
                others,
            )
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    covered = 0
    for turn in range(100_000 if FULL else 5_000):
        languages = LANGUAGES if turn % 2 else SMALL_LANGUAGES
        one, *others = chance.choices(list(languages), k=chance.randint(3, 7))
        union = frozenset().union(*(languages[other] for other in others))
        is_subset = languages[one] <= union
        assert is_covered(split(one), [split(other) for other in others]) == is_subset, (one, others)
        covered += is_subset
    assert covered > 100


def test_a_question_that_would_take_for_ever_is_given_up() -> None:
    # Each filter forbids one combination of two of 40 levels: searching them all would take 3 ** 40 steps.
    others = [
        tuple(b"ab"[(bits >> (level == two)) & 1 :][:1] if level in (one, two) else b"+" for level in range(40))
        for one, two in itertools.combinations(range(40), 2)
        for bits in range(4)
    ]
    others += [tuple(b"x" if level == index else b"+" for level in range(40)) for index in range(40)]
    with pytest.raises(TooHard):
        is_covered((b"+",) * 40, others)


@pytest.mark.tier(1)
def test_matching_is_libmosquittos() -> None:
    path = ctypes.util.find_library("mosquitto")
    if path is None:
        pytest.skip("libmosquitto is not installed")
    library = ctypes.CDLL(path)
    result = ctypes.c_bool()
    for topic_filters, topics in ((FILTERS, TOPICS), (SMALL, EMPTY_TOPICS)):
        for topic_filter, topic in itertools.product(topic_filters, topics):
            assert library.mosquitto_topic_matches_sub(topic_filter, topic, ctypes.byref(result)) == 0
            assert result.value == matches(split(topic_filter), split(topic)), (topic_filter, topic)
