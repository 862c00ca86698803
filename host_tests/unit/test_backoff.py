"""Reconnect waits: random from the first, doubling limits, a cap."""

from umqtt_testkit.portable import Rng, equal

from umqtt_robust.backoff import Backoff


def test_limits_double_from_one_second_to_128():
    limits = []
    backoff = Backoff(lambda n: limits.append(n - 1) or 0)
    for _ in range(11):
        equal(backoff.delay(), 0)
    equal(limits, [1000, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 128000, 128000])


def test_reset_begins_again():
    backoff = Backoff(lambda n: n - 1)
    for _ in range(5):
        backoff.delay()
    backoff.reset()
    equal([backoff.delay() for _ in range(3)], [1000, 1000, 2000])


def test_jitter_is_full():
    rng = Rng(3)
    backoff = Backoff(rng.below)
    waits = []
    for _ in range(400):
        backoff.reset()
        waits.append(backoff.delay())
    assert min(waits) < 50 and max(waits) > 950, (min(waits), max(waits))


def test_a_refusal_waits_longest():
    backoff = Backoff(lambda n: n - 1)
    assert 96000 <= backoff.longest() <= 128000
    equal(backoff.delay(), 128000)


def test_devices_do_not_agree():
    first = [Backoff().delay() for _ in range(20)]
    assert len(set(first)) > 10, first
