"""Sweeps a scenario over every flash operation; the check lets the device come to an end and applies the laws.

As a program, inside MicroPython: jobs come on stdin, one `GEOMETRY SCENARIO MOST SEED` a line, where SCENARIO is the
name of a fixed one or the seed of a random one; an answer goes out for each: `cuts N` or `failed TEXT`.
"""

import sys

import scenarios
from device import Device, Ledger, check, copy_ledger
from umqtt_testkit.flash import PowerCutFlash

from umqtt_robust.flash import FlashStore

BLOCKS = 24


def sweep(geometry, scenario, make_store=FlashStore, most=None, second_cuts=1, seed=1):
    """Returns how many cuts were made; raises AssertionError, which names the cut, when a law was broken."""

    def run(root, ledger):
        ledger["of"] = Ledger()

        def life():
            return Device(root, ledger["of"], make_store)

        scenario(life(), life)

    def recover(root, ledger):
        if "of" not in ledger:
            ledger["of"] = Ledger()
        device = Device(root, ledger["of"], make_store)
        device.online()
        if ledger["of"].session_lost:
            # Under the packet ids of what the broker has forgotten: the stale messages come to an end, too.
            for number in range(3):
                device.command(b"command %d of life %d" % (number, len(device.ledger.tried)))
        device.publish(b"last %d" % len(device.ledger.tried), 2)
        device.settle()
        check(ledger["of"])

    with PowerCutFlash(geometry, BLOCKS) as flash:
        return flash.sweep(run, recover, most, second_cuts, seed, copy_ledger)


def scenario_named(name):
    return scenarios.random_scenario(int(name)) if name.isdigit() else getattr(scenarios, name)


def main():
    for line in sys.stdin:
        geometry, name, most, seed = line.split()
        try:
            n = sweep(geometry, scenario_named(name), most=int(most) or None, seed=int(seed))
            print("cuts", n)
        except AssertionError as error:
            print("failed", str(error).replace("\n", " "))


if __name__ == "__main__":
    main()
