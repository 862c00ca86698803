"""Proves the flash store: `make prove-flash`, or `python host_tests/flash/prove.py [--quick] [--json] [--seed N]`.

Cuts the power at flash operations (a million times; quick: 20,000), kills a virtual board at random (200 times; 10),
checks that planted mistakes are caught, and measures the wear. With --json it prints one JSON object at the end:
cuts, kills, lost, duplicated, out_of_order, other (laws broken in another way), controls, controls_caught,
wear_over_budget, seed, seconds. Exit code: 0; 1 if a law was broken, a mistake not caught or a budget exceeded; 6 if
MicroPython is missing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import flash_kills
import flash_plan
import flash_wear
from umqtt_testkit.interpreter import MicroPythonMissing

_EXIT_BROKEN = 1
_EXIT_MISSING = 6


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="proves the flash store")
    parser.add_argument("--quick", action="store_true", help="a sample, in less than a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else on stdout")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a new one is chosen and printed")
    parser.add_argument("--cuts", type=int, help="how many power cuts at least")
    parser.add_argument("--kills", type=int, help="how many kills of the virtual board")
    options = parser.parse_args(arguments)
    seed = random.randrange(1, 1_000_000) if options.seed is None else options.seed
    cuts = options.cuts or (20_000 if options.quick else 1_000_000)
    kills = options.kills or (10 if options.quick else 200)

    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    begun = time.monotonic()
    try:
        say(f"seed {seed}: planted mistakes")
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
    except MicroPythonMissing as missing:
        print(missing, file=sys.stderr)
        return _EXIT_MISSING
    for failure in tally.failures[:20]:
        say(failure)
    result = {
        "cuts": tally.cuts,
        "kills": killed.kills,
        "lost": tally.lost + killed.lost,
        "duplicated": tally.duplicated + killed.duplicated,
        "out_of_order": tally.out_of_order + killed.out_of_order,
        "other": tally.other,
        "controls": len(caught),
        "controls_caught": sum(1 for how in caught.values() if how),
        "wear_over_budget": flash_wear.over_budget(wear) + flash_wear.too_slow(wear),
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
    }
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    broken = any(result[name] for name in ("lost", "duplicated", "out_of_order", "other", "wear_over_budget"))
    return _EXIT_BROKEN if broken or result["controls_caught"] != result["controls"] else 0


if __name__ == "__main__":
    sys.exit(main())
