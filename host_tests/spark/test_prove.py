"""Kills at any moment, anywhere on the way: nothing acknowledged is lost, twice or elsewhere; mistakes are caught."""

from functools import partial
from pathlib import Path

import pytest
from proof import controls, mistakes, runs, trace
from proof.needs import needs_java, needs_strace

RUNS = 5


@needs_java
@pytest.mark.timeout(1200)  # Five starts of Spark: a minute on two quiet cores.
@pytest.mark.parametrize("seed", [1])
def test_everything_acknowledged_is_in_the_tables_once_whatever_was_killed(tmp_path: Path, seed: int) -> None:
    tally = runs.run(tmp_path, RUNS, seed)
    assert tally.failures == [], f"seed {seed}, kept in {tmp_path}"
    assert tally.runs == RUNS
    assert tally.messages > 1000


@needs_java
@pytest.mark.timeout(900)
def test_the_count_catches_a_pipeline_that_reads_the_latest_progress(tmp_path: Path) -> None:
    control = controls.PIPELINE_CONTROLS["reads the latest progress"]
    assert "silver: lost" in controls.catch(tmp_path, partial(controls.pipeline, control), 1)


@pytest.mark.parametrize("name", controls.COLLECTOR_CONTROLS)
def test_the_count_catches_a_collector_that(tmp_path: Path, name: str) -> None:
    control = partial(controls.collector, controls.COLLECTOR_CONTROLS[name])
    assert "spool: lost" in controls.catch(tmp_path, control, 1)


@needs_strace
def test_in_a_trace_every_puback_comes_after_the_fdatasync_of_its_message(tmp_path: Path) -> None:
    law = trace.trace(tmp_path, 1)
    assert law.violations == []
    assert law.acknowledged >= 400


@needs_strace
@pytest.mark.parametrize("name", ["ACKNOWLEDGES_EARLY", "DOES_NOT_SYNC"])
def test_a_trace_shows_a_collector_that(tmp_path: Path, name: str) -> None:
    assert trace.trace(tmp_path, 1, getattr(mistakes, name)).violations
