"""The pipeline on a real cluster: deaths do no harm, and the nodes read the spool in a folder that they share.

`make test` kills an executor, UMQTT_FULL_SWEEPS=1 two of them and the driver too.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyspark
import pytest
from deltalake import DeltaTable
from spark_helpers import SPARK_LIMIT_S, Process, alive, children, eventually_in_spark, fill, record
from standalone import SHORT_START, Cluster
from umqtt_testkit.waiting import eventually

import spark_ingest
from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java
from spark_ingest.pipeline.run.spark_home import archive_options, spark_home
from spark_ingest.tables import identities, summary

DEVICES, READINGS, CORRUPT = 10, 30, 5
WAITING = Path(__file__).parents[1] / "pipeline_waits.py"
WAITING_THEN_DYING = Path(__file__).with_name("waits_then_dies.py")
SUBMIT = Path(spark_ingest.__file__).parent / "pipeline" / "submit.py"


def small(folder: Path) -> list[str]:
    """Return options for small Java processes that start fast and leave their files in `folder`."""
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
    """Fill a spool with every reading, a tenth of them twice, and some corrupt messages; return the identities."""
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
    """Return the data files in the folder, and those that belong to the table's newest version."""
    there = {str(path) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}
    held = set(DeltaTable(str(table)).file_uris()) if DeltaTable.is_deltatable(str(table)) else set()
    return there, held


class Submitted:
    """A pipeline on a standalone cluster, over a spool that its nodes share."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self._folder = folder
        self._cluster = cluster
        self.tables = folder / "shared" / "tables"
        self._options = ["--spool", folder / "shared" / "spool", "--buckets", 2]
        self._options += ["--tables", self.tables, "--checkpoint", folder / "shared" / "checkpoint"]
        self._options += ["--once", "--max-rows", 200]
        self._java = small(folder / "java")
        (folder / "driver").mkdir()
        (folder / "java").mkdir()
        self._environment = os.environ | {"PYSPARK_PYTHON": sys.executable}

    def executors_and_driver_killed(self) -> set[str]:
        """Kill all executors after a micro-batch, and the driver before its next commit.

        Returns the files that are not committed.
        """
        killed = self._folder / "killed"
        command = [sys.executable, WAITING_THEN_DYING, killed, *self._options, "--master", self._cluster.url]
        with Process([*command, *self._java], cwd=self._folder / "driver", env=self._environment) as driver:
            driver.wait_for_line("ready", SPARK_LIMIT_S)
            eventually_in_spark(self._written, "executors have written")
            # All of them: a single one might have nothing that the others still need.
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
        """Run the rest by spark-submit; return all it printed (spark-submit joins the two outputs)."""
        with self._spark_submit(SUBMIT) as driver:
            return _ended(driver)

    def submit_and_kill_the_executor(self) -> str:
        """Run everything by spark-submit, and kill the executor after a micro-batch; return what it printed."""
        killed = self._folder / "killed"
        with self._spark_submit(WAITING, "written", killed) as driver:
            eventually_in_spark(self._written, "the executor has written")
            (victim,) = self._cluster.executors()
            os.kill(victim, signal.SIGKILL)
            killed.touch()
            return _ended(driver)

    def _spark_submit(self, *program: object) -> Process:
        home = {"SPARK_HOME": str(self._cluster.home), "SPARK_LOCAL_IP": "127.0.0.1"}
        # One executor is enough here, and saves starts of Java.
        command = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", self._cluster.url, *self._java]
        command += ["--conf", "spark.cores.max=1", *program, *self._options, "--json"]
        return Process(command, cwd=self._folder / "driver", env=self._environment | home)

    def _written(self) -> set[str]:
        there, held = data_files(self.tables / "silver")
        return there - held


def _ended(driver: Process) -> str:
    code, out, err = driver.finish(SPARK_LIMIT_S)
    assert code == 0, out + err
    return out


class Prepared(NamedTuple):
    """A pipeline `submitted` that has still to read the messages with the identities `made`."""

    submitted: Submitted
    made: set[tuple[str, str, int]]

    def check(self, out: str, rows_before: int = 0) -> None:
        """Check that every message is in the tables once, as the last run says.

        out: what the last run printed.
        """
        check(self.submitted.tables, self.made)
        status = json.loads(out.splitlines()[-1])
        assert status["lag_bytes"] == 0 and status["rows_silver"] == len(self.made) - rows_before


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[Prepared]:
    made = publish_all(tmp_path / "shared" / "spool" / "north")
    with Cluster(tmp_path / "cluster") as cluster:
        yield Prepared(Submitted(tmp_path, cluster), made)


@pytest.mark.timeout(900)
def test_on_a_standalone_cluster_a_killed_executor_loses_and_doubles_nothing(prepared: Prepared):
    """Planted: a commit of only a part of what the executors wrote (test_cluster_laws)."""
    prepared.check(prepared.submitted.submit_and_kill_the_executor())


@pytest.mark.skipif(not os.environ.get("UMQTT_FULL_SWEEPS"), reason="a full sweep: set UMQTT_FULL_SWEEPS=1")
@pytest.mark.timeout(900)
def test_killed_executors_and_a_killed_driver_lose_and_double_nothing(prepared: Prepared):
    """Planted: a commit of only a part of what the executors wrote (test_cluster_laws)."""
    submitted = prepared.submitted
    there = submitted.executors_and_driver_killed()
    before = summary(submitted.tables).rows
    out = submitted.submit()
    held = data_files(submitted.tables / "silver")[1]
    assert not there & held and all(Path(name).exists() for name in there), "ignored, and nothing is deleted"
    prepared.check(out, before)


def test_the_program_for_spark_submit_finds_the_package_wherever_it_is_started(tmp_path: Path):
    """Planted: the script's own folder stays first, where neighbouring files shadow other modules."""
    # Only third-party packages: with -S there is no site, so no installation tells where this project's package is.
    others = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("-packages"))}
    command = [sys.executable, "-S", SUBMIT, "--help"]
    ended = subprocess.run(command, cwd=tmp_path, env=others, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "--spool" in ended.stdout, ended.stderr
