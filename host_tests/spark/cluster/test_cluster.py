"""The pipeline on real clusters: what dies is made up for, and no node but the collector's sees the spool."""

import json
import os
import random
import signal
import sys
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable
from spark_helpers import SPARK_LIMIT_S, Process, alive, children, eventually_in_spark, fill, record
from standalone import SHORT_START, Cluster, executors_below
from umqtt_kit.certs import Authority
from umqtt_testkit.waiting import eventually

import spark_ingest
from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java
from spark_ingest.pipeline.spark_home import archive_options, spark_home
from spark_ingest.spool.access import LocalSpools
from spark_ingest.spool.server import SpoolServer, server_tls
from spark_ingest.tables import identities, summary

DEVICES, READINGS, CORRUPT = 10, 30, 5
TOKEN = "0123456789abcdef0123456789abcdef"
WAITING = Path(__file__).parents[1] / "pipeline_waits.py"
WAITING_THEN_DYING = Path(__file__).with_name("waits_then_dies.py")
SUBMIT = Path(spark_ingest.__file__).parent / "pipeline" / "submit.py"


def small(folder: Path) -> list[str]:
    """Options for small Java processes that start fast and leave their files in `folder`."""
    java = f"-Djava.io.tmpdir={folder} {SHORT_START} {archive_options(spark_home(folder))}"
    return [
        "--conf", "spark.executor.memory=512m",
        "--conf", "spark.executor.cores=1",
        "--conf", f"spark.executor.extraJavaOptions={java}",
        "--conf", f"spark.driver.defaultJavaOptions={java}",
    ]  # fmt: skip


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


def data_files(table: Path) -> tuple[set[str], set[str]]:
    """Data files in the folder, and those that the table's newest version holds."""
    there = {str(path) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}
    held = set(DeltaTable(str(table)).file_uris()) if DeltaTable.is_deltatable(str(table)) else set()
    return there, held


class Submitted:
    """A pipeline on a standalone cluster, over a spool that its nodes do not see and read over HTTPS."""

    def __init__(self, folder: Path, cluster: Cluster, url: str) -> None:
        self._folder = folder
        self._cluster = cluster
        self.tables = folder / "shared" / "tables"
        self._options = ["--server", url, "--token-file", folder / "collector" / "token", "--buckets", 2]
        self._options += ["--server-ca", folder / "collector" / "ca.pem"]
        self._options += ["--tables", self.tables, "--checkpoint", folder / "shared" / "checkpoint"]
        self._options += ["--once", "--max-rows", 200]
        self._java = small(folder / "java")
        (folder / "driver").mkdir()
        (folder / "java").mkdir()
        self._environment = os.environ | {"PYSPARK_PYTHON": sys.executable}

    def executors_and_driver_killed(self) -> set[str]:
        """Kill all executors after a micro-batch, and the driver before its next commit; the files not committed."""
        killed = self._folder / "killed"
        command = [sys.executable, WAITING_THEN_DYING, killed, *self._options, "--master", self._cluster.url]
        with Process([*command, *self._java], cwd=self._folder / "driver", env=self._environment) as driver:
            driver.wait_for_line("ready", SPARK_LIMIT_S)
            eventually_in_spark(self._written, "executors have written")
            # All: one may hold nothing that the others still need.
            victims = self._cluster.executors()
            assert len(victims) == 2, "one a core"
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            offspring = children(driver.pid)
            killed.touch()
            code, out, err = driver.finish(SPARK_LIMIT_S)
        assert code == -signal.SIGKILL, out + err
        eventually(lambda: not any(map(alive, offspring)), "the killed driver's Java process is gone")
        written = self._written()
        assert written, "written on executors, and not in the table"
        assert summary(self.tables).rows, "and the micro-batch before it is"
        return written

    def submit(self) -> str:
        """Run the rest by spark-submit; what it printed, all of it: spark-submit joins the two outputs."""
        home = {"SPARK_HOME": str(self._cluster.home), "SPARK_LOCAL_IP": "127.0.0.1"}
        # One executor is enough here, and there are fewer starts of Java.
        command = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", self._cluster.url, *self._java]
        command += ["--conf", "spark.cores.max=1", SUBMIT, *self._options, "--json"]
        with Process(command, cwd=self._folder / "driver", env=self._environment | home) as driver:
            code, out, err = driver.finish(SPARK_LIMIT_S)
        assert code == 0, out + err
        return out

    def _written(self) -> set[str]:
        there, held = data_files(self.tables / "silver")
        return there - held


@pytest.mark.timeout(900)
def test_a_standalone_cluster_reads_by_https_and_killed_executors_and_a_killed_driver_lose_and_double_nothing(tmp_path):
    """Planted: a commit of a part of what the executors wrote (test_cluster_laws)."""
    hidden = tmp_path / "collector" / "spool"
    made = publish_all(hidden / "north")
    token_file = tmp_path / "collector" / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    authority = Authority(tmp_path / "collector")
    authority.create("collector")
    authority.issue_broker(["127.0.0.1"])
    tls = server_tls(authority.folder / "broker" / "cert.pem", authority.folder / "broker" / "key.pem")
    server = SpoolServer("127.0.0.1", 0, LocalSpools(hidden), TOKEN, tls=tls)
    try:
        with Cluster(tmp_path / "cluster") as cluster:
            submitted = Submitted(tmp_path, cluster, server.url)
            there = submitted.executors_and_driver_killed()
            before = summary(submitted.tables).rows
            out = submitted.submit()
            logs = [path.read_text(errors="replace") for path in (tmp_path / "cluster").rglob("std*")]
    finally:
        server.close()
    check(submitted.tables, made)
    held = data_files(submitted.tables / "silver")[1]
    assert not there & held and all(Path(name).exists() for name in there), "ignored, and nothing is deleted"
    status = json.loads(out.splitlines()[-1])
    assert status["lag_bytes"] == 0 and status["rows_silver"] == len(made) - before
    said = "".join([*logs, out])
    assert logs and TOKEN not in said


@pytest.mark.skipif(not os.environ.get("UMQTT_FULL_SWEEPS"), reason="a full sweep: set UMQTT_FULL_SWEEPS=1")
@pytest.mark.timeout(900)
def test_local_cluster_executors_killed_in_a_micro_batch_lose_and_double_nothing(tmp_path):
    made = publish_all(tmp_path / "spool" / "north")
    silver = tmp_path / "tables" / "silver"
    arguments = ["--spool", tmp_path / "spool", "--tables", tmp_path / "tables", "--buckets", 3, "--once"]
    arguments += ["--checkpoint", tmp_path / "checkpoint", "--master", "local-cluster[2,1,1024]", "--max-rows", 120]
    # Without waiting, it could commit before this process comes to look.
    killed = tmp_path / "killed"
    with Process([sys.executable, WAITING, "written", killed, *arguments, "--json"], cwd=tmp_path) as driver:
        driver.wait_for_line("ready", SPARK_LIMIT_S)

        def mid_batch() -> bool:
            there, held = data_files(silver)
            return bool(there - held)

        eventually_in_spark(mid_batch, "a bucket has written and not been committed")
        victims = executors_below(driver.pid)
        assert victims
        # All: one may hold nothing that the others still need.
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        killed.touch()
        code, out, err = driver.finish(SPARK_LIMIT_S)
    assert code == 0, err
    check(tmp_path / "tables", made)
    assert json.loads(out.splitlines()[-1])["rows_silver"] == len(made)
