"""A long update of gold holds nothing up: the pipeline tells its status meanwhile, and ends in time."""

import threading

import pytest
from gold_fleet import QUERY, assert_law, fleet, table_of, telemetry
from spark_helpers import RECEIVED_MS

from spark_ingest.gold import Gold
from spark_ingest.gold.database import Database
from spark_ingest.pipeline.run.config import PipelineConfig
from spark_ingest.pipeline.run.upkeep import Upkeep
from spark_ingest.pipeline.write.batch import BatchWriter

LONG_S = 60.0


@pytest.fixture
def upkeep(tmp_path):
    made = Upkeep(PipelineConfig(None, tmp_path, tmp_path, gold_interval_s=0), on_stage=lambda _stage: None)
    yield made
    made.close()


def test_the_pipeline_tells_its_status_during_an_update_of_gold(upkeep, monkeypatch):
    """Planted: the main loop updates gold itself."""
    began, ends = threading.Event(), threading.Event()

    def long(*_arguments: object, **_options: object) -> bool:
        began.set()
        assert ends.wait(LONG_S)
        return False

    monkeypatch.setattr(Gold, "update", long)
    upkeep.step(0)
    assert began.wait(LONG_S)
    for _ in range(3):
        upkeep.step(0)
        assert upkeep.figures()["gold_failing"] is False
    ends.set()
    upkeep.wait()


def test_an_update_that_goes_on_is_ended_with_the_pipeline_and_the_next_start_goes_on(tmp_path, upkeep, monkeypatch):
    """Planted: the process ends only when the update has; or in the middle of it, without the engine's consent."""
    writer = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None)
    for number, batch in enumerate(fleet(2, 2)[:3]):
        writer.write(batch, number, QUERY)
    began = threading.Event()
    run = Database.run

    def endless(db: Database, script: str, **variables: int) -> None:
        if script == "write.sql":
            began.set()
            billion = "range(1000000000)"
            db.connection.execute(f"SELECT sum(a.range * b.range % 7) FROM {billion} a, {billion} b")
        run(db, script, **variables)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "run", endless)
        upkeep.step(0)
        assert began.wait(LONG_S)
        upkeep.close()
    at = RECEIVED_MS + 1
    writer.write(table_of([(*telemetry("new", "1-x", 0, at, 5), at)], 10_000), 10, QUERY)
    Gold(tmp_path).update()
    assert_law(tmp_path, 2)
