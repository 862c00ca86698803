"""Deterministic simulation: the broker, the clients, their disks and the network in one process and in virtual time.

    python host_tests/simulation/simulate.py --seeds 1000 [--seed FIRST] [--devices N] [--seconds S] [--faults N]

prints a line: seeds, messages, messages a minute of processor time, and a digest of all bytes. Each world runs twice if
`--twice` is given, and must come out the same. A world that diverges from the model is made smaller as long as it does,
and the command that repeats it is printed. Exit code: 0 if nothing diverges.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulated_world import FAULTS, Outcome, Scenario, simulate


class Result(NamedTuple):
    """What many worlds have come to. failed: the first one that diverged, as small as it could be made."""

    seeds: int
    messages: int
    seconds: float
    virtual: float
    digest: str
    seen: Counter[str]
    failed: tuple[Scenario, Outcome] | None

    def line(self) -> str:
        """Return the line."""
        rate = 60 * self.messages / self.seconds if self.seconds else 0
        return (
            f"{self.seeds} seeds, {self.virtual / 3600:.1f} virtual hours, {self.messages:,} messages,"
            f" {sum(self.seen.values())} faults of {len(self.seen)} kinds in {self.seconds:.1f} s of one core:"
            f" {rate:,.0f} messages a minute; digest {self.digest}"
        )


def run(scenarios: Iterator[Scenario], *, twice: bool = False, seconds: float = 0.0, shrinks: bool = True) -> Result:
    """Run worlds until one diverges, or for so many seconds if that is not 0."""
    began = time.process_time()
    ends = time.monotonic() + seconds
    digest = blake2b(digest_size=8)
    seeds = messages = 0
    virtual = 0.0
    seen: Counter[str] = Counter()
    failed = None
    for scenario in scenarios:
        outcome = simulate(scenario)
        seeds += 1
        messages += outcome.messages
        virtual += outcome.seconds
        seen += outcome.seen
        digest.update(outcome.digest.encode())
        if twice:
            messages += outcome.messages
            if (again := simulate(scenario).digest) != outcome.digest:
                outcome.divergences.append(f"the second run is another one: {again}, not {outcome.digest}")
                failed = scenario, outcome
                break
        if outcome.divergences:
            failed = shrink(scenario, outcome) if shrinks else (scenario, outcome)
            break
        if seconds and time.monotonic() >= ends:
            break
    return Result(seeds, messages, time.process_time() - began, virtual, digest.hexdigest(), seen, failed)


def shrink(
    scenario: Scenario, outcome: Outcome, run_one: Callable[[Scenario], Outcome] = simulate
) -> tuple[Scenario, Outcome]:
    """Return a smaller world that diverges too: fewer devices, less time, fewer faults, fewer kinds of them."""
    while True:
        for smaller in _smaller(scenario):
            found = run_one(smaller)
            if found.divergences:
                scenario, outcome = smaller, found
                break
        else:
            return scenario, outcome


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for devices in range(1, scenario.devices):
        yield replace(scenario, devices=devices)
    if scenario.faults:
        yield replace(scenario, faults=scenario.faults // 2)
        yield replace(scenario, faults=scenario.faults - 1)
    kinds = tuple(FAULTS) if scenario.kinds is None else scenario.kinds
    for kind in kinds:
        yield replace(scenario, kinds=tuple(other for other in kinds if other != kind))
    if scenario.seconds > 2:
        yield replace(scenario, seconds=scenario.seconds // 2)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="the broker and its clients in virtual time, by a seed")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds (default: 200)")
    parser.add_argument("--devices", type=int, default=Scenario.devices, help="clients of each world")
    parser.add_argument("--seconds", type=int, default=Scenario.seconds, help="virtual seconds of faults")
    parser.add_argument("--faults", type=int, default=Scenario.faults, help="faults in each world")
    parser.add_argument("--kinds", help=f"of faults, with commas between: {','.join(FAULTS)}; none")
    parser.add_argument("--twice", action="store_true", help="run each world twice and compare the bytes")
    options = parser.parse_args(arguments)
    kinds = None if options.kinds is None else tuple(kind for kind in options.kinds.split(",") if kind in FAULTS)
    seeds = range(options.seed, options.seed + options.seeds)
    result = run(
        (Scenario(seed, options.devices, options.seconds, options.faults, kinds) for seed in seeds),
        twice=options.twice,
        shrinks=options.seeds > 1,
    )
    print(result.line())
    if result.failed is None:
        return 0
    scenario, outcome = result.failed
    print(f"seed {scenario.seed} diverges from the model of MQTT; to repeat it:\n  {scenario.command()}")
    for text in outcome.divergences[:10]:
        print(f"  {text}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
