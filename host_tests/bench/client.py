"""The bench of the client: every figure that it has to reach, next to those of widely used clients.

    python host_tests/bench/client.py [--quick] [--json] [--peers DIR]

Ratios are what counts: contenders run in turn, and a figure is the median of its runs. In the receive rows the
messages come from a buffer that was filled before; in all others the broker is mosquitto with set_tcp_nodelay.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_rows import Row, print_rows
from client_lab import Lab, LabError
from client_memory import allocation_rows, size_rows, smallest_heap_rows
from client_plan import ALL_OURS, SCENARIOS, WINDOW, Scenario, has_goal, rate_rows
from umqtt_testkit.interpreter import MicroPythonMissing

from umqtt_cli.errors import KitError

_EXIT_USAGE = 2
_EXIT_MISSING = 6
_SIZES, _ALLOCATION = "sizes and heap", "bytes allocated"
_GROUPS = (_SIZES, _ALLOCATION, *(scenario.name for scenario in SCENARIOS))


def rows(lab: Lab, *, quick: bool, only: str = "") -> Iterator[Row]:
    """Yield every row of a group whose name contains `only`, as soon as it is known."""
    if only in _SIZES:
        with tempfile.TemporaryDirectory(prefix="umqtt-bench-") as folder:
            yield from size_rows(lab, Path(folder))
            yield from smallest_heap_rows(lab, Path(folder), quick=quick)
    if only in _ALLOCATION:
        yield from allocation_rows(lab)
    for scenario in SCENARIOS:
        if only in scenario.name:
            yield from _rates(lab, scenario, quick=quick)


def _rates(lab: Lab, scenario: Scenario, *, quick: bool) -> Iterator[Row]:
    repetitions, seconds = (1, 0.4) if quick else (5, 1.0)
    if scenario.slow:
        seconds *= 2  # the last window, which is seldom full, counts less
    contenders = [each for each in scenario.contenders if not quick or has_goal(scenario, each)]
    physics: list[float] = []
    runs: dict[str, list[float]] = {each.name: [] for each in contenders if lab.has(each)}
    for _ in range(repetitions):
        if scenario.slow:
            # A message at QoS 2 takes two round trips.
            physics.append(WINDOW / (lab.round_trip_s() * scenario.qos))
        for contender in contenders:
            if contender.name in runs:
                try:
                    runs[contender.name].append(lab.rate(scenario, contender, seconds))
                except LabError as error:
                    if contender in ALL_OURS:
                        raise
                    # A peer is a third-party program: its row shows no figure, and this line says why.
                    print(f"bench-client: {scenario.name}: {error}", file=sys.stderr)
                    del runs[contender.name]
    medians = {name: statistics.median(figures) for name, figures in runs.items()}
    yield from rate_rows(scenario, contenders, medians, statistics.median(physics) if physics else None)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench-client", description="Measure the client against its figures and its peers."
    )
    parser.add_argument("--quick", action="store_true", help="under 45 s: one short run each, only peers with a goal")
    parser.add_argument("--json", action="store_true", help="a line of JSON a row instead of a table")
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="DIR",
        help="folder with umqtt/simple.py and mqtt_as.py; without it their rows have no peer",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help=f"only groups whose name contains it: {', '.join(_GROUPS)}"
    )
    options = parser.parse_args(arguments)
    if options.peers is not None and not options.peers.is_dir():
        parser.error(f"--peers {options.peers} is no folder: install umqtt and mqtt_as there, or leave it out")
    if not any(options.only in group for group in _GROUPS):
        parser.error(f"--only {options.only} is in none of the groups: {', '.join(_GROUPS)}")
    try:
        with Lab(options.peers and options.peers.resolve()) as lab:
            print_rows(rows(lab, quick=options.quick, only=options.only), as_json=options.json)
    except (LabError, KitError, MicroPythonMissing) as error:
        print(f"bench-client: {error}", file=sys.stderr)
        return _EXIT_MISSING
    return 0


if __name__ == "__main__":
    sys.exit(main())
