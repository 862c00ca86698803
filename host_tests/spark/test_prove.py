"""Kills at any moment, anywhere on the way: nothing acknowledged is lost, twice or elsewhere; mistakes are caught.

Here the driver's Java process, the collector and the broker are killed, once each or more, and one mistake a family is
planted. Every kind of kill and every mistake: prove.py, and UMQTT_FULL_SWEEPS=1 here.
"""

import os
from functools import partial
from pathlib import Path

import pytest
from proof import controls, mistakes, runs, trace
from proof.needs import needs_java, needs_strace

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
KINDS = runs.KINDS if FULL else ("driver java",)
PIPELINE_CONTROLS = [*controls.PIPELINE_CONTROLS] if FULL else ["reads the latest progress"]


@needs_java
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
def test_everything_acknowledged_is_in_the_tables_once_whatever_was_killed(tmp_path: Path, seed: int) -> None:
    """Planted: each of controls.PIPELINE_CONTROLS and controls.COLLECTOR_CONTROLS, below and in prove.py."""
    tally = runs.run(tmp_path, len(KINDS), seed, kinds=KINDS)
    assert tally.failures == [], f"seed {seed}, kept in {tmp_path}"
    assert tally.runs == len(KINDS)
    assert tally.messages > 100


@needs_java
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PIPELINE_CONTROLS)
def test_the_count_catches_a_pipeline_that(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    control = controls.PIPELINE_CONTROLS[name]
    if FULL:
        assert controls.catch(tmp_path, partial(controls.pipeline, control), 1)
        return
    spark = request.getfixturevalue("spark")
    assert "silver: lost" in controls.catch(tmp_path, partial(controls.pipeline_in_session, spark, control), 1)


@pytest.mark.parametrize("name", controls.COLLECTOR_CONTROLS)
def test_the_count_catches_a_collector_that(tmp_path: Path, name: str) -> None:
    control = partial(controls.collector, controls.COLLECTOR_CONTROLS[name])
    assert "spool: lost" in controls.catch(tmp_path, control, 1)


@needs_strace
def test_in_a_trace_every_puback_comes_after_the_fdatasync_of_its_message(tmp_path: Path) -> None:
    """Planted: a PUBACK before the message is written; a collector that does not sync. Both below."""
    law = trace.trace(tmp_path, 1)
    assert law.violations == []
    assert law.acknowledged >= 400


@needs_strace
@pytest.mark.parametrize("name", ["ACKNOWLEDGES_EARLY", "DOES_NOT_SYNC"])
def test_a_trace_shows_a_collector_that(tmp_path: Path, name: str) -> None:
    assert trace.trace(tmp_path, 1, getattr(mistakes, name)).violations
