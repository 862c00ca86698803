"""The bench of the ingestion: its figures next to those of the alternatives without it, in turn in one run.

    python host_tests/bench/ingest.py [--quick] [--json] [--peers DIR] [--case NAME]

Ratios are what counts: contenders run in turn (A B A B …), warm, and a figure is the median of its runs. The peers
are written for the bench (ingest_peers/, ingest_spark.py): paho with manual acknowledgement that syncs before it
acknowledges, paho that writes Parquet, and a Python Arrow source that decodes nothing, the upper bound for any.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import ingest_live
from bench_rows import Row, print_rows
from ingest_lab import Lab, LabError
from ingest_plan import FULL, MINIMAL, QUICK, Scale

from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXIT_MISSING = 6


def collector(lab: Lab, scale: Scale, with_peers: bool) -> Iterator[Row]:
    """Measure the collector, and the bytes of its spool."""
    yield from ingest_live.collector_rows(lab, scale, with_peers)


def live(lab: Lab, scale: Scale, with_peers: bool) -> Iterator[Row]:
    """Measure the way from the broker to silver: rate, delay, bytes."""
    yield from ingest_live.live_rows(lab, scale, with_peers)


def spark(lab: Lab, scale: Scale, with_peers: bool) -> Iterator[Row]:
    """Measure reading the spool, and a backfill, in one Spark session."""
    import ingest_spark

    with _session() as session:
        yield from ingest_spark.read_rows(lab, session, scale)
        yield from ingest_spark.backfill_rows(lab, session, scale)


PARTS: dict[str, Callable[[Lab, Scale, bool], Iterator[Row]]] = {
    "collector": collector,
    "live": live,
    "spark": spark,
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
            found = (each for part in options.case or PARTS for each in PARTS[part](lab, scale, not missing))
            print_rows(found, as_json=options.json)
    except (LabError, MissingDependency) as error:
        print(f"bench-ingest: {error}", file=sys.stderr)
        return _EXIT_MISSING
    return 0


if __name__ == "__main__":
    sys.exit(main())
