"""The bench of the ingestion: its figures next to those of the alternatives without it, in turn in one run.

    python host_tests/bench/ingest.py [--quick] [--json] [--peers DIR] [--case NAME]

Ratios are what counts: contenders run in turn (A B A B …), warm, and a figure is the median of its runs. The peers
are written for the bench (ingest_peers/, ingest_spark.py): paho with manual acknowledgement that syncs before it
acknowledges, paho that writes Parquet, and a Python Arrow source that decodes nothing, the upper bound for any.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import ingest_decoders
import ingest_live
from bench_rows import Row, print_rows
from ingest_lab import Lab, LabError
from ingest_plan import (
    FULL,
    GOLD_BYTES,
    GOLD_CPU,
    GOLD_FILES,
    GOLD_MEMORY,
    GOLD_OLD_BYTES,
    GOLD_OLD_CPU,
    GOLD_SAVED,
    MINIMAL,
    QUICK,
    Scale,
    row,
)

from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXIT_MISSING = 6
_OLD_DEVICES = 10_000


def collector(lab: Lab, scale: Scale, with_peers: bool) -> Iterator[Row]:
    """Measure the collector, and the bytes of its spool."""
    yield from ingest_live.collector_rows(lab, scale, with_peers)


def live(lab: Lab, scale: Scale, with_peers: bool) -> Iterator[Row]:
    """Measure the way from the broker to silver: rate, delay, bytes."""
    yield from ingest_live.live_rows(lab, scale, with_peers)


def spark(lab: Lab, scale: Scale, with_peers: bool) -> Iterator[Row]:
    """Measure reading the spool, a backfill, and deduplication, in one Spark session."""
    import ingest_spark

    with _session() as session:
        yield from ingest_spark.read_rows(lab, session, scale)
        yield from ingest_spark.backfill_rows(lab, session, scale)
        yield from ingest_spark.dedup_rows(lab, session, scale)


def gold(lab: Lab, scale: Scale, with_peers: bool) -> Iterator[Row]:
    """Measure what an update of gold writes and costs, by the share of devices that sent, and after a year of boots."""
    for devices in scale.devices:
        for share in (0.01, 0.1, 1.0):
            told = _gold(lab, devices, share, 1)
            yield row(GOLD_BYTES.format(devices=devices, share=share), sum(told["bytes"].values()))
            yield row(GOLD_FILES.format(devices=devices, share=share), sum(told["files"].values()))
            yield row(GOLD_CPU.format(devices=devices, share=share), told["cpu_s"])
        yield row(GOLD_SAVED.format(devices=devices, boots=1), told["saved"])
        yield row(GOLD_MEMORY.format(devices=devices, boots=1), told["memory"])
    devices, boots = (_OLD_DEVICES, 52) if scale is not MINIMAL else (100, 3)
    told = _gold(lab, devices, 0.01, boots)
    yield row(GOLD_OLD_BYTES.format(devices=devices, boots=boots), sum(told["bytes"].values()))
    yield row(GOLD_OLD_CPU.format(devices=devices, boots=boots), told["cpu_s"])
    yield row(GOLD_SAVED.format(devices=devices, boots=boots), told["saved"])
    yield row(GOLD_MEMORY.format(devices=devices, boots=boots), told["memory"])


def decoders(lab: Lab, scale: Scale, with_peers: bool) -> Iterator[Row]:
    """Measure what a reading of other devices costs, beside one of our own format."""
    yield from ingest_decoders.decoder_rows(lab.new_folder("decoders"), scale)


def _gold(lab: Lab, devices: int, share: float, boots: int) -> dict:
    folder = lab.new_folder("gold")
    updates = "3"
    command = [sys.executable, str(Path(__file__).with_name("ingest_gold.py")), str(devices), str(share), updates]
    ended = subprocess.run([*command, str(boots), str(folder)], check=True, capture_output=True)
    shutil.rmtree(folder)
    return json.loads(ended.stdout)


PARTS: dict[str, Callable[[Lab, Scale, bool], Iterator[Row]]] = {
    "collector": collector,
    "live": live,
    "spark": spark,
    "gold": gold,
    "decoders": decoders,
}


@contextmanager
def _session() -> Iterator[SparkSession]:
    from spark_ingest import MqttDataSource
    from spark_ingest.pipeline.process import stop_session
    from spark_ingest.pipeline.run.session import start_session

    # Spark's workers import the bench's own source from there.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    scratch = Path(tempfile.mkdtemp(prefix="umqtt-bench-spark-"))
    session = start_session(scratch)
    try:
        session.dataSource.register(MqttDataSource)
        yield session
    finally:
        stop_session(session)
        shutil.rmtree(scratch, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    """Print one row per line. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="bench-ingest", description="Measure the ingestion against its figures and its peers."
    )
    how_much = parser.add_mutually_exclusive_group()
    how_much.add_argument("--quick", action="store_true", help="under 45 s: one short run each, fewer cases")
    how_much.add_argument("--minimal", action="store_true", help="only to see that it runs: its figures say nothing")
    parser.add_argument("--json", action="store_true", help="a line of JSON a row instead of a table")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder with paho in the environment DIR/venv")
    parser.add_argument("--case", choices=PARTS, action="append", help="only these cases; repeatable")
    options = parser.parse_args(arguments)
    if options.peers is not None and not (options.peers / "venv" / "bin" / "python").exists():
        parser.error(f"--peers {options.peers}: there is no DIR/venv/bin/python; make it, or leave the option out")
    scale = QUICK if options.quick else MINIMAL if options.minimal else FULL
    try:
        require_java()
        with Lab(options.peers and options.peers.resolve()) as lab:
            missing = lab.missing()
            if missing:
                print(f"bench-ingest: paho is not measured: {missing}", file=sys.stderr)
            # Making gold of a year takes half a minute.
            parts = options.case or [part for part in PARTS if not options.quick or part != "gold"]
            found = (each for part in parts for each in PARTS[part](lab, scale, not missing))
            print_rows(found, as_json=options.json)
    except (LabError, MissingDependency) as error:
        print(f"bench-ingest: {error}", file=sys.stderr)
        return _EXIT_MISSING
    return 0


if __name__ == "__main__":
    sys.exit(main())
