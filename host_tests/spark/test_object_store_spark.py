"""The whole pipeline with its tables on an object store that disappears for a while, and refuses keys at the end."""

import os

import pytest
from object_store import CLOSES, LOSES_COMMITS, SECRET_KEY, ObjectStore, use
from own_session import run_pipeline, tasks_here
from proof.needs import needs_java
from spark_helpers import fill, record

from spark_ingest.location import located
from spark_ingest.pipeline.run import pipeline as pipeline_module
from spark_ingest.tables import summary
from umqtt_cli import __main__ as umqtt

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))


@needs_java
@pytest.mark.parametrize(
    ("answer", "since"),
    # At the end of a micro-batch it is the tasks of the next one that do not reach the store.
    [(503, "logs committed"), (LOSES_COMMITS, "written")]
    + ([(503, "written"), (CLOSES, "written"), (CLOSES, "logs committed")] if FULL else []),
)
def test_a_store_that_goes_away_in_a_micro_batch_is_waited_for_and_nothing_is_lost_or_stored_twice(
    spark, tmp_path, monkeypatch, capsys, answer, since
):
    """Gold and its state are there too. Planted: a pipeline that ends; one that commits what it has not written."""
    made = [record("d1", "1-a", seq) for seq in range(60)]
    fill(tmp_path / "spool" / "north", [made[:30], made[20:], [b"corrupt"]])
    with ObjectStore() as store:
        use(store, monkeypatch)
        lines: list[str] = []

        def note(line: str) -> None:
            lines.append(line)
            store.answer(None)

        def away(stage: str) -> None:
            if stage == since and not lines:
                store.answer(answer)

        monkeypatch.setattr(pipeline_module, "remark", note)
        tables = "s3://readings/fleet/tables"
        place = ["--spool", tmp_path / "spool", "--checkpoint", tmp_path / "checkpoint"]
        arguments = [*place, "--tables", tables, "--once", "--max-rows", "40"]
        # Workers of the tests' session do not have the store's credentials in their environment.
        with tasks_here():
            assert run_pipeline(spark, *arguments, on_stage=away) == 0
        assert len(lines) == 1 and "waiting for the store, nothing is lost" in lines[0] and tables in lines[0]
        assert summary(located(tables)) == (60, 60, 1)
        assert umqtt.run(["report", "--tables", tables, "--out", str(tmp_path / "report.html")]) == 0
        store.check_keys(True)
        capsys.readouterr()
        assert run_pipeline(spark, *arguments) == 2
        said = capsys.readouterr().err
        assert "the store does not know the access key" in said and SECRET_KEY not in said
