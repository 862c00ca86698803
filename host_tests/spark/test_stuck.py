"""A micro-batch that failed is repeated and ends well, whatever it was that failed and however large it is."""

from pathlib import Path

import pyarrow as pa
import pytest
from own_session import run_pipeline, tasks_here
from proof.needs import needs_java
from spark_helpers import fill, record

from spark_ingest.pipeline.write import tasks
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


def test_a_planned_micro_batch_that_is_far_larger_than_max_bytes_is_worked_off(spark, tmp_path: Path, capfd):
    """Its plan stays in Spark's checkpoint. Planted: a bucket's readings in one part, whatever their number."""
    payloads = [record(f"pump-{seq % 7}", "1-a", seq, x="y" * 200_000) for seq in range(BLOCKS)]
    fill(tmp_path / "spool" / "north", [[payload] for payload in payloads])
    usual = ["--spool", tmp_path / "spool", "--tables", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint"]
    usual += ["--once", "--no-gold", "--max-bytes", "1G"]

    def panic(stage: str) -> None:
        raise Panic("malloc of size 2516582400 failed")

    assert run_pipeline(spark, *usual, on_stage=panic) == 1
    assert "malloc of size 2516582400 failed" in capfd.readouterr().err
    assert summary(tmp_path / "tables").rows == 0
    with pytest.MonkeyPatch.context() as patch, tasks_here():
        patch.setattr(tasks, "_PIECE_BYTES", 500_000)
        pieces: list[int] = []
        part = tasks.part

        def counted(messages: pa.Table, *more: object):
            pieces.append(messages.nbytes)
            return part(messages, *more)

        patch.setattr(tasks, "part", counted)
        assert run_pipeline(spark, *usual, "--max-bytes", "500K") == 0
    assert len(pieces) > 3 and max(pieces) < 3_000_000, "decoded piece by piece"
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
