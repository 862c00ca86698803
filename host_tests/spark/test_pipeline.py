"""The whole way with real parts: mosquitto, collector, Spark, Delta; the driver is killed at every critical point."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from own_session import ended_at, run_pipeline
from proof.needs import needs_java
from spark_helpers import (
    SPARK_LIMIT_S,
    Process,
    alive,
    children,
    collector_process,
    eventually_in_spark,
    fill,
    record,
    status,
)
from umqtt_testkit.waiting import eventually

from spark_ingest.errors import SparkEnded
from spark_ingest.lock import FolderLock
from spark_ingest.pipeline import process
from spark_ingest.pipeline.run import pipeline as pipeline_module
from spark_ingest.tables import identities, summary

# Enough corrupt messages that every group of a hundred has some.
DEVICES, READINGS, CORRUPT = 10, 60, 70
FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
# Before the silver commit, after it, and before the checkpoint's.
STAGES_OF_A_MICRO_BATCH = [("written", 1), ("silver committed", 2), ("quarantine committed", 2)]
# Broken off inside this process.
BREAKS = STAGES_OF_A_MICRO_BATCH if FULL else [("quarantine committed", 2), ("silver committed", 2)]


class Chain:
    """A running collector, and a pipeline that is started, killed and started again over its spool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables = folder / "tables"
        self.status_path = folder / "pipeline.json"
        self.arguments = ["--spool", folder / "spool", "--tables", self.tables]
        self.arguments += ["--checkpoint", folder / "checkpoint", "--status", self.status_path]

    def start(self, *more: object, **options: object) -> Process:
        command = [sys.executable, "-m", "spark_ingest.pipeline", *self.arguments, *more]
        return Process(command, cwd=self.folder, **options)

    def killed_at(self, stage: str, times: int, *more: object) -> None:
        """Run until the driver kills itself, and check that its Java process ends too."""
        dying = Path(__file__).with_name("pipeline_dies.py")
        command = [sys.executable, dying, stage, times, *self.arguments, *more]
        with Process(command, cwd=self.folder) as driver:
            driver.wait_for_line("ready", SPARK_LIMIT_S)
            offspring = children(driver.pid)
            code, _, err = driver.finish(SPARK_LIMIT_S)
            assert code == -signal.SIGKILL, err
        eventually(lambda: not any(map(alive, offspring)), "the killed driver's Java process is gone")


# Runs first in each Python process of Spark. Spark gives such a process 10 s to connect; it treats one that connects
# and ends at once as one that was too slow.
SLOW_START = """
import os, socket, sys
if "pyspark.sql.streaming.python_streaming_source_runner" in sys.orig_argv and not os.path.exists({mark!r}):
    open({mark!r}, "x").close()
    if {really}:
        __import__("time").sleep(15)
    else:
        socket.create_connection(("127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"]))).close()
        os._exit(1)
"""


def with_slow_start(folder: Path, mark: Path, *, really: bool = FULL) -> dict[str, str]:
    """Return an environment in which the first of Spark's processes that reads the source starts too slowly."""
    (folder / "sitecustomize.py").write_text(SLOW_START.format(mark=str(mark), really=really))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path}


@pytest.mark.timeout(900)
@needs_java
def test_a_pipeline_that_starts_slowly_reads_all_of_it_and_lives_on_until_sigterm_though_its_java_was_killed(
    mosquitto, publish, tmp_path
):
    """In full sweeps, earlier pipelines are killed three times with SIGKILL; resumption is tested below.

    Planted: a session whose Java is gone and that pyspark returns again; a pipeline that starts a query only once.
    """
    made = [(f"d{device}", "1-a", seq) for seq in range(READINGS) for device in range(DEVICES)]
    messages = [(f"fleet/{one[0]}/telemetry", record(*one)) for one in made]
    messages += random.Random(1).choices(messages, k=50)
    messages += [("fleet/d0/telemetry", b"corrupt %d" % i) for i in range(CORRUPT)]
    seed = random.randrange(1 << 32)
    print("seed", seed)
    random.Random(seed).shuffle(messages)
    chain, state = Chain(tmp_path), tmp_path / "collector.json"
    with collector_process(mosquitto, tmp_path / "spool", "north", "--status", state) as collector:
        collector.wait_for_line("subscribed north")
        for end in range(100, len(messages) + 100, 100):  # a group each, so that several micro-batches form
            publish(messages[end - 100 : end])
            sent = min(end, len(messages))
            eventually(lambda sent=sent: status(state)["messages"] == sent, "what was sent is in the spool")

        for stage, times in STAGES_OF_A_MICRO_BATCH if FULL else []:
            chain.killed_at(stage, times, "--once", "--max-rows", "100")

        with chain.start("--json", env=with_slow_start(tmp_path, tmp_path / "was slow")) as pipeline:
            pipeline.wait_for_line("ready", SPARK_LIMIT_S)
            eventually_in_spark(lambda: status(chain.status_path).get("lag_bytes") == 0, "the backlog is read")
            assert summary(chain.tables) == (len(made), len(made), CORRUPT)
            java = children(pipeline.pid)
            before = status(chain.status_path)["rows_in_silver"]

            def is_read(live: int) -> bool:
                """Return whether that many live readings are in silver; the status is cheaper than the tables."""
                now = status(chain.status_path)
                return now.get("rows_in_silver") == before + live and now["lag_bytes"] == 0

            # Running now: published readings appear, duplicates do not.
            publish([*messages[:20], ("fleet/d0/telemetry", record("d0", "2-b", 0))])
            eventually(lambda: is_read(1), "the live reading is in silver, and all of it is read")
            # Java is killed, as the kernel does when memory is short.
            (killed,) = (pid for pid in java if alive(pid) and Path(f"/proc/{pid}/comm").read_text() == "java\n")
            os.kill(killed, signal.SIGKILL)
            publish([("fleet/d0/telemetry", record("d0", "2-b", 1))])
            eventually_in_spark(lambda: is_read(2), "the pipeline goes on, and all of it is read")
            java += children(pipeline.pid)
            code, out, err = pipeline.terminate(SPARK_LIMIT_S)
            assert code == 0, err
            assert "Java process was killed by signal 9 (SIGKILL)" in err and "Starting Spark again" in err, err
            assert "Traceback" not in err, err
            assert (tmp_path / "was slow").exists()
            assert "took Spark too long to start; trying again" in err
            eventually(lambda: not any(map(alive, java)), "no Java process is left behind")
        assert collector.terminate()[0] == 0

    rows = list(identities(chain.tables))
    assert set(rows) == {*made, ("d0", "2-b", 0), ("d0", "2-b", 1)} and len(rows) == len(made) + 2
    corrupt_again = sum(payload.startswith(b"corrupt") for _, payload in messages[:20])
    assert summary(chain.tables).quarantined == CORRUPT + corrupt_again, "each PUBLISH once: its place is its key"
    last = json.loads(out.splitlines()[-1])
    assert last["state"] == "stopped" and last["lag_bytes"] == 0 and last["last_batch_ms"] > 0
    documented = re.findall(r"^([a-z_]+(?:, [a-z_]+)*)  ", pipeline_module.__doc__ or "", re.M)
    assert {key for row in documented for key in row.split(", ")} == {*last, "updated_ms"}
    assert not [p for p in tmp_path.iterdir() if p.name in ("spark-warehouse", "metastore_db", "artifacts")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("stage", "times"), BREAKS)
def test_broken_off_in_spark_at_a_stage_and_read_on_has_every_reading_once(spark, tmp_path, stage, times):
    """Spark itself replays it. That a kill leaves no process behind is shown in test_prove and test_cluster.

    Planted: an append without the transaction that makes it happen once (proof.mistakes).
    """
    made = [("pump", f"{boot}-a", seq) for seq in range(READINGS) for boot in range(DEVICES)]
    payloads = [record(*one) for one in made]
    payloads += [*payloads[::7], *(b"corrupt %d" % i for i in range(CORRUPT))]
    random.Random(stage).shuffle(payloads)
    fill(tmp_path / "spool" / "north", [payloads[start : start + 50] for start in range(0, len(payloads), 50)])
    chain = Chain(tmp_path)
    limit = [*chain.arguments, "--once", "--max-rows", "200"]
    ended_at(spark, stage, times, *limit)
    assert 0 <= summary(chain.tables).rows < len(made)
    assert run_pipeline(spark, *limit) == 0
    assert summary(chain.tables) == (len(made), len(made), CORRUPT)


class Replaced(BaseException):
    """This process is another program now."""


@pytest.mark.parametrize(("starts", "again"), [(None, True), ("3", True), ("4", False)])
def test_a_pipeline_whose_java_was_killed_starts_itself_again_three_times_at_most(
    usual, capfd, monkeypatch, starts, again
):
    """Planted: a pipeline that never gives up."""
    line = "Spark's Java process was killed by signal 9 (SIGKILL)"
    asked: list[tuple[list[str], str]] = []

    def killed(_self: object, _scratch: Path, _on_ready: object) -> None:
        raise SparkEnded(line)

    def execve(_program: str, command: list[str], environment: dict[str, str]) -> None:
        asked.append((command, environment["_UMQTT_INGEST_STARTS"]))
        raise Replaced

    monkeypatch.setattr(pipeline_module.Pipeline, "_run_session", killed)
    monkeypatch.setattr("os.execve", execve)
    if starts:
        monkeypatch.setenv("_UMQTT_INGEST_STARTS", starts)
    if again:
        with pytest.raises(Replaced):
            run_pipeline(None, *usual)
        assert asked == [([sys.executable, *sys.orig_argv[1:]], str(int(starts or "1") + 1))]
        assert f"{line}. Starting Spark again\n" in capfd.readouterr().err
    else:
        assert run_pipeline(None, *usual) == 1
        assert capfd.readouterr().err.splitlines()[-1] == f"pipeline: {line}"


def test_a_pipeline_that_is_stopped_while_its_killed_java_is_cleared_up_does_not_start_again(usual, monkeypatch):
    """Planted: the request is looked at before gold's last update ends; the new process knows nothing of it."""

    def killed(self: pipeline_module.Pipeline, _scratch: Path, _on_ready: object) -> None:
        try:
            raise SparkEnded("killed")
        finally:
            self.stop()

    monkeypatch.setattr(pipeline_module.Pipeline, "_run_session", killed)
    monkeypatch.setattr("os.execve", lambda *_: pytest.fail("it starts again"))
    assert run_pipeline(None, *usual) == 1


@pytest.fixture
def usual(tmp_path) -> list[object]:
    (tmp_path / "spool").mkdir()
    return ["--spool", tmp_path / "spool", "--tables", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint"]


@pytest.fixture
def run(capfd) -> Callable[..., tuple[int, str, str]]:
    """Provide the pipeline's command line in this process, for ends before Spark: exit code and standard streams."""

    def command_line(*arguments: object) -> tuple[int, str, str]:
        code = run_pipeline(None, *arguments)
        return code, *capfd.readouterr()

    return command_line


SAID = {"missing": "was not found on PATH", "too old": "java is Java 11", "not there": "was not found in JAVA_HOME"}


@pytest.mark.parametrize("java", SAID)
def test_without_a_fitting_java_it_says_what_to_install_and_exits_with_6(tmp_path, usual, run, monkeypatch, java):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk") if java == "not there" else "")
    (tmp_path / "bin").mkdir()
    if java == "too old":
        fake = tmp_path / "bin" / "java"
        fake.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
        fake.chmod(0o755)
    code, out, err = run(*usual)
    assert (code, out) == (6, "") and err.count("\n") == 1
    assert f"Java 17 or newer is needed for Spark and {SAID[java]}" in err
    assert "apt install openjdk-17-jre-headless" in err


@pytest.mark.parametrize("option", ["--tables", "--checkpoint", "--spool", "--status"])
def test_a_folder_that_cannot_be_used_is_one_line_and_exit_code_2(usual, run, option):
    code, out, err = run(*usual, option, "/dev/null/x")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "/dev/null/x" in err


@pytest.mark.parametrize(
    ("first", "second"),
    [("--spool", "--tables"), ("--spool", "--checkpoint"), ("--tables", "--checkpoint")],
)
def test_two_options_for_one_folder_are_refused(tmp_path, usual, run, first, second):
    """Planted: the tables' folder is in use by a pipeline, which is this process itself."""
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to("one")
    code, out, err = run(*usual, first, tmp_path / "one", second, tmp_path / "link")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert f"{first} and {second} are both {tmp_path / 'link'}" in err
    assert list((tmp_path / "one").iterdir()) == []


@needs_java
@pytest.mark.parametrize("conf", ["spark.sql.ansi.enabled=banana", "spark.driver.port=abc"])
def test_a_setting_that_spark_refuses_is_named_in_the_last_line_and_the_exit_code_is_2(usual, conf):
    """Planted: the error of Spark's Java process is taken for a defect of umqtt."""
    with Process([sys.executable, "-m", "umqtt_cli", "ingest", *usual, "--once", "--conf", conf]) as process:
        code, _, err = process.finish(SPARK_LIMIT_S)
    name, _, value = conf.partition("=")
    assert code == 2
    assert "Spark does not start with this --conf or --master: Spark" in err.splitlines()[-1]
    assert f"The value '{value}' in the config \"{name}\" is invalid" in err.splitlines()[-1]


def test_a_setting_without_a_name_is_refused(usual, run):
    for wrong in ("=x", "spark.ui.enabled", " =x"):
        code, _, err = run(*usual, "--conf", wrong)
        assert code == 2 and "must be KEY=VALUE" in err


def test_a_checkpoint_in_use_is_refused_and_the_process_ends_with_2(tmp_path, usual):
    (tmp_path / "checkpoint").mkdir()
    command = [sys.executable, "-m", "spark_ingest.pipeline", *usual]
    with FolderLock(tmp_path / "checkpoint", "--checkpoint", "a pipeline"), Process(command) as process:
        code, out, err = process.finish()
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "is in use by a pipeline (process " in err


def test_nothing_of_pyspark_is_imported_before_java_was_found():
    code = "import sys, spark_ingest.pipeline; sys.exit(any(m.split('.')[0] == 'pyspark' for m in sys.modules))"
    with Process([sys.executable, "-c", code]) as process:
        assert process.finish()[0] == 0


def test_a_java_process_that_does_not_end_with_its_standard_input_is_killed():
    for program, code in (("cat", 0), ("sleep 600", -signal.SIGKILL)):
        with subprocess.Popen(program.split(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as java:
            process.end_java(java, SPARK_LIMIT_S if code == 0 else 0.1)
            assert java.returncode == code


def test_the_next_run_removes_the_scratch_folder_of_one_that_was_killed(tmp_path):
    """Planted: a scratch folder that nothing records."""
    killed = process.scratch_folder(tmp_path)
    left = killed.__enter__()
    (left / "blockmgr-1").mkdir()
    with process.scratch_folder(tmp_path) as scratch:
        assert scratch.is_dir() and not left.exists()
    assert not scratch.exists()
    other = tmp_path / "not of Spark's"
    other.mkdir()
    (tmp_path / "umqtt" / "scratch").write_text(str(other))
    with process.scratch_folder(tmp_path):
        assert other.exists()
    killed.__exit__(None, None, None)


def test_a_failed_query_is_explained_by_the_package_s_own_error_line_where_there_is_one():
    text = (
        "[STREAM_FAILED] Query terminated\nTraceback (most recent call last):\n"
        "spark_ingest.errors.DataLoss: the spool x is gone: put it back\n SQLSTATE: 38000\n\tat org.apache…"
    )
    assert process.own_error(text) == "the spool x is gone: put it back"
    assert process.own_error("java.lang.OutOfMemoryError: Java heap space") is None


def test_tables_that_do_not_exist_yet_have_no_rows(tmp_path):
    assert summary(tmp_path) == (0, 0, 0)
    assert list(identities(tmp_path)) == []
