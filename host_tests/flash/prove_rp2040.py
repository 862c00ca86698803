"""Proves the flash store on a chip's own image: `make prove-rp2040 IMAGE=FILE.uf2`, or
`python host_tests/flash/prove_rp2040.py FILE.uf2 [--cuts N] [--seed N] [--laws LIST] [--peer FILE] [--json]`.

An emulator runs the image. A program publishes with a FlashStore to the paired broker over UART 0, and the power
fails 20 times, each time in the middle of a flash operation. The broker's side counts whether all that publish()
promised arrived. Then the client's laws run on the chip (chip_laws.py), and a table shows what the client costs: time
and cycles of the chip, heap, flash operations. --laws: which files of host_tests/laws, separated by commas; none: none.
--peer: the file umqtt/simple.py of MicroPython, to compare the heap. With --json it prints one JSON object at the
end. Exit code: 0; 1 if a reading was lost, came twice at QoS 2 or came out of order, or a law does not hold; 2 if the
file is not an image; 6 if the emulator is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import tempfile
from pathlib import Path

import chip
import chip_costs
import chip_laws
from umqtt_kit.errors import KitError

_EXIT_BROKEN = 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="proves the flash store on a chip's own image")
    parser.add_argument("image", type=Path, help="UF2 file of MicroPython for RP2040")
    parser.add_argument("--cuts", type=int, default=20, help="how many power cuts")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a new one is chosen and printed")
    parser.add_argument("--laws", default=",".join(chip_laws.LAWS), help="files of host_tests/laws, or none")
    parser.add_argument("--peer", type=Path, help="umqtt/simple.py of MicroPython")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else on stdout")
    options = parser.parse_args(arguments)
    seed = random.randrange(1, 1_000_000) if options.seed is None else options.seed

    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix="umqtt-prove-") as folder:
            say(f"seed {seed}: {options.cuts} power cuts")
            counted = chip.count_cuts(
                Path(folder), options.image, options.cuts, seed, say=lambda line: say(f"  {line}")
            )
            say(f"  {counted}")
        laws = () if options.laws == "none" else tuple(options.laws.split(","))
        with tempfile.TemporaryDirectory(prefix="umqtt-prove-") as folder:
            results = chip_laws.run(Path(folder), options.image, laws, say) if laws else []
        failed = [result for result in results if result.outcome == "failed"]
        for result in failed:
            say(f"{result.law}: {result.test}\n{result.report}")
        with tempfile.TemporaryDirectory(prefix="umqtt-prove-") as folder:
            costs = chip_costs.measure(Path(folder), options.image, options.peer)
    except KitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for line in chip_costs.table(costs):
        say(line)
    tables = {"laws": [dataclasses.asdict(one) for one in results], "costs": [dataclasses.asdict(one) for one in costs]}
    result = {**dataclasses.asdict(counted), "seed": seed, **tables}
    if options.json:
        print(json.dumps(result))
    return _EXIT_BROKEN if counted.lost or counted.duplicated or counted.out_of_order or failed else 0


if __name__ == "__main__":
    sys.exit(main())
