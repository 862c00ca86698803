"""umqtt fleet: runs simulated devices against any broker."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import click

from umqtt_cli.numbers import Finite
from umqtt_kit.console import print_result, say
from umqtt_kit.errors import EXIT_NETWORK, EXIT_USAGE, KitError
from umqtt_kit.mqtt import Access, broker_options, check_host, explain
from umqtt_kit.requirements import require_writable_folder

# Each device has a socket and a file of the readings it made; the process itself needs some more open files.
_FILES_PER_DEVICE = 2
_OTHER_FILES = 32

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--devices", type=click.IntRange(1, 50_000), default=10, show_default=True, help="How many.")
@click.option(
    "--interval-ms",
    type=click.IntRange(10, 86_400_000),
    default=1000,
    show_default=True,
    help="Milliseconds between two readings of a device.",
)
@click.option(
    "--keep-alive",
    type=click.IntRange(0, 65535),
    default=60,
    show_default=True,
    help="Seconds; 0 switches it off.",
)
@click.option("--name", default="sim", show_default=True, help="Devices are called NAME-0001 and so on.")
@click.option("--ground-truth", type=_FOLDER, help="Folder for a file of each device that lists every reading made.")
@click.option("--status", type=_FILE, help="File with counts, rewritten twice a second.")
@click.option("--seconds", type=Finite(0, min_open=True), help="Stop after this time.  [default: at Ctrl-C]")
@click.option(
    "--drain-seconds",
    type=Finite(0),
    default=20,
    show_default=True,
    help="How long to wait at the end for what the broker has not acknowledged.",
)
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, and nothing else on stdout.")
def fleet(
    devices: int, interval_ms: int, keep_alive: int, name: str, ground_truth: Path | None, status: Path | None,
    seconds: float | None, drain_seconds: float, access: Access, as_json: bool,
) -> int:  # fmt: skip
    """Run simulated devices that publish readings.

    Each has the device library's own client.

    Prints `connected N devices` once all have a link. After Ctrl-C or SIGTERM no more readings are taken;
    the devices send what they have and disconnect.

    \b
    Example:
      umqtt fleet --devices 100 --interval-ms 300 --broker mqtt://127.0.0.1:1883
      umqtt fleet --broker mqtts://broker.example --ca ca.pem --username sim
    """
    from umqtt_kit.fleet.device import Device, DeviceSettings
    from umqtt_kit.fleet.runner import Fleet, spread
    from umqtt_robust.errors import MQTTError

    if not name or set(name) & set("/+#\0 "):
        raise KitError(f"--name {name!r} becomes part of a topic — use letters, digits and -", EXIT_USAGE)
    if ground_truth is not None:
        require_writable_folder(ground_truth, "--ground-truth")
    if status is not None:
        require_writable_folder(status.parent, "--status")
    _allow_open_files(devices)
    for broker in access.each:
        check_host(broker.where)
    said: set[str] = set()

    def tell(broker: str, error: Exception) -> None:
        # Each message is printed once: all devices report the same error, and repeatedly.
        line = f"{broker}: {explain(error, access.timeout_s)}"
        if line not in said:
            said.add(line)
            say(line)

    settings = DeviceSettings(access, interval_ms, keep_alive, ground_truth=ground_truth, on_error=tell)
    try:
        members = [
            Device(f"{name}-{number:04d}", settings, first)
            for number, first in enumerate(spread(devices, interval_ms), 1)
        ]
    except MQTTError as error:
        line = f"--broker {access.where}: {error} — correct the address, or --ca, --cert, --key"
        raise KitError(line, EXIT_USAGE) from error
    runner = Fleet(members, status)
    runner.stop_on_signals()
    try:
        ready = f"connected {devices} devices"
        left = runner.serve(seconds, drain_seconds, lambda: say(ready) if as_json else print_result(ready))
    finally:
        runner.close()
    if left:
        raise KitError(
            f"{left} messages not acknowledged after {drain_seconds:g} s — "
            f"does a broker answer at {access.where}, and is the login right?",
            EXIT_NETWORK,
        )
    made = sum(member.made for member in members)
    refused = sum(member.refused for member in members)
    if as_json:
        click.echo(json.dumps({"devices": devices, "made": made, "refused": refused}))
    else:
        say(f"{made} readings made and acknowledged, {refused} refused by full outboxes")
    return 0


def _allow_open_files(devices: int) -> None:
    """Raise this process's limit of open files as needed. Raises KitError if the system forbids it."""
    needed = devices * _FILES_PER_DEVICE + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise KitError(
            f"{devices} devices need {needed} open files, {hard} are allowed — fewer --devices, or: ulimit -n {needed}",
            EXIT_USAGE,
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
