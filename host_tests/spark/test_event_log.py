"""Spark's event log shows that its tasks read and wrote the rows, on one machine as on a cluster."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from proof.needs import needs_java
from spark_helpers import SPARK_LIMIT_S, Process, fill, record

pytestmark = needs_java
_ATTEMPT = re.compile(r"part-(\d+)-")


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the events that Spark has logged in `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    return [json.loads(line) for path in files for line in path.read_text().splitlines() if line.startswith("{")]


def test_tasks_of_spark_have_read_and_written_the_rows_of_each_micro_batch_on_one_machine(tmp_path: Path) -> None:
    """Planted: the driver reads the spool and writes the tables itself, and Spark has no job."""
    small = [[record(f"d{seq % 5}", "1-a", seq)] for seq in range(30)]
    large = [[record(f"d{seq % 5}", "1-a", seq, x="y" * 200_000)] for seq in range(30, 60)]
    fill(tmp_path / "spool" / "north", small + large)
    (tmp_path / "log").mkdir()
    command = [sys.executable, "-m", "spark_ingest.pipeline", "--spool", tmp_path / "spool", "--no-gold", "--once"]
    command += ["--tables", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint", "--max-rows", "30"]
    for setting in ("enabled=true", "compress=false", f"dir={(tmp_path / 'log').as_uri()}"):
        command += ["--conf", f"spark.eventLog.{setting}"]
    with Process(command) as pipeline:
        assert pipeline.finish(SPARK_LIMIT_S)[0] == 0
    logged = events(tmp_path / "log")
    batch_of_stage: dict[int, int] = {}
    for event in logged:
        if event["Event"] == "SparkListenerJobStart":
            batch = event["Properties"].get("streaming.sql.batchId")
            batch_of_stage |= {stage: int(batch) for stage in event["Stage IDs"] if batch is not None}
    batch_of_task = {
        event["Task Info"]["Task ID"]: batch_of_stage[event["Stage ID"]]
        for event in logged
        if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success"
    }
    # Each data file has the number of the task that has written it.
    for name in ("bronze", "silver"):
        rows: dict[int, int] = {}
        table = DeltaTable(str(tmp_path / "tables" / name))
        for action in pa.table(table.get_add_actions()).to_pylist():
            attempt = _ATTEMPT.search(action["path"])
            assert attempt is not None, action["path"]
            batch = batch_of_task[int(attempt[1])]
            rows[batch] = rows.get(batch, 0) + action["num_records"]
        assert rows == {0: 30, 1: 30}, name
    tasks = [list(batch_of_task.values()).count(batch) for batch in (0, 1)]
    buckets = len([*(tmp_path / "checkpoint" / "umqtt").glob("bucket-*")])
    assert tasks[0] == 1, "a small micro-batch has one task"
    assert tasks[1] > 1 + buckets, "a large one is decoded by several, and then has one of each bucket"
