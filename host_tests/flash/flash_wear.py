"""Runs sweep_wear.py, compares the wear with the budgets, and says what it means for the life of a board."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from umqtt_testkit.interpreter import device_search_path, micropython_command

_HERE = Path(__file__).resolve().parent
# The full measurement takes half a minute on a quiet core.
_HUNG_AFTER_S = 500

# Erases per 1000 messages: (geometry, bytes of payload, slots occupied all the time): limit.
BUDGETS = {
    ("esp32", 64, 8): 60,
    ("rp2", 64, 8): 130,
    ("esp32", 64, 56): 100,
    ("rp2", 64, 56): 210,
    ("esp32", 300, 8): 200,
    ("rp2", 300, 8): 250,
}
RESTORE_MS = 200
HEAP_PER_SLOT = 64
ENDURANCE = 100_000  # erases that a block endures
READINGS_PER_YEAR = 365.25 * 24 * 360  # one every 10 s


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return the cases of sweep_wear.py. quick: a shorter life of each partition.

    Raises MicroPythonMissing, CalledProcessError.
    """
    folders = device_search_path(_HERE, _HERE.parent / "laws")
    done = subprocess.run(
        [*micropython_command("16M"), str(_HERE / "sweep_wear.py"), *(["quick"] if quick else [])],
        env={**os.environ, "MICROPYPATH": os.pathsep.join([*folders, ".frozen"])},
        capture_output=True,
        text=True,
        timeout=_HUNG_AFTER_S,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def years(life: dict[str, Any]) -> float:
    """Return the years until the most erased block is worn out; littlefs moves a log after 100 erases."""
    ahead = life["most_erased"] - life["erases"] / life["blocks"]
    return (ENDURANCE - ahead) / (life["erases"] / life["blocks"] / life["messages"] * READINGS_PER_YEAR)


def table(cases: list[dict[str, Any]]) -> list[str]:
    """Return one line per case, for people."""
    lines = []
    for case in cases:
        if case["case"] in ("wear", "late"):
            limit = 0 if case["case"] == "late" else BUDGETS.get(_key(case))
            lines.append(
                f"{case['case']:5} {case['geometry']:6} {case['payload']:4} B, {case['occupied']:2} occupied: "
                f"{case['erases']:4} erases per 1000 (limit {limit if limit is not None else '-'}), "
                f"most erased block {case['most_erased']}, {case['programs']} programs, {case['bytes']} bytes"
            )
        elif case["case"] == "life":
            lines.append(
                f"life  {case['geometry']:6} {case['messages']} messages on {case['blocks']} blocks: {case['erases']} "
                f"erases, most erased block {case['most_erased']}; at one reading every 10 s {years(case):.0f} years"
            )
        elif case["case"] == "restore":
            lines.append(
                f"start {case['geometry']:6} {case['messages']} messages: {case['ms']} ms, {case['heap']} B of heap"
            )
        else:
            lines.append(f"rate  {case['store']:6} {case['per_second']} messages per second stored and acknowledged")
    return lines


def _key(case: dict[str, Any]) -> tuple[str, int, int]:
    return case["geometry"], case["payload"], case["occupied"]


def too_slow(cases: list[dict[str, Any]]) -> list[str]:
    """Return the starts that take longer than RESTORE_MS."""
    return [
        f"restore on {case['geometry']}: {case['ms']} ms"
        for case in cases
        if case["case"] == "restore" and case["ms"] >= RESTORE_MS
    ]


def over_budget(cases: list[dict[str, Any]]) -> list[str]:
    """Return the cases over their limit, regardless of time; a missing case counts as over its limit too."""
    found = {_key(case): case["erases"] for case in cases if case["case"] == "wear"}
    over = []
    for key, limit in BUDGETS.items():
        if found.get(key, limit + 1) > limit:
            over.append(f"{key}: {found.get(key)} erases, limit {limit}")
    for case in cases:
        if case["case"] == "late" and case["programs"]:
            over.append(f"late storing on {case['geometry']} writes")
        if case["case"] == "life" and case["most_erased"] * case["blocks"] > case["erases"] + 101 * case["blocks"]:
            over.append(f"one block of {case['geometry']} wears out long before the others")
        if case["case"] == "restore" and case["messages"] != 64:
            over.append(f"restore on {case['geometry']}: {case['messages']} messages")
        if case["case"] == "restore" and case["heap"] > HEAP_PER_SLOT * 64:
            over.append(f"the store takes {case['heap']} B of heap on {case['geometry']}")
    return over


if __name__ == "__main__":
    print(*table(measure()), sep="\n")
