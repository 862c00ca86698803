"""What a board pays for the device library stays within its budgets, and the command reports it when it does not."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from umqtt_kit import sizes
from umqtt_kit.bundle import Bundle, library_folder
from umqtt_kit.deploy.build import build
from umqtt_kit.deploy.filesets import HOST_MODULES, OPTIONAL
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import run

try:
    micropython_command()
except MicroPythonMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)


_DEVICE = Path(__file__).resolve().parent / "device"


@pytest.fixture(scope="module")
def measured() -> sizes.Sizes:
    return sizes.measure()


def test_no_budget_is_passed(measured):
    assert measured.passed() == []


def test_every_module_a_board_may_carry_is_measured(measured):
    files = {file.stem for file in library_folder().glob("*.py")} - HOST_MODULES
    bundle = Bundle(library_folder())
    assert {module.module for module in measured.modules} | set(bundle.joined) == files
    assert all(module.mpy_bytes > 0 and module.heap_bytes > 0 for module in measured.modules)


def test_the_heap_does_not_depend_on_where_it_is_measured(tmp_path: Path):
    """Planted: modules are imported by the path of the temporary folder, which MicroPython keeps."""
    found = set()
    for name in ("f", "f" * 80):
        Bundle(library_folder()).compile(tmp_path / name)
        found.add(sizes.heap_after_import(tmp_path / name, [sizes.PACKAGE, f"{sizes.PACKAGE}.errors"]))
    assert len(found) == 1


def test_code_that_stays_in_rom_takes_less_heap(measured):
    assert 0 < measured.totals["smallest_rom_heap_bytes"] < measured.totals["smallest_heap_bytes"]


def test_the_smallest_set_is_all_that_qos_0_and_1_both_ways_and_a_new_link_need(tmp_path: Path):
    Bundle(library_folder()).compile(tmp_path)
    for optional in (tmp_path / sizes.PACKAGE).glob("*.mpy"):
        if optional.stem != "__init__":
            optional.unlink()
    ended = subprocess.run(
        [*micropython_command(), str(_DEVICE / "smallest.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )
    assert ended.stdout, ended.stderr
    assert json.loads(ended.stdout) == {"lost": 2, "received": 4, "modules": ["umqtt_robust"]}


def test_a_module_that_grows_passes_the_budget(tmp_path: Path):
    grown = tmp_path / sizes.PACKAGE
    shutil.copytree(library_folder(), grown, ignore=shutil.ignore_patterns("__pycache__"))
    with (grown / "session.py").open("a") as file:
        for number in range(400):
            file.write(f"\n\ndef grown_{number}(argument_{number}):\n    return 'grown {number}', argument_{number}\n")
    assert [line.split(":")[0] for line in sizes.measure(grown).passed()] == list(sizes.BUDGETS)


def test_the_command_prints_modules_totals_and_budgets_as_json(capsys):
    code = run(["size", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert code == (0 if all(budget["met"] for budget in shown["budgets"].values()) else 1)
    assert set(shown) == {"modules", "totals", "budgets"}
    assert {field.name for field in fields(sizes.ModuleSize)} == set(shown["modules"][0])
    assert shown["budgets"]["smallest_mpy_bytes"].keys() == {"limit", "used", "met"}


def test_the_files_of_a_board_are_those_of_its_deployment(capsys, monkeypatch):
    # The command runs twice, for text and for JSON; a board's files are compiled once.
    made_once = functools.cache(build)
    monkeypatch.setattr("umqtt_kit.deploy.build.build", made_once)
    assert run(["size", "--board", "RPI_PICO_W", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    built = made_once("RPI_PICO_W", OPTIONAL).files
    assert shown["files"] == {path: len(content) for path, content in built.items()}
    assert shown["file_system_bytes"] == 212 * 4096
    assert shown["flash_bytes"] % 4096 == 0
    assert 0 <= shown["flash_bytes"] - sum(shown["files"].values()) < 4096 * len(shown["files"])
    assert run(["size", "--board", "RPI_PICO_W"]) == 0
    shown_to_people = capsys.readouterr().out
    assert all(path in shown_to_people for path in built) and f"{shown['flash_bytes']:,}" in shown_to_people


def test_a_board_that_is_not_described_is_said(capsys):
    assert run(["size", "--board", "PICO"]) == 2
    assert "there is no board 'PICO'" in capsys.readouterr().err


def test_a_board_of_the_user_s_own_has_to_say_its_file_system(tmp_path: Path, monkeypatch, capsys):
    (tmp_path / "MINE").mkdir()
    (tmp_path / "MINE" / "board.json").write_text('{"name": "MINE"}')
    monkeypatch.setenv("UMQTT_BOARDS", str(tmp_path))
    assert run(["size", "--board", "MINE"]) == 2
    assert "does not say its littlefs' block_size" in capsys.readouterr().err


def test_a_board_is_told_in_how_many_years_its_readings_wear_it_out(capsys: pytest.CaptureFixture[str]):
    """Planted: blocks that the program fills are counted among those that share the wear."""
    assert run(["size", "--board", "RPI_PICO_W", "--interval-ms", "500", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    left = (found["file_system_bytes"] - found["flash_bytes"]) // 4096
    assert found["interval_ms"] == 500
    hours, years = sizes.room_and_years(500, 256, left)
    assert (found["hours"], found["years"]) == (pytest.approx(hours, abs=0.1), pytest.approx(years, abs=0.1))
    assert found["flash_bytes"] // 4096 <= sizes.PROGRAM_BLOCKS
    assert run(["size", "--interval-ms", "500"]) == 2
    assert "name it with --board" in capsys.readouterr().err
