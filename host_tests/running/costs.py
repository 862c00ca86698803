"""The cost of every test: recorded while tests run, kept by file, and written as tables.

    pytest --costs=FILE                      records seconds of worker and CPU time of every test in FILE
    python host_tests/running/costs.py FILE  copies a recorded run of all tests into costs.tsv and docs/testing.md

costs.tsv decides which files begin first, and what fits into `make check`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

HOST_TESTS = Path(__file__).resolve().parents[1]
KEPT = Path(__file__).with_name("costs.tsv")
PAGE = HOST_TESTS.parent / "docs" / "testing.md"
_BEGIN, _END = "<!-- costs: begin -->", "<!-- costs: end -->"
# Assumed for a file that was not measured yet.
_UNKNOWN_S = 5.0
_SLOWEST = 40
# Looking through all processes takes 10 ms, so it is done only after tests that took longer than this.
_LONG_S = 0.1


class Cost(NamedTuple):
    """The cost of a file's tests: their number, worker seconds, and CPU seconds of the worker and its descendants."""

    tests: int
    worker_s: float
    cpu_s: float


def by_file() -> dict[str, Cost]:
    """Return the kept costs: path below host_tests -> cost of the file's tests."""
    rows = (line.split("\t") for line in KEPT.read_text().splitlines()[1:])
    return {name: Cost(int(tests), float(worker_s), float(cpu_s)) for name, tests, worker_s, cpu_s in rows}


def worker_seconds(path: Path, kept: dict[str, Cost]) -> float:
    """Return the worker seconds that a file's tests take, according to the kept costs."""
    cost = kept.get(path.relative_to(HOST_TESTS).as_posix())
    return _UNKNOWN_S if cost is None else cost.worker_s


class Recorder:
    """The plugin for --costs. CPU time is measured where a test runs and travels with its report."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._ended_s = _ended_cpu_s()
        self._running_s = 0.0

    def pytest_collection_finish(self) -> None:
        self._ended_s = _ended_cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo) -> Iterator[None]:
        report = yield
        before, ended_before_s = self._ended_s + self._running_s, self._ended_s
        self._ended_s = _ended_cpu_s()
        # A process that was running before may have ended just now.
        if max(call.duration, self._ended_s - ended_before_s) > _LONG_S:
            self._running_s = _running_cpu_s()
        report.user_properties = [(name, value) for name, value in report.user_properties if name != "cpu_s"]
        report.user_properties.append(("cpu_s", self._ended_s + self._running_s - before))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self._rows[report.nodeid]
        row[0] += report.duration
        row[1] += sum(value for name, value in report.user_properties if name == "cpu_s")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            self._target.write_text(json.dumps(self._rows))


def _ended_cpu_s() -> float:
    """Return the CPU seconds of this process and of its ended descendants."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _running_cpu_s() -> float:
    """Return the CPU seconds of the running descendants. A Spark session ends long after the tests that used it."""
    children: dict[str, list[list[str]]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            pid, _, rest = path.read_text().partition(" ")
            fields = rest.rpartition(")")[2].split()
            children[fields[1]].append([pid, *fields[11:15]])
    ticks, parents = 0, [str(os.getpid())]
    while parents:
        for pid, *used in children[parents.pop()]:
            ticks += sum(map(int, used))
            parents.append(pid)
    return ticks / os.sysconf("SC_CLK_TCK")


def take_over(recorded: dict[str, list[float]]) -> None:
    """Write a recorded run to costs.tsv and docs/testing.md. recorded: test id -> (worker seconds, CPU seconds)."""
    files: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    folders: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for nodeid, (worker_s, cpu_s) in recorded.items():
        name = nodeid.split("::")[0].removeprefix("host_tests/")
        for row in (files[name], folders[os.path.dirname(name)]):
            row[0] += 1
            row[1] += worker_s
            row[2] += cpu_s
    lines = [f"{name}\t{row[0]:.0f}\t{row[1]:.1f}\t{row[2]:.1f}" for name, row in sorted(files.items())]
    KEPT.write_text("\n".join(["file\ttests\tworker_s\tcpu_s", *lines]) + "\n")
    page = PAGE.read_text()
    before, rest = page.split(_BEGIN)
    PAGE.write_text(before + _BEGIN + "\n" + _tables(recorded, folders) + _END + rest.split(_END)[1])


def _tables(recorded: dict[str, list[float]], folders: dict[str, list[float]]) -> str:
    worker_s = sum(row[0] for row in recorded.values())
    cpu_s = sum(row[1] for row in recorded.values())
    text = (
        f"\n{len(recorded)} tests: {worker_s:.0f} worker seconds, {cpu_s:.0f} of CPU.\n\n"
        "| folder | tests | worker s | CPU s |\n|---|---|---|---|\n"
    )
    for name, row in sorted(folders.items(), key=lambda each: -each[1][1]):
        text += f"| {name} | {row[0]:.0f} | {row[1]:.0f} | {row[2]:.0f} |\n"
    text += "\n| slowest tests | s |\n|---|---|\n"
    for nodeid, (seconds, _) in sorted(recorded.items(), key=lambda each: -each[1][0])[:_SLOWEST]:
        file, _, test = nodeid.removeprefix("host_tests/").partition("::")
        text += f"| {file.removesuffix('.py')}: {test} | {seconds:.1f} |\n".replace("test_", "", 1)
    return text + "\n"


if __name__ == "__main__":
    take_over(json.loads(Path(sys.argv[1]).read_text()))
