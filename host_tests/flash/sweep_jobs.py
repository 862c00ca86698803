"""Sweeps a scenario over every flash operation; the check lets the device finish and applies the laws.

Run as a program inside MicroPython, it reads jobs from stdin, one per line: `GEOMETRY SCENARIO STORE MOST SEED`.
SCENARIO is the name of a fixed one or the seed of a random one; STORE is FlashStore, LateStore or one of
sweep_controls; MOST is the size of the sample, 0 for everything. For each job it prints one line: `@ cuts N` or
`@ failed TEXT`.
"""

import sys

import sweep_controls
import sweep_scenarios
from sweep_device import Device, LateStore, Ledger, check, copy_ledger
from umqtt_testkit.flash import PowerCutFlash

from umqtt_robust.flash import FlashStore

# Just enough for all folders of the store, because the flash is copied for every cut.
BLOCKS = 24
STORES = {"FlashStore": FlashStore, "LateStore": LateStore}
CHUNKS = {"esp32": 120, "rp2": 504, "fat": 120}


def sweep(geometry, scenario, store=FlashStore, most=None, second_cuts=1, seed=1):
    """Return how many cuts were made. Raises AssertionError, naming the cut, if a law was broken."""
    chunk = CHUNKS[geometry]

    def run(root, ledger):
        ledger["of"] = Ledger()

        def life():
            return Device(root, ledger["of"], store, chunk)

        scenario(life(), life)

    def recover(root, ledger):
        if "of" not in ledger:
            ledger["of"] = Ledger()
        device = Device(root, ledger["of"], store, chunk)
        device.ledger.broker.acknowledge = True
        device.online()
        life = len(device.ledger.tried)
        if device.ledger.session_lost:
            # New messages under packet ids that the broker has forgotten: the stale messages must finish too.
            for number in range(3):
                device.command(b"command %d of life %d" % (number, life))
        device.publish(b"last %d" % life, 2)
        device.settle()
        check(device.ledger)

    with PowerCutFlash(geometry, BLOCKS) as flash:
        return flash.sweep(run, recover, most, second_cuts, seed, copy_ledger)


def main():
    for line in sys.stdin:
        geometry, name, store, most, seed = line.split()
        scenario = sweep_scenarios.random_scenario(int(name)) if name.isdigit() else getattr(sweep_scenarios, name)
        store = STORES.get(store) or getattr(sweep_controls, store)
        try:
            n = sweep(geometry, scenario, store, int(most) or None, seed=int(seed))
            print("@ cuts", n)
        except AssertionError as error:
            print("@ failed", str(error).replace("\n", " "))


if __name__ == "__main__":
    main()
