"""Kills at any moment, anywhere on the way: nothing acknowledged is lost, doubled or misplaced; mistakes are caught.

`make test` kills the collector and the broker, and plants one mistake of each kind. UMQTT_FULL_SWEEPS=1 and prove.py
kill every part of Spark too, and plant every mistake.
"""

import os
from functools import partial
from pathlib import Path

import pytest
from own_session import run_pipeline
from proof import controls, mistakes, runs, trace
from proof.chain import Chain
from proof.needs import needs_java, needs_strace

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
PIPELINE_CONTROLS = [*controls.PIPELINE_CONTROLS] if FULL else ["reads the latest progress"]
COLLECTOR_CONTROLS = [*controls.COLLECTOR_CONTROLS] if FULL else ["acknowledges before it is durable"]
TRACE_CONTROLS = ["DOES_NOT_SYNC", "ACKNOWLEDGES_EARLY"] if FULL else ["DOES_NOT_SYNC"]


@needs_java
def test_everything_acknowledged_is_in_the_tables_once_though_collector_and_broker_were_killed(
    spark, tmp_path: Path
) -> None:
    """Planted: each of controls.COLLECTOR_CONTROLS, below and in prove.py."""

    def read(chain: Chain) -> None:
        assert run_pipeline(spark, *chain.pipeline_options(), "--once") == 0

    assert controls.collector("", tmp_path, 1, kills=("collector", "broker", "collector"), read=read) == []


@needs_java
@pytest.mark.skipif(not FULL, reason="a full sweep: set UMQTT_FULL_SWEEPS=1")
@pytest.mark.timeout(900)
def test_everything_acknowledged_is_in_the_tables_once_whatever_was_killed(tmp_path: Path) -> None:
    """Planted: each of controls.PIPELINE_CONTROLS and controls.COLLECTOR_CONTROLS, below and in prove.py."""
    tally = runs.run(tmp_path, len(runs.KINDS), 1)
    assert tally.failures == [], f"kept in {tmp_path}"
    assert tally.runs == len(runs.KINDS)
    assert tally.messages > 100


@needs_java
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PIPELINE_CONTROLS)
@pytest.mark.tier(3)  # a control
def test_the_count_catches_a_pipeline_that(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    control = controls.PIPELINE_CONTROLS[name]
    if FULL:
        assert controls.catch(tmp_path, partial(controls.pipeline, control), 1)
        return
    spark = request.getfixturevalue("spark")
    assert "silver: lost" in controls.catch(tmp_path, partial(controls.pipeline_in_session, spark, control), 1)


@pytest.mark.parametrize("name", COLLECTOR_CONTROLS)
@pytest.mark.tier(3)  # a control
def test_the_count_catches_a_collector_that(tmp_path: Path, name: str) -> None:
    control = partial(controls.collector, controls.COLLECTOR_CONTROLS[name])
    assert "spool: lost" in controls.catch(tmp_path, control, 1)


@needs_strace
def test_in_a_trace_every_puback_comes_after_the_fdatasync_of_its_message(tmp_path: Path) -> None:
    """Planted: a PUBACK before the message is written; a collector that does not sync. Both are below."""
    law = trace.trace(tmp_path, 1)
    assert law.violations == []
    assert law.acknowledged >= 400


@needs_strace
@pytest.mark.parametrize("name", TRACE_CONTROLS)
@pytest.mark.tier(3)  # a control
def test_a_trace_shows_a_collector_that(tmp_path: Path, name: str) -> None:
    assert trace.trace(tmp_path, 1, getattr(mistakes, name)).violations
