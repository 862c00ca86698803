"""Proves the flash store on a chip's own image: `make prove-rp2040 IMAGE=FILE.uf2`, or
`python host_tests/flash/prove_rp2040.py FILE.uf2 [--quick] [--cuts N] [--seed N] [--laws LIST] [--peer FILE] [--json]`.

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
import sys
import tempfile
from pathlib import Path

import chip
import chip_costs
import chip_laws
import proving

from umqtt_cli.errors import KitError


def main(arguments: list[str] | None = None) -> int:
    more = {
        "image": {"type": Path, "help": "UF2 file of MicroPython for RP2040"},
        "--cuts": {"type": int, "help": "how many power cuts"},
        "--laws": {"default": ",".join(chip_laws.LAWS), "help": "files of host_tests/laws, or none"},
        "--peer": {"type": Path, "help": "umqtt/simple.py of MicroPython"},
    }
    try:
        return proving.run(_prove, "proves the flash store on a chip's own image", arguments, more)
    except KitError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _prove(options: argparse.Namespace, say: proving.Say) -> tuple[dict[str, object], bool]:
    cuts = options.cuts or (3 if options.quick else 20)
    say(f"{cuts} power cuts")
    with tempfile.TemporaryDirectory(prefix="umqtt-prove-") as folder:
        counted = chip.count_cuts(Path(folder), options.image, cuts, options.seed, say=lambda line: say(f"  {line}"))
    say(f"  {counted}")
    laws = () if options.quick or options.laws == "none" else tuple(options.laws.split(","))
    with tempfile.TemporaryDirectory(prefix="umqtt-prove-") as folder:
        results = chip_laws.run(Path(folder), options.image, laws, say) if laws else []
    failed = [result for result in results if result.outcome == "failed"]
    for result in failed:
        say(f"{result.law}: {result.test}\n{result.report}")
    with tempfile.TemporaryDirectory(prefix="umqtt-prove-") as folder:
        costs = chip_costs.measure(Path(folder), options.image, options.peer)
    for line in chip_costs.table(costs):
        say(line)
    tables: dict[str, object] = {}
    if options.json:
        tables["laws"] = [dataclasses.asdict(one) for one in results]
        tables["costs"] = [dataclasses.asdict(one) for one in costs]
    is_broken = bool(counted.lost or counted.duplicated or counted.out_of_order or failed)
    return {**dataclasses.asdict(counted), **tables}, is_broken


if __name__ == "__main__":
    sys.exit(main())
