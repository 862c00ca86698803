"""`make prove-flash` reports what it found, also by its exit code."""

import json
from pathlib import Path
from typing import Any

import flash_kills
import flash_plan
import flash_wear
import prove
import pytest
from flash_kills import Count
from flash_plan import Tally
from flash_workers import Job, Result


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the parts of the proof find; a test plants a fault in it."""
    found: dict[str, Any] = {
        "tally": Tally(cuts=20_000),
        "kills": Count(10, 100, 100, 0, 0, 0, 3),
        "caught": {"SkipsFlush on esp32": "lost"},
        "over": [],
        "slow": [],
    }
    monkeypatch.setattr(flash_plan, "sweep", lambda cuts, seed, progress: found["tally"])
    monkeypatch.setattr(flash_plan, "catch_controls", lambda seed: found["caught"])
    monkeypatch.setattr(flash_kills, "count_kills", lambda folder, kills, seed: found["kills"])
    monkeypatch.setattr(flash_wear, "measure", list)
    monkeypatch.setattr(flash_wear, "over_budget", lambda cases: found["over"])
    monkeypatch.setattr(flash_wear, "too_slow", lambda cases: found["slow"])
    return found


def run(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = prove.main(["--quick", "--json", "--seed", "5"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return code, json.loads(lines[0])


def test_the_result_is_one_object(found: dict[str, Any], capsys: pytest.CaptureFixture[str]):
    """Planted: caught mistakes are left out of the count."""
    code, result = run(capsys)
    assert code == 0
    assert result.pop("seconds") >= 0
    assert result == {
        "cuts": 20_000, "kills": 10, "lost": 0, "duplicated": 0, "out_of_order": 0, "other": 0, "controls": 1,
        "controls_caught": 1, "wear_over_budget": [], "seed": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("law", "name"),
    [
        ("AssertionError: lost b'x'", "lost"),
        ("AssertionError: command b'x' lost", "lost"),
        ("AssertionError: 2 times b'x' at QoS 2", "duplicated"),
        ("AssertionError: b'x' again after its acknowledgement", "duplicated"),
        ("AssertionError: out of order: [b'x']", "out_of_order"),
        ("OSError: 5", "other"),
    ],
)
def test_a_broken_law_is_counted_and_fails(
    found: dict[str, Any], capsys: pytest.CaptureFixture[str], law: str, name: str
):
    """Planted: the text about the ledger decides which law counts as broken."""
    found["tally"].add(Result(Job("rp2", "reboots"), 0, f"cut at operation 3 of 9: {law}; ledger lost again"))
    code, result = run(capsys)
    assert code == 1
    assert {each: result[each] for each in ("lost", "duplicated", "out_of_order", "other")} == {
        **dict.fromkeys(("lost", "duplicated", "out_of_order", "other"), 0),
        name: 1,
    }


@pytest.mark.parametrize("fault", ["kills", "caught", "over", "slow"])
def test_every_other_fault_fails_too(found: dict[str, Any], capsys: pytest.CaptureFixture[str], fault: str):
    """Planted: a slow start does not fail the proof."""
    found[fault] = {
        "kills": Count(10, 100, 99, 1, 0, 0, 0),
        "caught": {"SkipsFlush on esp32": ""},
        "over": ["esp32: 61 erases"],
        "slow": ["restore on rp2: 300 ms"],
    }[fault]
    assert run(capsys)[0] == 1


def test_without_micropython_the_exit_code_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Planted: a proof that cannot run counts as passed."""
    monkeypatch.setenv("UMQTT_MICROPYTHON", str(tmp_path / "nothing"))
    assert prove.main(["--quick", "--json"]) == 6
