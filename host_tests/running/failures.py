"""Failures of a run are kept as files, and `.ci/run` gives each test one more chance, alone.

    pytest --failures=FOLDER                      adds each failure of the run: FOLDER/1.log, the test's id in line 1
    python host_tests/running/failures.py FOLDER  runs these tests again, one at a time and with nothing beside them

The second command ends with 0 if every one of them passes now, and lists them as unsteady with both logs. A test that
fails again counts as a failure, and so do all if there are more than MOST: that is not chance.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MOST = 5


class Keeper:
    """The plugin for --failures."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)
        self._before = sum(1 for _ in folder.glob("*.log"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._kept:
            self._kept.add(report.nodeid)
            sections = [f"----- {name}\n{text}" for name, text in report.sections]
            log = "\n".join([report.nodeid, f"{report.when}:", report.longreprtext, *sections])
            self._write(log)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._kept.add(report.nodeid)
            self._write(f"{report.nodeid}\n{report.longreprtext}")

    def _write(self, log: str) -> None:
        (self._folder / f"{self._before + len(self._kept)}.log").write_text(log + "\n")


def run_again(folder: Path) -> int:
    """Run the kept failures once more and print the results; return the exit code."""
    logs = sorted(folder.glob("*.log"), key=lambda path: int(path.stem)) if folder.is_dir() else []
    if not logs:
        print("the run failed, but no test did: nothing to run again", flush=True)
        return 1
    if len(logs) > MOST:
        print(f"{len(logs)} tests failed: that is not luck, and nothing is run again", flush=True)
        return 1
    unsteady, red = [], []
    for first in [log.read_text() for log in logs]:
        nodeid = first.partition("\n")[0]
        print(f"\nonce more, alone: {nodeid}", flush=True)
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-rA", nodeid]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        second = ended.stdout.decode(errors="backslashreplace")
        (red if ended.returncode else unsteady).append((nodeid, first, second))
    for title, tests in (("failed twice", red), ("unsteady", unsteady)):
        for nodeid, first, second in tests:
            print(f"\n===== {title}: {nodeid}\n----- in the run\n{first}\n----- alone\n{second}", flush=True)
    for title, tests in (("failed twice", red), ("unsteady", unsteady)):
        if tests:
            print(f"{title}: {', '.join(nodeid for nodeid, _, _ in tests)}", flush=True)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(run_again(Path(sys.argv[1])))
