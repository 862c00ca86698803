"""Proves that a cluster loses nothing: `make prove-cluster`, or `python host_tests/clusters/prove.py [--quick]`.

Runs three nodes of each installed engine, and four shards of the paired broker, configured by tools/clusters, with a
balancer, virtual boards with the firmware, devices with this project's client, an operator that sends commands to both,
the collector, and Spark. Nodes are killed (one, all), stopped for a time, wiped and joined again, or lost for good, in
an order drawn from a seed; an operator does what docs/engines.md and docs/shards.md say. Then the rows of silver are
compared with what the engine acknowledged to the devices and with all that the boards had in their flash, and the
commands that devices received or boards answered with those that it acknowledged to the operator. Faults that an engine
itself does not survive (chain.CANNOT) have a run of their own and are counted separately.

With --json it prints one JSON object at the end: engines (for each: acknowledged, from_boards, commands, lost,
duplicated, commands_lost, doubled, faults), cannot (for each such case: its issue, lost, commands_lost; nobody is shut
out there either), lost, duplicated, commands_lost (sums, without those cases), seed, seconds. Exit code: 0, or 1 if a
law was broken; then the folder is kept and named.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import proving
import pytest
from chain import CANNOT, Outcome, run
from engines import ENGINES

_COUNTS = ("lost", "duplicated", "commands_lost")


def main(arguments: list[str] | None = None) -> int:
    more = {"--engine": {"choices": sorted(ENGINES), "help": "this one alone"}}
    return proving.run(_prove, "proves that a cluster loses nothing", arguments, more)


def _prove(options: argparse.Namespace, say: proving.Say) -> tuple[dict[str, object], bool]:
    seed = options.seed
    folder = Path(tempfile.mkdtemp(prefix="umqtt-prove-cluster-"))
    say(f"in {folder}")
    outcomes: dict[str, Outcome] = {}
    cannot: dict[str, dict[str, object]] = {}
    for engine in [options.engine] if options.engine else ENGINES:
        rng = random.Random(f"{seed} {engine}")
        cluster = ENGINES[engine]
        times = 1 if options.quick else 5
        faults = [fault for fault in cluster.faults if (engine, fault) not in CANNOT for _ in range(times)]
        rng.shuffle(faults)
        try:
            outcomes[engine] = _run(engine, folder / engine, faults, seed)
            say(f"{engine}: {outcomes[engine]}")
            for (name, fault), issue in CANNOT.items():
                if name == engine and not options.quick:
                    found = _cannot(engine, folder / f"{engine}-cannot", fault, seed)
                    cannot[f"{engine}, {fault}"] = {"issue": issue, **found}
                    say(f"{engine}, {fault} ({issue}): {found}")
        except pytest.skip.Exception as missing:
            say(f"{engine}: {missing}")
    sums = {name: sum(getattr(outcome, name) for outcome in outcomes.values()) for name in _COUNTS}
    if any(sums.values()):
        say(f"a law was broken: see {folder}")
    else:
        shutil.rmtree(folder)
    found = {"engines": {engine: asdict(outcome) for engine, outcome in outcomes.items()}, "cannot": cannot, **sums}
    return found, any(sums.values()) or not outcomes


def _run(engine: str, folder: Path, faults: list[str], seed: int) -> Outcome:
    folder.mkdir()
    with ENGINES[engine](folder) as cluster:
        return run(cluster, folder, faults, seed)


def _cannot(engine: str, folder: Path, fault: str, seed: int) -> dict[str, object]:
    found = _run(engine, folder, [fault], seed)
    return {"lost": found.lost, "commands_lost": found.commands_lost}


if __name__ == "__main__":
    sys.exit(main())
