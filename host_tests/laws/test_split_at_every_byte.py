"""However the byte stream is split, the events are the same."""

from recorded import play, record
from umqtt_testkit.portable import Rng, equal
from world import FULL, SHARE, every, with_mqtt5

HEAP = "4M"
TIMEOUT_S = 100


def test_every_split_of_a_recorded_session_gives_the_same_events():
    # Planted: the length of a packet is read before it has arrived.
    recorded, events = record()
    total = sum([len(data) for _, data in recorded])
    print("bytes", total, "events", len(events))
    assert total > 1000 and len(events) > 18, events
    equal(play(recorded, []), events)
    for at in every(total - 1, 1):
        equal(play(recorded, [at]), events, "split at %d" % at)


def test_pieces_of_equal_size_give_the_same_events():
    # Planted: the topic name of a large message is its last piece.
    recorded, events = record()
    total = sum([len(data) for _, data in recorded])
    for size in (1, 2, 3, 5, 7, 16, 95, 96, 97):
        equal(play(recorded, range(size, total, size)), events, "pieces of %d" % size)


def test_random_splits_give_the_same_events():
    # Planted: the topic name of a large message is its last piece.
    recorded, events = record()
    total = sum([len(data) for _, data in recorded])
    for seed in range(300 if FULL else 60 // SHARE):
        rng = Rng(seed, quiet=True)
        ends = sorted([rng.between(1, total - 1) for _ in range(rng.between(2, 40))])
        equal(play(recorded, ends), events, "seed %d" % seed)


test_every_split_of_a_recorded_session_gives_the_same_events_with_mqtt5 = with_mqtt5(
    test_every_split_of_a_recorded_session_gives_the_same_events
)
test_pieces_of_equal_size_give_the_same_events_with_mqtt5 = with_mqtt5(test_pieces_of_equal_size_give_the_same_events)
test_random_splits_give_the_same_events_with_mqtt5 = with_mqtt5(test_random_splits_give_the_same_events, sampled=False)
