"""A micro-batch that Spark cannot process is not planned; one that was planned is planned again."""

from pathlib import Path

import pytest
from own_session import run_pipeline
from proof.needs import needs_java
from spark_helpers import fill, record

from spark_ingest.tables import summary

pytestmark = needs_java
BLOCKS = 24


class Panic(BaseException):
    """A panic as delta-rs raises it: not an Exception."""


def test_a_panic_within_a_micro_batch_ends_the_query_with_a_line_and_the_next_start_goes_on(spark, tmp_path, capfd):
    """Planted: a callback that passes on what is not an Exception; py4j then never answers Java, and Spark waits."""
    fill(tmp_path / "spool" / "north", [[record("pump", "1-a", seq)] for seq in range(3)])
    usual = ["--spool", tmp_path / "spool", "--tables", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint"]

    def panic(stage: str) -> None:
        if stage == "silver committed":
            raise Panic("called `Option::unwrap()` on a `None` value")

    assert run_pipeline(spark, *usual, "--once", "--no-gold", on_stage=panic) == 1
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pipeline: ")]
    assert "micro-batch 0 was interrupted by Panic: called `Option::unwrap()`" in line, line
    assert run_pipeline(spark, *usual, "--once", "--no-gold") == 0
    assert summary(tmp_path / "tables") == (3, 3, 0)


def test_a_checkpoint_stuck_at_a_micro_batch_that_is_too_large_gets_on_with_a_smaller_limit(
    spark, tmp_path: Path, capfd, monkeypatch
):
    """Planted: the plan stays in the checkpoint; the error's first line instead of its cause."""

    def no_memory(*_: object) -> None:
        raise MemoryError("malloc of size 2516582400 failed")

    payloads = [record("pump", "1-a", seq, x="y" * 100_000) for seq in range(BLOCKS)]
    fill(tmp_path / "spool" / "north", [[payload] for payload in payloads])
    usual = ["--spool", tmp_path / "spool", "--tables", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint"]
    usual += ["--once", "--no-gold"]
    with monkeypatch.context() as patched:
        patched.setattr("spark_ingest.pipeline.plan.planned_messages", no_memory)
        assert run_pipeline(spark, *usual) == 1
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pipeline: ")]
    assert "malloc of size 2516582400 failed" in line and "give a smaller --max-bytes" in line, line
    assert summary(tmp_path / "tables").rows == 0
    assert run_pipeline(spark, *usual, "--max-bytes", "500K") == 0
    assert "micro-batch 0 was planned with 24" in capfd.readouterr().err
    assert summary(tmp_path / "tables") == (BLOCKS, BLOCKS, 0)


@pytest.mark.parametrize("folder", ["offsets", "commits"])
def test_a_kill_while_spark_writes_its_first_plan_or_commit_stops_nothing(spark, tmp_path: Path, capfd, folder: str):
    """Planted: the files stay, and Spark refuses the checkpoint, which should be empty on batch 0."""
    fill(tmp_path / "spool" / "north", [[record("pump", "1-a", seq)] for seq in range(3)])
    usual = ["--spool", tmp_path / "spool", "--tables", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint"]
    usual += ["--once", "--no-gold"]
    if folder == "commits":

        def panic(stage: str) -> None:
            if stage == "silver committed":
                raise Panic("killed")

        assert run_pipeline(spark, *usual, on_stage=panic) == 1
    (tmp_path / "checkpoint" / folder).mkdir(parents=True, exist_ok=True)
    for name in (".0.e59e53dd.tmp", "..0.e59e53dd.tmp.crc", ".0.crc"):
        (tmp_path / "checkpoint" / folder / name).touch()
    assert run_pipeline(spark, *usual) == 0, capfd.readouterr().err
    assert summary(tmp_path / "tables") == (3, 3, 0)
