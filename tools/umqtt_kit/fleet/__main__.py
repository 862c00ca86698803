"""The demo's simulated devices, as a process of their own: `python -m umqtt_kit.fleet --devices N --broker URL …`.

It prints `connected N devices` once all have a link. After SIGTERM no more readings are taken; the devices send what
they have, and disconnect. Exit code: 0; 1 if the broker has not acknowledged everything within a minute; 2 if the
system does not allow that many open files.
"""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path

from umqtt_cli.errors import EXIT_LOST, EXIT_USAGE
from umqtt_kit.fleet.device import Device, DeviceSettings, device_ids
from umqtt_kit.fleet.runner import Fleet, spread

_DRAIN_S = 60.0
# Each device has a socket and a file of the readings it made; the process itself needs some more open files.
_FILES_PER_DEVICE = 2
_OTHER_FILES = 32


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="umqtt_kit.fleet", description="Simulated devices that publish readings.")
    parser.add_argument("--devices", type=int, required=True, help="how many")
    parser.add_argument("--interval-ms", type=int, default=250, help="between two readings of a device")
    parser.add_argument("--broker", required=True, metavar="URL")
    parser.add_argument("--ground-truth", type=Path, required=True, help="folder for a file of each device's readings")
    parser.add_argument("--status", type=Path, required=True, help="file with counts, rewritten twice a second")
    options = parser.parse_args(arguments)
    needed = options.devices * _FILES_PER_DEVICE + _OTHER_FILES
    if not _allow_open_files(needed):
        said = f"{options.devices} devices need {needed} open files — fewer devices, or: ulimit -n {needed}"
        print(said, file=sys.stderr)
        return EXIT_USAGE
    options.ground_truth.mkdir(parents=True, exist_ok=True)
    settings = DeviceSettings(options.broker, options.interval_ms, options.ground_truth)
    first = zip(device_ids(options.devices), spread(options.devices, options.interval_ms), strict=True)
    fleet = Fleet([Device(device_id, settings, at) for device_id, at in first], options.status)
    fleet.stop_on_signals()
    try:
        left = fleet.serve(_DRAIN_S, lambda: print(f"connected {options.devices} devices", flush=True))
    finally:
        fleet.close()
    if left:
        print(f"{left} messages not acknowledged after {_DRAIN_S:g} s", file=sys.stderr)
        return EXIT_LOST
    return 0


def _allow_open_files(needed: int) -> bool:
    """Raise this process's limit of open files as needed. Return False if the system forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return True
    if hard != resource.RLIM_INFINITY and hard < needed:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return True


if __name__ == "__main__":
    sys.exit(main())
