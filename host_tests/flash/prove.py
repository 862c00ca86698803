"""Proves the flash store: `make prove-flash`, or `python host_tests/flash/prove.py [--quick] [--json] [--seed N]`.

Cuts the power at flash operations (a million times; quick: 20,000), kills a virtual board at random (200 times; 10),
checks that planted mistakes are caught, and measures the wear. With --json it prints one JSON object at the end:
cuts, kills, lost, duplicated, out_of_order, other (laws broken in another way), controls, controls_caught,
wear_over_budget, seed, seconds. Exit code: 0; 1 if a law was broken, a mistake not caught or a budget exceeded; 6 if
MicroPython is missing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import flash_kills
import flash_plan
import flash_wear
import proving
from umqtt_testkit.interpreter import MicroPythonMissing

_EXIT_MISSING = 6


def main(arguments: list[str] | None = None) -> int:
    more = {
        "--cuts": {"type": int, "help": "how many power cuts at least"},
        "--kills": {"type": int, "help": "how many kills of the virtual board"},
    }
    try:
        return proving.run(_prove, "proves the flash store", arguments, more)
    except MicroPythonMissing as missing:
        print(missing, file=sys.stderr)
        return _EXIT_MISSING


def _prove(options: argparse.Namespace, say: proving.Say) -> tuple[dict[str, object], bool]:
    seed = options.seed
    cuts = options.cuts or (20_000 if options.quick else 1_000_000)
    kills = options.kills or (10 if options.quick else 200)
    say("planted mistakes")
    caught = flash_plan.catch_controls(seed)
    for control, how in caught.items():
        say(f"  {control}: {how.partition('; ledger')[0][:160] or 'NOT CAUGHT'}")
    say("wear")
    wear = flash_wear.measure()
    for line in flash_wear.table(wear):
        say("  " + line)
    say(f"{kills} kills of a virtual board")
    with tempfile.TemporaryDirectory(prefix="umqtt-prove-") as folder:
        killed = flash_kills.count_kills(Path(folder), kills, seed)
    say(f"  {killed}")
    say(f"{cuts} power cuts")
    tally = flash_plan.sweep(cuts, seed, lambda done: say(f"  {done}"))
    for failure in tally.failures[:20]:
        say(failure)
    found = {
        "cuts": tally.cuts,
        "kills": killed.kills,
        "lost": tally.lost + killed.lost,
        "duplicated": tally.duplicated + killed.duplicated,
        "out_of_order": tally.out_of_order + killed.out_of_order,
        "other": tally.other,
        "controls": len(caught),
        "controls_caught": sum(1 for how in caught.values() if how),
        "wear_over_budget": flash_wear.over_budget(wear) + flash_wear.too_slow(wear),
    }
    is_broken = any(found[name] for name in ("lost", "duplicated", "out_of_order", "other", "wear_over_budget"))
    return found, is_broken or found["controls_caught"] != found["controls"]


if __name__ == "__main__":
    sys.exit(main())
