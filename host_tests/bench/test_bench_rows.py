"""Figures are compared with their goals the right way, and the three benches together make one page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bench
import pytest
from bench_rows import LEAST_OF_OURS, LEAST_RATIO, MOST_OF_OURS, MOST_RATIO, Goal, Row, print_rows


@pytest.mark.tier(0)
@pytest.mark.parametrize(
    ("ours", "peer", "goal", "met"),
    [
        (200.0, 100.0, Goal(2.0, LEAST_RATIO), True),
        (199.0, 100.0, Goal(2.0, LEAST_RATIO), False),
        (50.0, 100.0, Goal(0.5, MOST_RATIO), True),
        (51.0, 100.0, Goal(0.5, MOST_RATIO), False),
        (80.0, None, Goal(80, MOST_OF_OURS), True),
        (81.0, None, Goal(80, MOST_OF_OURS), False),
        (15000.0, None, Goal(15000, LEAST_OF_OURS), True),
        (14999.0, None, Goal(15000, LEAST_OF_OURS), False),
        (0.0, None, Goal(0, MOST_OF_OURS), True),
        (200.0, None, Goal(2.0, LEAST_RATIO), None),
        (None, 100.0, Goal(2.0, LEAST_RATIO), None),
        (None, None, Goal(80, MOST_OF_OURS), None),
        (200.0, 100.0, None, None),
    ],
)
def test_a_goal_is_met_by_figures_and_never_by_their_absence(ours, peer, goal, met):
    assert Row("a case", ours, peer, "a peer", goal).met is met


@pytest.mark.tier(0)
def test_a_row_is_a_line_of_the_table_and_of_json(capsys):
    row = Row("rate", 1500.0, 1000.0, "paho", Goal(2, LEAST_RATIO), "messages/s")
    assert row.as_dict() == {
        "case": "rate", "ours": 1500, "unit": "messages/s", "peer": 1000, "peer_name": "paho", "ratio": 1.5,
        "goal": 2, "goal_is": "least ratio", "met": False,
    }  # fmt: skip
    print_rows([row, Row("alone", None)], as_json=False)
    said = capsys.readouterr().out.splitlines()
    assert said[1].split() == ["rate", "1,500", "messages/s", "paho", "1,000", "1.50", ">=", "2", "x", "NOT", "MET"]
    assert said[2].split() == ["alone", "-", "-", "-", "-"]


@pytest.mark.tier(0)
def test_the_page_has_every_figure_and_says_what_was_not_reached():
    """Planted: a bench that ended early passes in silence; a goal without a figure counts as reached."""
    rows = [
        Row("rate", 1500.0, 1000.0, "paho", Goal(2, LEAST_RATIO), "messages/s").as_dict(),
        Row("rate", 1500.0, 3000.0, "robust", None, "messages/s").as_dict(),
        Row("heap", 90.0, None, "", Goal(96, MOST_OF_OURS), "bytes").as_dict(),
        Row("gone", 90.0, None, "aedes", Goal(2, MOST_RATIO)).as_dict(),
    ]
    said = bench.page({"Client": rows, "Broker": []}, ["Broker: the bench ended with exit code 6"], "Today.")
    assert (
        "| rate | 1,500 messages/s | paho 1,000 (1.50 x); robust 3,000 (0.50 x) | >= 2 x paho **not reached** |" in said
    )
    assert "| heap | 90 bytes |  | <= 96 reached |" in said
    assert "| gone | 90 |  | <= 2 x aedes not measured |" in said
    assert said.endswith("## Not reached\n\n- Broker: the bench ended with exit code 6\n- Client: rate\n")
    assert bench.page({}, [], "Today.").endswith("## Not reached\n\nNothing.\n")


@pytest.mark.tier(1)
def test_a_bench_that_cannot_run_is_said_and_the_others_go_on(tmp_path: Path):
    """Planted: the first exit code ends the run."""
    ended = subprocess.run(
        [sys.executable, Path(__file__).with_name("bench.py"), "--quick", "--peers", tmp_path / "none"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    for name in bench.BENCHES:
        assert f"- {name}: the bench ended with exit code 2" in ended.stdout
    assert "revision " in ended.stdout and "PySpark 4" in ended.stdout
