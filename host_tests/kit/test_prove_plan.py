"""A proof's plan follows from its seed alone, and its verdict from what the run left behind."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from umqtt_kit.ground_truth import GroundTruth
from umqtt_kit.prove.adversary import Adversary
from umqtt_kit.prove.check import check
from umqtt_kit.prove.faults import KINDS, Fault, faults_of

pytestmark = pytest.mark.tier(0)

_BOARDS = ["board-01", "board-02"]


def test_a_seed_gives_one_plan_and_another_board_changes_nothing_for_the_rest():
    for seed in range(50):
        faults = faults_of(seed, 60.0, _BOARDS)
        assert faults == faults_of(seed, 60.0, _BOARDS)
        more = [fault for fault in faults_of(seed, 60.0, [*_BOARDS, "board-03"]) if fault.target != "board-03"]
        assert [(f.at_s, f.for_s, f.kind, f.target) for f in more] == [
            (f.at_s, f.for_s, f.kind, f.target) for f in faults
        ]
        assert [fault.number for fault in faults] == list(range(1, len(faults) + 1))


def test_faults_of_one_target_follow_one_another_and_end_in_time_and_every_kind_is_drawn():
    drawn, together = set(), 0
    for seed in range(200):
        ends: defaultdict[str, float] = defaultdict(float)
        last_end = 0.0
        for fault in faults_of(seed, 60.0, _BOARDS):
            assert ends[fault.target] <= fault.at_s <= fault.at_s + fault.for_s <= 60.0
            together += fault.at_s < last_end
            ends[fault.target] = fault.at_s + fault.for_s
            last_end = max(last_end, ends[fault.target])
            drawn.add(fault.kind)
    assert drawn == set(KINDS)
    assert together > 200


def test_kinds_that_cannot_be_had_are_left_out():
    without = {name for name, kind in KINDS.items() if kind.target == "broker"}
    assert not {fault.kind for fault in faults_of(3, 60.0, _BOARDS, without)} & without


def test_the_page_lists_every_fault():
    page = (Path(__file__).parents[2] / "docs" / "proof.md").read_text()
    for name, kind in KINDS.items():
        length = f"{kind.seconds[0]:g} to {kind.seconds[1]:g} s" if kind.seconds[1] else "at once"
        assert f"| `{name}` | {kind.target} | {length} | {kind.what} |\n" in page


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ([1, 2, 3, 4, 5], {}),
        ([2, 3, 4, 5], {"at the beginning": 1}),
        ([1, 2, 5], {"in the middle": 2}),
        ([1, 2, 3], {"at the end": 2}),
        ([], {"of a whole boot": 5}),
    ],
)
def test_the_verdict_says_where_readings_were_lost(tmp_path, stored, expected):
    _run(tmp_path, stored, [])
    verdict = check(tmp_path / "truth", tmp_path / "tables", tmp_path / "history")
    assert verdict.count.where_lost == expected and verdict.holds == (not expected)


def test_a_doubled_row_or_a_command_without_an_answer_breaks_it(tmp_path):
    _run(tmp_path, [1, 2, 3, 4, 5, 5], [])
    paths = (tmp_path / "truth", tmp_path / "tables", tmp_path / "history")
    assert not check(*paths).holds
    _run(tmp_path / "other", [1, 2, 3, 4, 5], [])
    paths = tuple(tmp_path / "other" / path.name for path in paths)
    assert check(*paths).holds and not check(*paths, unanswered=["board-01: no reply to ping 3"]).holds


def test_a_command_may_vanish_with_a_session_that_another_client_took(tmp_path):
    _run(
        tmp_path, [1, 2, 3, 4, 5], [{"event": "end", "fault": 1, "kind": "same_id", "target": "board-01", "seen": None}]
    )
    paths = (tmp_path / "truth", tmp_path / "tables", tmp_path / "history")
    verdict = check(*paths, unanswered=["board-01: no reply to ping 3"])
    assert verdict.holds and verdict.taken == ["board-01: no reply to ping 3"]
    assert not check(*paths, unanswered=["board-02: no reply to ping 3"]).holds


def test_a_fault_counts_if_something_was_seen_of_it_and_once(tmp_path):
    both = {"fault": 1, "kind": "power", "target": "board-01"}
    at_end = {"fault": 2, "kind": "deaf", "target": "network"}
    never = {"fault": 3, "kind": "power_in_flash", "target": "board-01"}
    at_once = {"fault": 4, "kind": "cut", "target": "network"}
    not_at_once = {"fault": 5, "kind": "java_dies", "target": "spark"}
    events = [
        {"event": "begin", **both, "seen": "process 7"},
        {"event": "end", **both, "seen": "process 7"},
        {"event": "begin", **at_end, "seen": None},
        {"event": "end", **at_end, "seen": "{}"},
        {"event": "begin", **never, "seen": None},
        {"event": "end", **never, "seen": None},
        {"event": "end", **at_once, "seen": "3 links"},
        {"event": "end", **not_at_once, "seen": None},
        {"event": "ended", "part": "spark", "why": "spark ended with exit code 1"},
    ]
    _run(tmp_path, [1, 2, 3, 4, 5], events)
    verdict = check(tmp_path / "truth", tmp_path / "tables", tmp_path / "history")
    assert verdict.seen == {"cut": 1, "deaf": 1, "power": 1}
    assert verdict.missed == {"java_dies": 1, "power_in_flash": 1}
    assert verdict.ended == ["spark: spark ended with exit code 1"]


def _run(folder, stored, events):
    """Leave behind what a run does: readings 1 to 5 of a board, rows of it, and a history."""
    (folder / "truth").mkdir(parents=True)
    truth = GroundTruth(folder / "truth", "board-01")
    for seq in range(1, 6):
        truth.note("1-a", seq)
    truth.close()
    rows = {"device_id": ["board-01"] * len(stored), "boot": ["1-a"] * len(stored), "seq": stored}
    if stored:
        write_deltalake(str(folder / "tables" / "silver"), pa.table(rows))
    (folder / "history").write_text("".join(json.dumps({"s": 0.0, **event}) + "\n" for event in events))


def test_the_planted_mistakes_of_boards_still_fit_their_source():
    from planted_chain import PLANTED, OnBoard, planted

    for mistake in PLANTED.values():
        if isinstance(mistake, OnBoard):
            with planted(mistake):
                pass


def test_late_or_not_the_faults_of_a_target_do_not_overlap(tmp_path):
    class Board:
        running, pid, starts = True, 1, 0

        def kill(self):
            self.running = False

        def start(self):
            assert not self.running
            self.running, self.starts = True, self.starts + 1

    board = Board()
    faults = [Fault(number, number, 0.5, "power", "board-01") for number in range(1, 6)]
    with (tmp_path / "history").open("w") as history:
        adversary = Adversary(faults, None, None, {"board-01": board}, history)
        adversary.turn(1.0)
        adversary.turn(10.0)
        adversary.heal(10.0)
    assert board.running and board.starts == adversary.happened == 5
