"""Portable tests run twice, and a test that kills or hangs its MicroPython fails alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.portable import Rng
from umqtt_testkit.waiting import WAIT_LIMIT_S

SAMPLE = """
import sys
from umqtt_testkit.portable import Clock, Rng, TICKS_PERIOD, equal, raises, skip

HEAP = "256K"
TIMEOUT_S = 60.0
ON_DEVICE = sys.implementation.name == "micropython"

def test_first():
    pass

def test_numbers():
    print("numbers", Rng(7).bytes(6), Rng(8).pieces(bytes(5)), Rng(9).between(3, 5))

def test_skipped():
    skip("not on this machine")

def test_clock():
    clock = Clock(TICKS_PERIOD - 2)
    start = clock.ticks_ms()
    equal(clock.advance(5), 3)
    equal(clock.ticks_diff(clock.ticks_ms(), start), 5)
    equal(clock.ticks_diff(start, clock.ticks_ms()), -5)

def test_raises():
    assert raises((ValueError, KeyError), int, "x").args
    message = str(raises(AssertionError, raises, ValueError, int, "1"))
    equal(message, "expected ValueError, but the call returned 1")
    raises(KeyError, raises, ValueError, {}.pop, "missing")

def test_fails_on_device():
    print("printed before")
    def inner():
        assert not ON_DEVICE, "told on device"
    inner()

def test_hangs_on_device():
    # CPython comes first, and its module says how long the device has: time to start and to print.
    global TIMEOUT_S
    TIMEOUT_S = 5.0
    print("still alive")
    import time
    while ON_DEVICE:
        time.sleep(1)

def test_after_the_hang():
    global TIMEOUT_S
    TIMEOUT_S = 60.0

def test_kills_its_process():
    if ON_DEVICE:
        import os
        os.system("kill -9 $PPID")

def test_after_the_kill():
    pass

def test_heap():
    if ON_DEVICE:
        bytearray(300 * 1024)

def test_exit_is_no_success():
    if ON_DEVICE:
        sys.exit(0)

def test_last():
    pass
"""
FAILS_ON_DEVICE = {"fails_on_device", "hangs_on_device", "kills_its_process", "heap", "exit_is_no_success"}


def run_pytest(folder: Path, *arguments: str, **environment: str) -> str:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        "-v",
        "-rs",
        *arguments,
    ]
    # The inner run's limits must be those of an ordinary run, whatever this one is.
    environment = {**os.environ, "UMQTT_FULL_SWEEPS": "", "UMQTT_DELAYS": "", **environment}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=2 * WAIT_LIMIT_S, env=environment
    )
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("both")
    (top / "pytest.ini").write_text("[pytest]\numqtt_both = portable\naddopts = --strict-markers\n")
    (top / "portable").mkdir()
    (top / "portable" / "test_sample.py").write_text(SAMPLE)
    return top


@pytest.fixture(scope="module")
def report(folder: Path) -> str:
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    return run_pytest(folder)


def outcomes(report: str) -> dict[str, str]:
    return dict(re.findall(r"^portable/test_sample\.py::test_(\S+) (\w+)", report, re.MULTILINE))


def test_each_test_runs_on_both_and_fails_where_it_must(report: str):
    names = re.findall(r"^def test_(\w+)", SAMPLE, re.MULTILINE)
    expected = {}
    for name in names:
        otherwise = "SKIPPED" if name == "skipped" else "PASSED"
        expected[f"{name}[cpython]"] = otherwise
        expected[f"{name}[micropython]"] = "FAILED" if name in FAILS_ON_DEVICE else otherwise
    assert outcomes(report) == expected


def test_the_report_shows_output_source_line_and_reason(report: str):
    assert re.search(r'test_sample.py", line \d+, in inner\n    assert not ON_DEVICE, "told on device"', report)
    for text in (
        "AssertionError: told on device",
        "printed before",
        "MicroPython hung: no answer within 5 s",
        "still alive",
        "MicroPython was killed by SIGKILL in this test",
        "MemoryError: memory allocation failed, allocating 307200 bytes",
        "SystemExit: 0",
        "not on this machine",
    ):
        assert text in report
    assert "both_runner.py" not in report


def test_both_interpreters_draw_the_same_numbers(folder: Path):
    report = run_pytest(folder, "-rP", "-k", "numbers")
    drawn = re.findall(r"^numbers .*$", report, re.MULTILINE)
    assert drawn == [f"numbers {Rng(7).bytes(6)} {Rng(8).pieces(bytes(5))} {Rng(9).between(3, 5)}"] * 2


@pytest.mark.parametrize(
    "selection",
    [
        ["portable/test_sample.py::test_last[micropython]"],
        ["-m", "micropython", "-k", "last"],
    ],
)
def test_one_side_can_be_selected(folder: Path, selection: list[str]):
    assert outcomes(run_pytest(folder, *selection)) == {"last[micropython]": "PASSED"}


def test_a_folder_of_portable_tests_that_is_not_there_ends_the_run(tmp_path: Path):
    """Planted: the tests of a misspelt folder ran, and passed, under CPython alone."""
    (tmp_path / "pytest.ini").write_text("[pytest]\numqtt_both = portabel\n")
    with pytest.raises(AssertionError, match=f"umqtt_both: there is no folder {tmp_path}/portabel"):
        run_pytest(tmp_path)


def test_without_micropython_its_side_is_skipped_with_the_reason(folder: Path):
    report = run_pytest(folder, "-k", "last", UMQTT_MICROPYTHON="/nowhere/micropython")
    assert outcomes(report) == {"last[cpython]": "PASSED", "last[micropython]": "SKIPPED"}
    assert "UMQTT_MICROPYTHON names /nowhere/micropython, which is not a command here" in report


def test_a_test_that_is_not_portable_is_refused(tmp_path: Path):
    (tmp_path / "pytest.ini").write_text("[pytest]\numqtt_both = .\n")
    (tmp_path / "test_argument.py").write_text("def test_x(tmp_path): pass")
    (tmp_path / "test_class.py").write_text("class TestX:\n    def test_x(self): pass")
    report = run_pytest(tmp_path)
    for name, test in (("test_argument.py", "test_x"), ("test_class.py", "TestX")):
        assert re.search(rf"{name}: {test} is not portable: tests in this folder run on MicroPython too", report)


def test_a_file_may_ask_for_more_time_than_every_other_test_has(tmp_path: Path):
    pytest.importorskip("pytest_timeout")
    (tmp_path / "pytest.ini").write_text("[pytest]\numqtt_both = .\ntimeout = 0.2\n")
    (tmp_path / "test_long.py").write_text("import time\n\nTIMEOUT_S = 60\n\n\ndef test_x():\n    time.sleep(0.4)\n")
    assert "2 passed" in run_pytest(tmp_path)


@pytest.mark.parametrize(("full", "limits"), [("", {80.0}), ("1", {1220.0})])
def test_complete_sweeps_have_more_time(tmp_path: Path, full: str, limits: set[float]):
    # Planted: the limit of a file that sets one is the same in complete sweeps.
    pytest.importorskip("pytest_timeout")
    (tmp_path / "pytest.ini").write_text("[pytest]\numqtt_both = .\n")
    (tmp_path / "conftest.py").write_text(
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n        print('limit', item.get_closest_marker('timeout').args[0])\n"
    )
    (tmp_path / "test_long.py").write_text("TIMEOUT_S = 60\n\n\ndef test_x():\n    pass\n")
    report = run_pytest(tmp_path, UMQTT_FULL_SWEEPS=full)
    assert {float(found) for found in re.findall("limit ([0-9.]+)", report)} == limits


def test_a_module_that_micropython_cannot_import_fails_only_there(tmp_path: Path):
    (tmp_path / "pytest.ini").write_text("[pytest]\numqtt_both = .\n")
    (tmp_path / "test_bad.py").write_text("import dataclasses\n\n\ndef test_x():\n    pass\n")
    report = run_pytest(tmp_path)
    assert "test_x[cpython] PASSED" in report
    assert "test_x[micropython] FAILED" in report
    assert "no module named 'dataclasses'" in report
