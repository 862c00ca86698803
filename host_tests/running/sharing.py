"""Groups of test files that share something slow to start: one worker runs a group, file after file."""

from __future__ import annotations

from pathlib import Path

from xdist.scheduler import LoadFileScheduling

HOST_TESTS = Path(__file__).resolve().parents[1]

# Files below host_tests. The two Spark sessions take about the same time.
TOGETHER = (
    (
        "spark/test_prove.py",
        "spark/faults/test_pipeline_faults.py",
        "spark/test_spark_home.py",
        "spark/test_stuck.py",
        "spark/test_spark_ports.py",
        "spark/test_object_store_spark.py",
        "spark/report/test_live_progress.py",
        "spark/collect/test_disk_quota_with_spark.py",
    ),
    (
        "spark/test_pipeline.py",
        "spark/test_source.py",
        "spark/test_spark_examples.py",
        "spark/report/test_sql_examples.py",
        "spark/source/test_source_docs.py",
        "spark/source/test_sink_spark.py",
        "spark/pipeline/test_limits.py",
    ),
)
_FIRST = {HOST_TESTS / each: HOST_TESTS / files[0] for files in TOGETHER for each in files}


def first_of(path: Path) -> Path:
    """Return the file that stands for the group of this one; the file itself if it is in no group."""
    return _FIRST.get(path, path)


class Scheduling(LoadFileScheduling):
    """`--dist loadfile`, with the files of one group counted as one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return str(first_of(HOST_TESTS.parent / file))
