"""A proof's plan follows from its seed alone, and its verdict from what the run left behind."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import cbor2
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from umqtt_kit.commands import prove
from umqtt_kit.demo.plan import Plan
from umqtt_kit.ground_truth import GroundTruth
from umqtt_kit.prove.adversary import Adversary
from umqtt_kit.prove.brokers import BROKERS, broker_of
from umqtt_kit.prove.check import check
from umqtt_kit.prove.faults import KINDS, Fault, faults_of

from umqtt_cli.errors import KitError

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
    verdict = check(_run(tmp_path, stored))
    assert verdict.count.where_lost == expected and verdict.holds == (not expected)


def test_a_doubled_row_or_a_command_without_an_answer_breaks_it(tmp_path):
    assert not check(_run(tmp_path, [1, 2, 3, 4, 5, 5])).holds
    run = _run(tmp_path / "other", [1, 2, 3, 4, 5])
    assert check(run).holds and not check(run, unanswered=["board-01: no reply to ping 3"]).holds
    assert not check(run, silent=["board-01"]).holds


def test_the_reading_during_which_the_power_was_cut_may_be_stored_and_no_further_one(tmp_path):
    verdict = check(_run(tmp_path / "1", [1, 2, 3, 4, 5, 6]))
    assert verdict.holds and (verdict.count.unnoted, verdict.count.not_made) == (1, 0)
    assert not check(_run(tmp_path / "2", [1, 2, 3, 4, 5, 6, 7])).holds
    assert not check(_run(tmp_path / "3", [1, 2, 3, 4, 5, 7])).holds


def test_a_command_may_vanish_with_a_session_that_another_client_took(tmp_path):
    run = _run(tmp_path, [1, 2, 3, 4, 5], [_ended("same_id", None)])
    verdict = check(run, unanswered=["board-01: no reply to ping 3"])
    assert verdict.holds and verdict.taken == ["board-01: no reply to ping 3"]
    assert not check(run, unanswered=["board-02: no reply to ping 3"]).holds


def test_a_flipped_bit_accounts_for_one_reading_and_no_more(tmp_path):
    assert not check(_run(tmp_path / "0", [1, 2, 4, 5])).holds
    verdict = check(_run(tmp_path / "1", [1, 2, 4, 5], [_ended("flash_bit")]))
    assert verdict.holds and (verdict.count.lost, verdict.flipped, verdict.lost) == (1, 1, 0)
    assert not check(_run(tmp_path / "2", [1, 2, 5], [_ended("flash_bit")])).holds
    assert not check(_run(tmp_path / "3", [1, 2, 4, 5], [_ended("flash_bit", seen=None)])).holds


def test_what_a_broker_of_another_maker_may_lose_is_told_and_not_held_against_the_chain(tmp_path):
    run = _run(tmp_path, [1, 2, 4], [_ended("broker_dies")])
    verdict = check(run, ["board-01: no reply to ping 3"], may_lose={"broker_dies": "it saves late"})
    assert verdict.holds and verdict.of_broker and verdict.count.lost == 2 and verdict.unanswered
    assert not check(run, may_lose={"broker_power": "it does not sync"}).holds


def test_a_command_that_was_carried_out_twice_breaks_it(tmp_path):
    run = _run(tmp_path, [1, 2, 3, 4, 5])
    (run / "commands" / "board-01").write_text("a\nb\n")
    assert check(run).holds
    (run / "commands" / "board-01").write_text("a\nb\na\n")
    assert check(run).repeated == ["a"] and not check(run).holds


@pytest.mark.parametrize(
    ("received", "changed", "holds"),
    [
        ([1, 2, 3, 4, 5], [], True),
        # Sent again after a reconnect: the order of the first copies counts.
        ([1, 2, 3, 2, 3, 4, 5], [], True),
        ([1, 3, 2, 4, 5], [], False),
        ([1, 3, 2, 4, 5], ["settings"], True),
    ],
)
def test_readings_reach_the_collector_in_the_order_in_which_they_were_made(tmp_path, received, changed, holds):
    run = _run(tmp_path, [1, 2, 3, 4, 5], [_ended(kind) for kind in changed])
    encoders = (lambda reading: json.dumps(reading).encode(), cbor2.dumps)
    payloads = [encoders[seq % 2]({"id": "board-01", "boot": "1-a", "seq": seq}) for seq in received]
    count = len(received)
    bronze = {"topic": ["fleet/board-01/telemetry"] * count, "payload": payloads, "collector": ["demo"] * count}
    # Two segments; the rows of a table have no order.
    rows = pa.table({**bronze, "segment": [n // 3 for n in range(count)], "position": [n % 3 for n in range(count)]})
    write_deltalake(str(run / "tables" / "bronze"), rows.take(list(reversed(range(count)))))
    assert (
        check(run, reorders=True).holds
        and check(run).holds == holds
        and check(run).disordered == ([] if holds else ["board-01"])
    )


def test_alerts_are_there_if_they_should_be_and_else_not(tmp_path):
    def wrong(boots, *kinds, events=(), stored=(1, 2, 3, 4, 5)):
        run = _run(tmp_path / str(len(list(tmp_path.iterdir()))), list(stored), events, boots)
        alerts = {"device_id": ["board-01"] * len(kinds), "kind": list(kinds), "text": [""] * len(kinds)}
        table = pa.table({**alerts, "until": pa.array([None] * len(kinds), pa.timestamp("us"))})
        write_deltalake(str(run / "tables" / "gold" / "alerts"), table)
        return check(run).alerts

    assert wrong(1) == wrong(6, "reboot_loop") == []
    assert wrong(6) == ["board-01: no reboot_loop, with 6 boots"]
    assert wrong(6, events=[_ended("board_clock")]) == wrong(6, events=[_ended("collector_clock", target="x")]) == []
    assert wrong(2, "reboot_loop") == ["board-01: reboot_loop, with 2 boots"]
    assert wrong(1, "gap") == ["board-01: gap is open: "] and wrong(1, "gap", stored=(1, 2, 5)) == []


def test_a_broker_is_named_and_what_cannot_be_played_is_refused_with_the_reason():
    assert {broker_of(name).name for name in BROKERS} == set(BROKERS)
    assert broker_of("cloud:aws").cloud == "aws"
    for name, why in (
        ("cloud:azure", "nothing can be collected"),
        ("cloud:x", "not played"),
        ("activemq", "there are"),
    ):
        with pytest.raises(KitError, match=why):
            broker_of(name)
    for broker in BROKERS.values():
        assert {*broker.without, *broker.may_lose} <= KINDS.keys()


def test_the_page_says_what_each_broker_does_not_do():
    page = (Path(__file__).parents[2] / "docs" / "proof.md").read_text()
    for name, broker in BROKERS.items():
        assert f"| `{name}` |" in page
        for text in (*broker.differs, *broker.without.values(), *broker.may_lose.values()):
            assert text in page


def test_a_failing_plan_is_halved_as_long_as_it_fails(monkeypatch):
    tried = []

    def run(plan, _folder):
        numbers = {fault.number for fault in plan.faults}
        tried.append(len(numbers))
        return None, "fails" if {5, 6} <= numbers else ""

    monkeypatch.setattr(prove, "_run", run)
    faults = tuple(Fault(number, number, 0.5, "power", "board-01") for number in range(1, 9))
    left = prove._shrunk(Plan(60.0, 2, 5, faults))
    assert [fault.number for fault in left] == [5, 6] and tried == [4, 4, 2, 1, 1]
    assert prove._chosen(faults, "6,5") == left and prove._numbers(left) == "5,6"
    for wrong in ("9", "one"):
        with pytest.raises(KitError, match="--faults"):
            prove._chosen(faults, wrong)


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
    verdict = check(_run(tmp_path, [1, 2, 3, 4, 5], events))
    assert verdict.seen == {"cut": 1, "deaf": 1, "power": 1}
    assert verdict.missed == {"java_dies": 1, "power_in_flash": 1}
    assert verdict.ended == ["spark: spark ended with exit code 1"]


def _ended(kind, seen="it", target="board-01"):
    return {"event": "end", "fault": 1, "kind": kind, "target": target, "seen": seen}


def _run(folder, stored, events=(), boots=1):
    """Leave behind what a run does: readings 1 to 5 of a board in each boot, rows of the first, and a history."""
    for name in ("ground-truth", "commands"):
        (folder / name).mkdir(parents=True)
    truth = GroundTruth(folder / "ground-truth", "board-01")
    rows = [("1-a", seq) for seq in stored]
    for boot in ("1-a", "2-b", "3-c", "4-d", "5-e", "6-f")[:boots]:
        for seq in range(1, 6):
            truth.note(boot, seq)
        rows += [(boot, seq) for seq in range(1, 6) if boot != "1-a"]
    truth.close()
    if rows:
        columns = {"device_id": ["board-01"] * len(rows), "boot": [row[0] for row in rows]}
        write_deltalake(str(folder / "tables" / "silver"), pa.table({**columns, "seq": [row[1] for row in rows]}))
    (folder / "history.jsonl").write_text("".join(json.dumps({"s": 0.0, **event}) + "\n" for event in events))
    return folder


def test_the_planted_mistakes_of_boards_still_fit_their_source():
    from planted_chain import PLANTED, OnBoard, planted, seed_for

    assert len(PLANTED) >= 25
    for mistake, kinds in PLANTED.values():
        assert seed_for(kinds, 0.75)
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
        adversary = Adversary(faults, None, None, {"board-01": board}, history, None)
        adversary.turn(1.0)
        adversary.turn(10.0)
        adversary.heal(10.0)
    assert board.running and board.starts == adversary.happened == 5
