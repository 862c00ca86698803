"""The test files that share Spark's session, the slowest thing to start: one worker runs them, file after file."""

from __future__ import annotations

from pathlib import Path

from xdist.scheduler import LoadFileScheduling

HOST_TESTS = Path(__file__).resolve().parents[1]

# Files below host_tests. Java starts once, and what it has compiled for one file serves all.
SPARK_FILES = (
    "spark/test_pipeline.py",
    "spark/test_prove.py",
    "spark/test_source.py",
    "spark/test_spark_examples.py",
    "spark/test_spark_home.py",
    "spark/test_spark_ports.py",
    "spark/test_stuck.py",
    "spark/test_object_store_spark.py",
    "spark/collect/test_disk_quota_with_spark.py",
    "spark/faults/test_pipeline_faults.py",
    "spark/pipeline/test_limits.py",
    "spark/report/test_live_progress.py",
    "spark/report/test_sql_examples.py",
    "spark/source/test_sink_spark.py",
    "spark/source/test_source_docs.py",
)
_SPARK = frozenset(HOST_TESTS / each for each in SPARK_FILES)


def first_of(path: Path) -> Path:
    """Return the file that stands for all of SPARK_FILES if this is one of them; else the file itself."""
    return HOST_TESTS / SPARK_FILES[0] if path in _SPARK else path


class Scheduling(LoadFileScheduling):
    """`--dist loadfile`, with SPARK_FILES counted as one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return str(first_of(HOST_TESTS.parent / file))
