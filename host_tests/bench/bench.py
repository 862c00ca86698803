"""Runs all three benches, one after the other, and prints one page of Markdown.

    python host_tests/bench/bench.py [--quick] [--peers DIR]

DIR contains what the three need from it; see their --help. Messages about missing peers, and rows as they come, go to
stderr. Exit code 1 if a bench ended early: the page then has what was measured, and says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from bench_rows import LEAST_RATIO, MOST_RATIO, Goal, number
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.mosquitto import find_mosquitto

_HERE = Path(__file__).resolve().parent
_VERSION_AND_WORD = (
    "import sys; v = sys.implementation[1][:3]; bits = 64 if sys.maxsize > 1 << 32 else 32;"
    "print('.'.join(map(str, v)), 'of', bits, 'bits')"
)
BENCHES = {"Client": "client.py", "Broker": "broker.py", "Ingestion": "ingest.py"}


def measured(name: str, arguments: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Run a bench; return its rows and why it ended early ("" if it did not)."""
    command = [sys.executable, str(_HERE / BENCHES[name]), "--json", *arguments]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench:
        for line in bench.stdout or ():
            print(line, end="", file=sys.stderr)
            rows.append(json.loads(line))
    return rows, f"{name}: the bench ended with exit code {bench.returncode}" if bench.returncode else ""


def page(found: dict[str, list[dict[str, Any]]], trouble: list[str], setting: str) -> str:
    """Return the figures as Markdown: a table for each bench with one line a case, and the goals that were missed."""
    lines = ["# Figures", "", setting, ""]
    missed = []
    for name, rows in found.items():
        lines += [f"## {name}", "", "| | ours | peers, and ours as a multiple of theirs | goal |", "|---|---|---|---|"]
        for case, group in groupby(rows, lambda row: row["case"]):
            same = list(group)
            ours = f"{number(same[0]['ours'])} {same[0]['unit'] or ''}".strip()
            peers = "; ".join(_beside(row) for row in same if row["peer"] is not None)
            goals = dict.fromkeys(_goal(row) for row in same if row["goal"] is not None)
            lines.append("| " + " | ".join((case, ours, peers, "; ".join(goals))) + " |")
            missed += [f"{name}: {case}"] if any(row["met"] is False for row in same) else []
        lines.append("")
    lines += ["## Not reached", "", *([f"- {each}" for each in (*trouble, *missed)] or ["Nothing."])]
    return "\n".join(lines) + "\n"


def _beside(row: dict[str, Any]) -> str:
    times = "" if row["ratio"] is None else f" ({number(row['ratio'])} x)"
    return f"{row['peer_name']} {number(row['peer'])}{times}"


def _goal(row: dict[str, Any]) -> str:
    goal = Goal(row["goal"], row["goal_is"])
    of = f" {row['peer_name']}" if row["goal_is"] in (LEAST_RATIO, MOST_RATIO) else ""
    return f"{goal}{of} {({None: 'not measured', True: 'reached', False: '**not reached**'})[row['met']]}"


def setting(peers: Path | None = None) -> str:
    """Return the date, the machine and the versions of this run. peers: the folder with the peers."""
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=_HERE, capture_output=True, text=True, check=False
    )
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    parts = [
        time.strftime("%-d %B %Y"),
        f"{os.cpu_count()} x {cpu[1] if cpu else platform.processor()}, {platform.system()} {platform.release()}",
        f"revision {revision.stdout.strip() or 'unknown'}",
        f"Python {platform.python_version()}",
        f"PySpark {version('pyspark')}",
        f"paho {version('paho-mqtt')}",
        *(each for each in (_micropython(), _mosquitto(), _mqtt_as(peers)) if each),
    ]
    return "; ".join(parts) + "."


def _micropython() -> str:
    try:
        command = [*micropython_command(), "-c", _VERSION_AND_WORD]
    except MicroPythonMissing:
        return ""
    return "MicroPython " + subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _mqtt_as(peers: Path | None) -> str:
    file = peers / "mqtt_as.py" if peers else None
    text = file.read_text() if file and file.is_file() else ""
    found = re.search(r"^VERSION = \((\d+), (\d+), (\d+)\)", text, re.M)
    return f"mqtt_as {'.'.join(found.groups())}" if found else ""


def _mosquitto() -> str:
    program = find_mosquitto()
    if program is None:
        return ""
    said = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout
    return said.partition("\n")[0].replace(" version", "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="All three benches in one run, as one page of Markdown.")
    parser.add_argument("--quick", action="store_true", help="under 3 minutes: one short run each, fewer peers")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder with the peers of all three benches")
    options = parser.parse_args()
    arguments = ["--quick"] if options.quick else []
    if options.peers is not None:
        arguments += ["--peers", str(options.peers)]
    found, trouble = {}, []
    for name in BENCHES:
        found[name], why = measured(name, arguments)
        trouble += [why] if why else []
    print(page(found, trouble, setting(options.peers)), end="")
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())
