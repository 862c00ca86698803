"""Test tiers: every test has a tier, which says what it needs, and every tier a time limit.

A test's tier is that of the longest place in PLACES that contains its file, unless `pytestmark = pytest.mark.tier(N)`
in the file, or the mark on one test, says otherwise. Tests that run inside MicroPython are at least of tier 1.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

HOST_TESTS = Path(__file__).resolve().parents[1]


class Tier(NamedTuple):
    """What the tests of a tier may use, and the seconds after which one of them counts as hung."""

    needs: str
    hung_after_s: int


TIERS = {
    0: Tier("no process and no socket", 60),
    1: Tier("loopback, MicroPython, processes of the project, mosquitto", 180),
    2: Tier("Spark, browser, cluster, virtual boards, serial ports", 300),
    3: Tier("benches, proofs, controls, bounds in wall-clock or CPU time, judges of the test kit, type stubs", 900),
}

# Folder or file below host_tests -> tier. What a tier 0 test may not do is refused while it runs.
PLACES = {
    "": 1,
    "architecture": 0,
    "laws": 0,
    "unit": 0,
    "unit/test_app_names.py": 1,
    "unit/test_app_ntp.py": 1,
    "boards": 2,
    "clusters": 2,
    "console": 1,
    "console/test_console_page.py": 2,
    "clusters/test_manifests.py": 1,
    "end_to_end": 2,
    "kit": 2,
    "rp2040": 2,
    "spark": 2,
    "spark/cluster/test_cluster_laws.py": 1,
    "spark/collect": 1,
    "spark/pipeline": 1,
    "spark/report/test_report_data.py": 1,
    "spark/source/test_rows.py": 0,
    "spark/source/test_sink.py": 1,
    "spark/test_batch.py": 1,
    "spark/test_damage.py": 1,
    "spark/test_clock.py": 0,
    "spark/test_collector.py": 1,
    "spark/test_dedup.py": 0,
    "spark/test_offsets.py": 0,
    "spark/test_record.py": 0,
    "spark/test_spool.py": 0,
    "bench": 3,
    "bench/test_size.py": 1,
    "typechecks": 3,
    "typechecks/test_stubs.py": 1,
}

# A control plants mistakes and shows that a sweep finds them. Portable tests have no marks, so their name says it.
_CONTROL = re.compile(r"finds_(a_)?planted_mistake")

_PLACES = {tuple(Path(place).parts): tier for place, tier in PLACES.items()}


def tier_of(item: pytest.Item) -> int:
    """Return the tier of a collected test."""
    marked = item.get_closest_marker("tier")
    if marked is not None:
        return marked.args[0]
    if _CONTROL.search(item.name):
        return 3
    return max(tier_of_file(item.path), 1 if item.get_closest_marker("micropython") else 0)


def tier_of_file(path: Path) -> int:
    """Return the tier of a file's tests, by its place alone."""
    parts = path.relative_to(HOST_TESTS).parts
    return next(_PLACES[parts[:n]] for n in range(len(parts), -1, -1) if parts[:n] in _PLACES)


class Chosen:
    """The tests that `--tiers` selects: "0,1" by number; "smoke" those marked so, whatever their tier."""

    def __init__(self, text: str) -> None:
        words = set(text.split(","))
        self._smoke = "smoke" in words
        self._numbers = {int(word) for word in words - {"smoke"}}

    def __contains__(self, item: pytest.Item) -> bool:
        return tier_of(item) in self._numbers or (self._smoke and item.get_closest_marker("smoke") is not None)


def left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases that `make test` leaves out of tests with the mark `sample(N)`, which has N of them run.

    They are drawn by the test's name, so that every worker, and every run, has the same.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: list[pytest.Item] = []
    for name, found in cases.items():
        (count,) = found[0].get_closest_marker("sample").args
        left += random.Random(name).sample(found, max(0, len(found) - count))
    return left


class Forbidden(AssertionError):
    """A test of tier 0 tried to use a process or a socket."""


_FORBIDDEN = frozenset(
    [
        "os.fork",
        "os.posix_spawn",
        "os.system",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "subprocess.Popen",
    ]
)
_guarded = False


def _refuse(event: str, _arguments: object) -> None:
    if _guarded and event in _FORBIDDEN:
        raise Forbidden(f"a test of tier 0 may start no process and use no socket, and this one does: {event}")


@contextmanager
def tier_0_guard() -> Iterator[None]:
    """Refuse processes and sockets within this context."""
    global _guarded
    _guarded = True
    try:
        yield
    finally:
        _guarded = False


# An audit hook cannot be removed: it is added once per process that runs tests.
sys.addaudithook(_refuse)
