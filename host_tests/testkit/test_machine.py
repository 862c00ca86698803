"""A process on a machine whose clock is wrong, and whose disk loses what was not synced."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys

import pytest
from umqtt_testkit.machine import Machine, MachineMissing

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD is of Linux")


@pytest.fixture
def machine(tmp_path):
    try:
        return Machine(tmp_path / "machine")
    except MachineMissing as missing:
        pytest.skip(str(missing))


def _killed(machine, program, *arguments):
    """Run a Python program until it prints a line, and kill it."""
    command = [sys.executable, "-I", "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **machine.environment}) as process:
        line = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    return line.decode().strip()


def test_the_time_of_day_differs_and_monotonic_time_does_not(machine):
    program = "import datetime, time; print(time.time(), datetime.datetime.now().timestamp(), time.monotonic())"
    here = dict(zip(("time", "now", "monotonic"), map(float, _killed(machine, program).split()), strict=True))
    machine.set_clock(-30 * 86_400)
    there = dict(zip(here, map(float, _killed(machine, program).split()), strict=True))
    assert here["time"] - there["time"] == pytest.approx(30 * 86_400, abs=600)
    assert here["now"] - there["now"] == pytest.approx(30 * 86_400, abs=600)
    assert there["monotonic"] > here["monotonic"]


_WRITER = """
import os, sys
with open(sys.argv[1] + "/synced", "r+b" if os.path.exists(sys.argv[1] + "/synced") else "wb") as file:
    file.write(b"new" * 4000)
    file.flush()
    os.fsync(file.fileno())
    file.seek(0)
    file.write(b"old" * 4000)
with open(sys.argv[1] + "/never", "wb") as file:
    file.write(b"x" * 12000)
print("written", flush=True)
input()
"""


def test_pages_that_were_not_synced_are_the_old_ones_or_gone(machine, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    contents = set()
    for seed in range(8):
        assert _killed(machine, _WRITER, data) == "written"
        assert (data / "synced").read_bytes() == b"old" * 4000
        lost = machine.lose_unsynced(data, random.Random(seed))
        found = (data / "synced").read_bytes()
        pages = [found[at : at + 4096] for at in range(0, 12000, 4096)]
        for at, page in zip(range(0, 12000, 4096), pages, strict=True):
            assert page in ((b"new" * 4000)[at : at + 4096], (b"old" * 4000)[at : at + 4096])
        never = (data / "never").read_bytes()
        assert never == b"x" * len(never) and len(never) in (0, 4096, 8192, 12000)
        assert lost or (found, len(never)) == (b"old" * 4000, 12000)
        contents.add((found, len(never)))
    assert len(contents) > 2


def test_a_database_that_syncs_keeps_each_transaction_and_one_that_does_not_may_lose_some(machine, tmp_path):
    program = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode = WAL")
database.execute("PRAGMA synchronous = " + sys.argv[2])
database.execute("CREATE TABLE IF NOT EXISTS numbers (n)")
for n in range(200):
    database.execute("INSERT INTO numbers VALUES (?)", (n,))
print("done", flush=True)
input()
"""
    counts = {}
    for mode in ("FULL", "OFF"):
        folder = tmp_path / mode
        folder.mkdir()
        assert _killed(machine, program, folder / "db", mode) == "done"
        machine.lose_unsynced(folder, random.Random(1))
        try:
            counts[mode] = sqlite3.connect(folder / "db").execute("SELECT count(*) FROM numbers").fetchone()[0]
        except sqlite3.DatabaseError:
            counts[mode] = 0
    assert counts["FULL"] == 200 and counts["OFF"] < 200
