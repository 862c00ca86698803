"""The pipeline on real clusters: what dies is made up for, and no node but the collector's sees the spool."""

import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable
from spark_helpers import Process, fill, record
from standalone import Cluster, executors_below
from umqtt_testkit.waiting import eventually

import spark_ingest
from spark_ingest.collector.serve import SpoolServer
from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java
from spark_ingest.spool.access import LocalSpools
from spark_ingest.tables import identities, summary

DEVICES, READINGS, CORRUPT = 10, 30, 5
TOKEN = b"0123456789abcdef0123456789abcdef"
DYING = Path(__file__).parents[1] / "pipeline_dies.py"
WAITING = Path(__file__).parents[1] / "pipeline_waits.py"
SUBMIT = Path(spark_ingest.__file__).parent / "pipeline" / "submit.py"
# Small Java processes that start fast. Each test starts six of them: a minute of two cores.
SMALL = ["--conf", "spark.executor.memory=512m", "--conf", "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1"]


@pytest.fixture(autouse=True)
def java() -> None:
    try:
        require_java()
    except MissingDependency as error:
        pytest.skip(str(error))


def publish_all(spool: Path) -> set[tuple[str, str, int]]:
    """A spool with every reading, a tenth of them twice, and some corrupt messages; the identities."""
    made = [(f"d{device}", "1-a", seq) for device in range(DEVICES) for seq in range(READINGS)]
    payloads = [record(*one) for one in made]
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    payloads += rng.choices(payloads, k=len(payloads) // 10) + [b"corrupt %d" % i for i in range(CORRUPT)]
    rng.shuffle(payloads)
    fill(spool, [payloads[start : start + 20] for start in range(0, len(payloads), 20)])
    return set(made)


def check(tables: Path, made: set[tuple[str, str, int]]) -> None:
    rows = list(identities(tables))
    assert set(rows) == made and len(rows) == len(made), "0 lost, 0 duplicated"
    assert summary(tables).quarantined == CORRUPT
    bronze = DeltaTable(str(tables / "bronze")).to_pyarrow_table(columns=["segment", "position"]).to_pylist()
    assert len({(row["segment"], row["position"]) for row in bronze}) == len(bronze) == len(made) * 11 // 10 + CORRUPT


def finished(command: Sequence[object], **options: object) -> str:
    """Run the pipeline to its end; what it printed, all of it (spark-submit joins the two outputs)."""
    with Process(command, **options) as driver:
        code, out, err = driver.finish(600)
    assert code == 0, out + err
    return out


def data_files(table: Path) -> tuple[set[str], set[str]]:
    """Data files in the folder, and those that the table's newest version holds."""
    there = {str(path) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}
    held = set(DeltaTable(str(table)).file_uris()) if DeltaTable.is_deltatable(str(table)) else set()
    return there, held


@pytest.mark.timeout(1500)
def test_standalone_cluster_reads_over_tcp_and_a_driver_killed_between_write_and_commit_loses_nothing(tmp_path):
    hidden = tmp_path / "collector" / "spool"
    made = publish_all(hidden / "north")
    token_file = tmp_path / "collector" / "token"
    token_file.write_bytes(TOKEN)
    token_file.chmod(0o600)
    server = SpoolServer("127.0.0.1", 0, LocalSpools(hidden), TOKEN)
    shared = tmp_path / "shared"
    arguments = ["--server", "{}:{}".format(*server.address), "--token-file", token_file, "--buckets", 2]
    arguments += ["--tables", shared / "tables", "--checkpoint", shared / "checkpoint", "--once", "--max-rows", 200]
    (tmp_path / "driver").mkdir()
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    options = {"cwd": tmp_path / "driver", "env": environment}
    try:
        with Cluster(tmp_path / "cluster") as cluster:
            killed = [sys.executable, DYING, "written", 1, *arguments, "--master", cluster.url, *SMALL]
            with Process(killed, **options) as driver:
                driver.wait_for_line("ready", 300)
                assert driver.finish(600)[0] == -signal.SIGKILL
            there, held = data_files(shared / "tables" / "silver")
            assert there and not held, "written on executors, and not in the table"

            options["env"] = environment | {"SPARK_HOME": str(cluster.home), "SPARK_LOCAL_IP": "127.0.0.1"}
            submit = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", cluster.url, *SMALL]
            out = finished([*submit, SUBMIT, *arguments, "--json"], **options)
            logs = [path.read_text(errors="replace") for path in (tmp_path / "cluster").rglob("std*")]
    finally:
        server.close()
    check(shared / "tables", made)
    orphans = there - data_files(shared / "tables" / "silver")[1]
    assert orphans == there and all(Path(name).exists() for name in orphans), "ignored, and nothing is deleted"
    status = json.loads(out.splitlines()[-1])
    assert status["lag_bytes"] == 0 and status["rows_silver"] == len(made)
    said = "".join([*logs, out])
    assert logs and TOKEN.decode() not in said and repr(TOKEN) not in said


@pytest.mark.timeout(1500)
def test_local_cluster_executors_killed_in_a_micro_batch_lose_and_double_nothing(tmp_path):
    made = publish_all(tmp_path / "spool" / "north")
    silver = tmp_path / "tables" / "silver"
    arguments = ["--spool", tmp_path / "spool", "--tables", tmp_path / "tables", "--buckets", 3, "--once"]
    arguments += ["--checkpoint", tmp_path / "checkpoint", "--master", "local-cluster[2,1,1024]", "--max-rows", 120]
    # Without waiting, it could commit before this process comes to look.
    killed = tmp_path / "killed"
    with Process([sys.executable, WAITING, "written", killed, *arguments, "--json"], cwd=tmp_path) as driver:
        driver.wait_for_line("ready", 300)

        def mid_batch() -> bool:
            there, held = data_files(silver)
            return bool(there - held)

        eventually(mid_batch, "a bucket has written and not been committed", 600)
        victims = executors_below(driver.pid)
        assert victims
        # All: one may hold nothing that the others still need.
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        killed.touch()
        code, out, err = driver.finish(600)
    assert code == 0, err
    check(tmp_path / "tables", made)
    assert json.loads(out.splitlines()[-1])["rows_silver"] == len(made)
