"""Plans the sweeps and counts their results, for the tests and for `make prove-flash`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flash_workers import GEOMETRIES, Job, Result, run_jobs

_HERE = Path(__file__).resolve().parent
# One of these catches each control; random scenarios find what only a mixture shows.
_FOR_CONTROLS = ("both_ways", "large_again", "reboots", *map(str, range(1, 15)))
_EVERY_LATE = 10
_PROGRESS = 50_000
_SAMPLE_FOR_CONTROLS = 300

# One planted mistake of each family (durability, order of writes, chunks, inbound messages), with a scenario that
# shows it within few cuts. The other mistakes need all scenarios of _FOR_CONTROLS.
ONE_A_FAMILY = {
    "SkipsFlush": "both_ways",
    "TombstoneFirst": "both_ways",
    "SlotBeforeChunks": "large_again",
    "ForgetsBeforeTheHandler": "both_ways",
}
_SAMPLE_FOR_FAMILIES = 60


def _names_in(module: str, variable: str) -> list[str]:
    # Returns the names in a tuple of a module that only MicroPython can import.
    for node in ast.parse((_HERE / f"{module}.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable:
            return [ast.unparse(element) for element in getattr(node.value, "elts", [])]
    raise LookupError(f"{module}.py has no {variable}")


FIXED = _names_in("sweep_scenarios", "FIXED")
CONTROLS = _names_in("sweep_controls", "CONTROLS")


@dataclass
class Tally:
    """The cuts made, the broken laws by kind, and the messages about them."""

    cuts: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    other: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.cuts += result.cuts
        if not result.failure:
            return
        job = result.job
        where = f"{job.store} on {job.geometry}, scenario {job.scenario}, seed {job.seed}"
        self.failures.append(f"{where}: {result.failure}")
        law = result.failure.partition("; ledger")[0]
        if "lost" in law:
            self.lost += 1
        elif "times" in law or "again" in law:
            self.duplicated += 1
        elif "order" in law:
            self.out_of_order += 1
        else:
            self.other += 1


def sweep(cuts: int, seed: int, progress: Callable[[int], None] | None = None, most: int = 0) -> Tally:
    """Sweep every fixed scenario on every geometry, then random ones from the seed on, until `cuts` cuts were made.

    progress: called with the number of cuts, every 50,000 of them.
    most: the size of the sample of cuts in each scenario; 0: all of them. A second cut follows each.
    """
    tally = Tally()
    reported = 0

    def jobs() -> Iterator[Job]:
        for name in FIXED:
            for geometry in GEOMETRIES:
                yield Job(geometry, name, most=most, seed=seed)
            yield Job("esp32", name, "LateStore", most, seed)
        number = 0
        while tally.cuts < cuts:
            store = "LateStore" if number % _EVERY_LATE == 0 else "FlashStore"
            yield Job(GEOMETRIES[number % len(GEOMETRIES)], str(seed * 1_000_000 + number), store, most, seed)
            number += 1

    for result in run_jobs(jobs()):
        tally.add(result)
        if progress and tally.cuts >= reported + _PROGRESS:
            reported = tally.cuts
            progress(reported)
    return tally


def catch_controls(seed: int) -> dict[str, str]:
    """Return how each control was caught, by control and geometry ("SkipsFlush on rp2"); empty text if it was not."""
    caught: dict[str, str] = {}
    open_ones = [(control, geometry) for control in CONTROLS for geometry in ("esp32", "rp2")]

    def jobs() -> Iterator[Job]:
        for control, geometry in open_ones:
            caught[f"{control} on {geometry}"] = ""
        for scenario in _FOR_CONTROLS:
            for control, geometry in open_ones:
                if not caught[f"{control} on {geometry}"]:
                    yield Job(geometry, scenario, control, _SAMPLE_FOR_CONTROLS, seed)

    for result in run_jobs(jobs()):
        if result.failure:
            caught[f"{result.job.store} on {result.job.geometry}"] = result.failure
    return caught


def catch_families(seed: int) -> dict[str, str]:
    """Do the same as catch_controls(), for one planted mistake of each family."""
    jobs = [Job("esp32", scenario, name, _SAMPLE_FOR_FAMILIES, seed) for name, scenario in ONE_A_FAMILY.items()]
    return {f"{result.job.store} on {result.job.geometry}": result.failure for result in run_jobs(jobs)}
