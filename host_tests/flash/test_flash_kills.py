"""A virtual board that is killed at random while it publishes loses no reading, and none comes twice at QoS 2."""

from pathlib import Path

import flash_kills
import pytest
from umqtt_testkit.interpreter import MicroPythonMissing

pytestmark = pytest.mark.tier(2)

# `make prove-flash` kills the board 200 times.
KILLS = 6
KILLS_WITHOUT = 10
SEED = 1


def test_a_board_killed_at_random_loses_nothing_and_sends_nothing_twice_at_qos_2(tmp_path: Path):
    """Planted: a store that forgets at a restart, in the next test."""
    print("seed", SEED)
    try:
        count = flash_kills.count_kills(tmp_path, KILLS, SEED)
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    print(count)
    assert count.promised > KILLS
    assert (count.lost, count.duplicated, count.out_of_order) == (0, 0, 0)


@pytest.mark.tier(3)  # a control
def test_the_same_kills_without_the_flash_store_lose_readings(tmp_path: Path):
    """Planted: a count that never finds a loss."""
    print("seed", SEED)
    try:
        count = flash_kills.count_kills(tmp_path, KILLS_WITHOUT, SEED, "MemoryStore")
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    assert count.lost > 0


def test_the_count_finds_what_is_lost_twice_or_out_of_order():
    """Planted: a count that counts each reading once."""
    good = ["a-0-1", "a-1-2", "a-2-1", "a-3-2"]
    count = flash_kills.count(1, good, good)
    assert (count.lost, count.duplicated, count.out_of_order, count.repeated_at_qos1) == (0, 0, 0, 0)
    assert flash_kills.count(1, good, good[1:]).lost == 1
    assert flash_kills.count(1, good, [*good, "a-1-2"]).duplicated == 1
    assert flash_kills.count(1, good, [*good, "a-0-1"]).repeated_at_qos1 == 1
    assert flash_kills.count(1, good, good[::-1]).out_of_order == 2
