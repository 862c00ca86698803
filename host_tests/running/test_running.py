"""The test run itself: tiers refuse what they must, failures get one chance, delays reveal dependence on luck."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import affected
import costs
import failures
import pytest
import sharing
import steady
import tiers

_HERE = Path(__file__).resolve().parent
_CONFTEST = f"""
import sys
sys.path.insert(0, {str(_HERE)!r})
import failures, pytest
from pathlib import Path

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(failures.Keeper(Path("failures")))
"""


def _pytest(folder: Path, tests: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(_CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(textwrap.dedent(tests))
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=_own(folder) | environment
    )


def _own(folder: Path) -> dict[str, str]:
    """Return an environment that keeps a run's files in the test's own folder and loads only named plugins."""
    return os.environ | {"TMPDIR": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}


def _run_again(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(_HERE / "failures.py"), "failures"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=_own(folder))


_UNSTEADY = """
    from pathlib import Path

    def test_passes_the_second_time():
        print("seed 4711")
        tried = Path("tried")
        first = not tried.exists()
        tried.touch()
        assert not first
"""
_RED = """
    def test_always_fails():
        assert 1 == 2
"""


def test_a_failed_test_runs_once_more_alone_and_luck_is_told_from_failure(tmp_path: Path) -> None:
    assert _pytest(tmp_path, _UNSTEADY, "-n", "2").returncode == 1
    assert _pytest(tmp_path, _UNSTEADY + _RED, "-k", "always").returncode == 1
    again = _run_again(tmp_path)
    assert again.returncode == 1
    assert again.stdout.splitlines()[-2:] == [
        "failed twice: test_it.py::test_always_fails",
        "unsteady: test_it.py::test_passes_the_second_time",
    ]
    logs = again.stdout.partition("===== unsteady")[2]
    assert logs.count("\nseed 4711") == 2 and "assert not True" in logs and "1 passed" in logs
    for log in (tmp_path / "failures").iterdir():
        log.unlink()
    (tmp_path / "tried").unlink()
    assert _pytest(tmp_path, _UNSTEADY).returncode == 1
    assert _run_again(tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("logs", "says"),
    [(0, "no test did"), (failures.MOST + 1, "that is not luck")],
    ids=["a run that failed without a failed test", "more than luck allows"],
)
def test_what_is_not_luck_is_red(tmp_path: Path, capsys: pytest.CaptureFixture[str], logs: int, says: str) -> None:
    for number in range(logs):
        (tmp_path / f"{number}.log").write_text(f"test_it.py::test_{number}\n")
    assert failures.run_again(tmp_path) == 1
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    "use",
    [
        lambda: socket.socket().bind(("127.0.0.1", 0)),
        lambda: socket.create_connection(("127.0.0.1", 9)),
        lambda: subprocess.Popen(["true"]),
        lambda: os.system("true"),
    ],
    ids=["bind", "connect", "process", "shell"],
)
def test_a_test_of_tier_0_has_no_socket_and_no_process(use) -> None:
    with tiers.tier_0_guard(), pytest.raises(tiers.Forbidden):
        use()


def test_a_sample_of_a_tests_cases_is_the_same_in_each_run_and_a_case_that_is_asked_for_runs(tmp_path: Path) -> None:
    """Planted: the mark counts the cases of a file, and not those of a test."""
    tests = "import pytest\n" + "".join(
        f"@pytest.mark.sample(2)\n@pytest.mark.parametrize('n', range(6))\ndef test_{name}(n): pass\n" for name in "ab"
    )
    conftest = f"""
import sys
sys.path.insert(0, {str(_HERE)!r})
import tiers

def pytest_configure(config):
    config.addinivalue_line("markers", "sample(count)")

def pytest_collection_modifyitems(items):
    out = tiers.left_out(items)
    items[:] = [item for item in items if item not in out]
"""
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_it.py").write_text(tests)

    def collected(*named: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *named]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=_own(tmp_path))
        return [line for line in ended.stdout.splitlines() if "::" in line]

    found = collected()
    assert len(found) == 4 and sum("test_a" in one for one in found) == 2
    assert found == collected()
    missing = next(n for n in range(6) if f"test_it.py::test_a[{n}]" not in found)
    assert collected(f"test_it.py::test_a[{missing}]") == [f"test_it.py::test_a[{missing}]"]


def test_all_files_that_use_spark_are_named_and_are_one_workers() -> None:
    """Planted: a file that uses the session `spark` and is not named, in a test whose arguments take two lines."""
    named = {sharing.HOST_TESTS / each for each in sharing.SPARK_FILES}
    assert all(path.is_file() for path in named)
    assert {sharing.first_of(path) for path in named} == {sharing.HOST_TESTS / sharing.SPARK_FILES[0]}
    uses = re.compile(r"^def test[^)]*[(, ]spark[,\n)]|getfixturevalue\(\"spark\"\)", re.MULTILINE)
    alone = [path for path in (sharing.HOST_TESTS / "spark").rglob("test_*.py") if path not in named]
    assert [path for path in alone if uses.search(path.read_text())] == []


def test_the_file_nearest_to_a_change_is_checked_first_and_the_budget_holds() -> None:
    changed = {affected.ROOT / "tools" / "umqtt_broker" / "routing" / "subscriptions.py"}
    near = affected.distances(changed)
    own = affected.HOST_TESTS / "broker" / "test_broker_trie.py"
    assert near[own] == min(near.values())
    assert all(path.relative_to(affected.HOST_TESTS).parts[0] not in ("laws", "unit") for path in near)
    chosen = affected.choose(near)
    assert own in chosen
    kept = costs.by_file()
    assert sum(costs.worker_seconds(path, kept) for path in chosen) <= affected.BUDGET_S
    assert sum(costs.worker_seconds(path, kept) for path in affected.choose(near, 0.0)) == 0


def test_a_change_of_a_page_reaches_the_tests_that_run_its_examples() -> None:
    near = affected.distances({affected.ROOT / "docs" / "client.md"})
    assert affected.HOST_TESTS / "docs" / "test_examples.py" in near


def test_a_recorded_run_becomes_the_kept_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "KEPT", tmp_path / "costs.tsv")
    cases = [("kit.test_x", "1.25"), ("kit.test_x.TestAll", "3.0"), ("test_y", "0.5")]
    tests = [f'<testcase classname="host_tests.{name}" name="one" time="{seconds}"/>' for name, seconds in cases]
    (tmp_path / "run.xml").write_text(f"<testsuites><testsuite>{''.join(tests)}</testsuite></testsuites>")
    costs.take_over(tmp_path / "run.xml")
    assert costs.by_file() == {"kit/test_x.py": 4.2, "test_y.py": 0.5}


@pytest.mark.tier(3)  # checks the other tests
def test_delays_show_a_test_that_depends_on_luck(tmp_path: Path) -> None:
    tests = """
        import threading, time, pytest

        @pytest.mark.parametrize("number", range(40))
        def test_races(number):
            done = threading.Event()
            threading.Thread(target=done.set).start()
            time.sleep(0.01)
            assert done.is_set()
    """
    delayed = {"PYTHONPATH": str(_HERE / "delays"), "UMQTT_DELAYS": "7"}
    assert _pytest(tmp_path, tests, **delayed).returncode == 1
    assert _pytest(tmp_path, tests.replace("time.sleep(0.01)", "done.wait()"), **delayed).returncode == 0


@pytest.mark.tier(3)
def test_a_steady_run_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_it.py").write_text(textwrap.dedent(_RED))
    monkeypatch.setattr(steady, "PARALLEL", ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={tmp_path}"])
    target = str(tmp_path / "test_it.py")
    passed, failed = steady.run([target, f"--confcutdir={tmp_path}"], "3", tmp_path / "kept")
    assert passed == 0 and failed
