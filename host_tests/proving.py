"""What all proofs share: their options, a seed that is printed, where they report, and the result as the last line."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Say = Callable[[str], None]


def run(
    prove: Callable[[argparse.Namespace, Say], tuple[Mapping[str, object], bool]],
    what: str,
    arguments: list[str] | None,
    more: Mapping[str, Mapping[str, Any]],
) -> int:
    """Run a proof and print its result; return the exit code: 0, or 1 if a law was broken.

    prove: gets the options, with a seed, and what prints a line of progress; returns its figures and whether a law was
    broken. what: for --help. arguments: None: those of the process. more: further options, with their settings.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--quick", action="store_true", help="a sample, in less than a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else on stdout")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a new one is chosen and printed")
    for name, settings in more.items():
        parser.add_argument(name, **settings)
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.randrange(1, 1_000_000)

    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    say(f"seed {options.seed}")
    begun = time.monotonic()
    found, is_broken = prove(options, say)
    result = {**found, "seed": options.seed, "seconds": round(time.monotonic() - begun, 1)}
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    return 1 if is_broken else 0
