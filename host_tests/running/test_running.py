"""The test run itself: tiers refuse what they must, failures get one chance, delays reveal dependence on luck."""

from __future__ import annotations

import json
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
import costs, failures, tiers, pytest
from pathlib import Path

def pytest_configure(config):
    config.pluginmanager.register(costs.Recorder(Path("costs.json")))
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
    # Two runs, as `make test` has.
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


def test_files_that_share_spark_are_one_workers_and_all_that_use_it_are_named() -> None:
    """Planted: a file that uses the session `spark` and is in no group."""
    grouped = {sharing.HOST_TESTS / each for files in sharing.TOGETHER for each in files}
    assert all(path.is_file() for path in grouped)
    assert {sharing.first_of(sharing.HOST_TESTS / each) for each in sharing.TOGETHER[0]} == {
        sharing.HOST_TESTS / sharing.TOGETHER[0][0]
    }
    uses = re.compile(r"^def test.*[(, ]spark[,)]|getfixturevalue\(\"spark\"\)", re.MULTILINE)
    alone = [path for path in (sharing.HOST_TESTS / "spark").rglob("test_*.py") if path not in grouped]
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


def test_recorded_costs_become_the_kept_ones_and_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "testing.md"
    page.write_text("before\n<!-- costs: begin -->\nold\n<!-- costs: end -->\nafter\n")
    monkeypatch.setattr(costs, "PAGE", page)
    monkeypatch.setattr(costs, "KEPT", tmp_path / "costs.tsv")
    costs.take_over({"host_tests/a/test_x.py::one": [1.25, 1.0], "host_tests/a/test_x.py::two": [3.0, 0.5]})
    assert costs.by_file() == {"a/test_x.py": costs.Cost(2, 4.2, 1.5)}
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "\nold\n" not in text
    assert "| a | 2 | 4 | 2 |" in text and text.index("two | 3.0") < text.index("one | 1.2")


_BUSY = """
    import subprocess, sys, pytest

    @pytest.fixture(scope="session")
    def busy():
        works = "import os, time\\nwhile os.times().user < 0.5: pass\\nprint('done', flush=True)\\ntime.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", works], stdout=subprocess.PIPE) as child:
            yield child
            child.kill()

    def test_waits_for_its_work(busy):
        assert busy.stdout.readline() == b"done\\n"

    def test_ends_it(busy):
        pass
"""


def test_the_cpu_time_of_what_still_runs_counts_for_the_test_that_used_it(tmp_path: Path) -> None:
    """Planted: only processes that have ended count, so all of it is the last test's."""
    assert _pytest(tmp_path, _BUSY).returncode == 0
    recorded = json.loads((tmp_path / "costs.json").read_text())
    used, ended = (recorded[f"test_it.py::{name}"][1] for name in ("test_waits_for_its_work", "test_ends_it"))
    assert used > 2 * ended


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


def test_the_steady_command_prints_its_counts_as_its_last_line() -> None:
    command = [sys.executable, str(_HERE / "steady.py"), "--runs", "0", "--whole", "0", "--seed", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    counts = json.loads(ended.stdout.splitlines()[-1])
    assert ended.returncode == 0
    assert counts | {"seconds": 0} == {
        "runs": 0,
        "whole_runs": 0,
        "tests": 0,
        "failures": [],
        "seed": 5,
        "seconds": 0,
    }
