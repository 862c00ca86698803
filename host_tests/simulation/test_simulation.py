"""Broker and clients in virtual time: nothing diverges from the model, and the same seed gives the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import planted_simulation
import pytest
import simulate
from simulated_world import FAULTS, Outcome, Scenario
from simulated_world import simulate as run_world

_FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
_SEEDS = 2000 if _FULL else 10  # of each part
_PARTS = 4


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_seed_loses_doubles_or_reorders(part: int) -> None:
    """Planted: see planted_simulation.py."""
    first = 1 + part * _SEEDS
    result = simulate.run(Scenario(seed) for seed in range(first, first + _SEEDS))
    print(result.line())
    assert result.failed is None, f"{result.failed[0].command()}\n" + "\n".join(result.failed[1].divergences[:10])
    assert result.seeds == _SEEDS


def test_every_kind_of_fault_comes_about() -> None:
    """One fault of each kind in a world of its own; the broker refuses a store with old pages put back."""
    for kind in FAULTS:
        seen: Counter[str] = Counter()
        for seed in range(1, 40):
            seen += run_world(Scenario(seed, devices=2, seconds=4, kinds=(kind,))).seen
            if seen[kind] and (kind != "old_pages" or seen["old pages refused"]):
                break
        else:
            raise AssertionError(f"{kind} does not come about: {seen}")


def test_the_same_seed_gives_the_same_bytes_also_in_another_process() -> None:
    """Planted: the broker's connections in a set, whose order depends on addresses."""
    scenario = Scenario(30, seconds=10)
    script = "from simulated_world import *; simulate(Scenario(4)); print(simulate(Scenario(30, seconds=10)).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=Path(__file__).parent, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    digests = [run_world(scenario).digest for _ in range(2)]
    assert digests == [other.stdout.strip()] * 2


def test_a_world_that_diverges_is_made_smaller() -> None:
    """The shrunk world has the one device, the one fault kind and the short time that the failure needs."""

    def fails(scenario: Scenario) -> Outcome:
        kinds = FAULTS if scenario.kinds is None else scenario.kinds
        is_bad = scenario.devices >= 2 and "kill" in kinds and scenario.faults >= 3
        return Outcome(["lost"] if is_bad else [], 0, 0, 0, "", 0.0, Counter())

    scenario = Scenario(7)
    found, outcome = simulate.shrink(scenario, fails(scenario), fails)
    assert (found.devices, found.faults, found.kinds, found.seconds) == (2, 3, ("kill",), 2)
    assert outcome.divergences and "--seed 7 --seeds 1 --devices 2" in found.command()


@pytest.mark.tier(3)
@pytest.mark.parametrize("name", planted_simulation.PLANTED)
def test_the_simulation_finds_a_planted_mistake(name: str) -> None:
    assert planted_simulation.find(name).failed is not None
