"""What a board pays for the device library stays within its budgets, and the command says so when it does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from umqtt_kit import sizes
from umqtt_kit.__main__ import run
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command

try:
    micropython_command()
except MicroPythonMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)


@pytest.fixture(scope="module")
def measured() -> sizes.Sizes:
    return sizes.measure()


def test_no_budget_is_passed(measured):
    assert measured.passed() == []


def test_the_smallest_set_is_the_client_over_tcp_without_what_is_loaded_when_needed(measured):
    smallest = {module.module for module in measured.modules if module.smallest}
    assert {"__init__", "client", "session", "outbox", "store", "transport"} <= smallest
    assert not {"qos2", "manual", "policy", "large", "resume"} & smallest


def test_every_module_a_board_may_carry_is_measured(measured):
    files = {file.stem for file in sizes.library_folder().glob("*.py")} - {"_host"}
    assert {module.module for module in measured.modules} == files
    assert all(module.mpy_bytes > 0 and module.heap_bytes >= 0 for module in measured.modules)


def test_a_module_that_grows_passes_the_budget(tmp_path: Path):
    grown = tmp_path / sizes.PACKAGE
    shutil.copytree(sizes.library_folder(), grown, ignore=shutil.ignore_patterns("__pycache__"))
    with (grown / "session.py").open("a") as file:
        for number in range(400):
            file.write(f"\n\ndef grown_{number}(argument_{number}):\n    return 'grown {number}', argument_{number}\n")
    assert [line.split(":")[0] for line in sizes.measure(grown).passed()] == list(sizes.BUDGETS)


def test_the_command_prints_modules_totals_and_budgets_as_json(capsys):
    code = run(["size", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert code == (0 if all(budget["met"] for budget in shown["budgets"].values()) else 1)
    assert set(shown) == {"modules", "totals", "budgets"}
    assert {"module", "mpy_bytes", "heap_bytes", "smallest"} == set(shown["modules"][0])
    assert shown["budgets"]["smallest_mpy_bytes"].keys() == {"limit", "goal", "used", "met"}
