"""umqtt settings: sets the desired settings of groups of devices, and shows what the devices report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from umqtt_cli.console import print_table, say
from umqtt_cli.groups import CommandGroup
from umqtt_cli.numbers import Finite
from umqtt_kit.mqtt import broker_options

if TYPE_CHECKING:
    from umqtt_kit.desired import Row
    from umqtt_kit.mqtt import Access


@click.group(cls=CommandGroup)
def settings() -> None:
    """Send settings to groups of devices, and show which have them.

    \b
    Example:
      umqtt settings apply fleet.toml --broker mqtt://192.168.1.2
      umqtt settings show
    """


@settings.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--timeout", type=Finite(min=1), default=60.0, show_default=True, metavar="SECONDS",
              help="For the devices that are there.")  # fmt: skip
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def apply(file: Path, timeout: float, access: Access, as_json: bool) -> int:
    """Send the settings in FILE to the devices of its groups.

    The broker retains what is desired. A device that sleeps or is away takes it when it is back; one that has it
    already is sent nothing. What a device refuses is exit code 5.

    \b
    Example:
      umqtt settings apply fleet.toml
    """
    from umqtt_kit.desired import Twins, desired_of, named_in, read_groups

    groups = read_groups(file)
    with Twins(access, named_in(groups)) as twins:
        desired = desired_of(groups, twins.known)
        twins.apply(desired, timeout)
        return _show([twins.row(name) for name in desired], as_json)


@settings.command()
@click.argument("device", nargs=-1)
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(device: tuple[str, ...], access: Access, as_json: bool) -> int:
    """Show which devices have the settings that are desired of them. Drift is exit code 5.

    Name the devices where the broker does not say which there are, as RabbitMQ.

    \b
    Example:
      umqtt settings show --json
      umqtt settings show pump-1 pump-2
    """
    from umqtt_kit.desired import Twins

    with Twins(access, device) as twins:
        if not twins.managed:
            say(
                f"{access.where} retains desired settings of no device, or sends none to a subscription with a wildcard"
                " (RabbitMQ) — name the devices: umqtt settings show DEVICE"
            )
        return _show([twins.row(name) for name in twins.managed], as_json)


def _show(rows: list[Row], as_json: bool) -> int:
    exit_code = max((row.exit_code for row in rows), default=0)
    if as_json:
        devices = [{"device": row.device, "state": row.state, "text": row.text} for row in rows]
        click.echo(json.dumps({"ok": not exit_code, "devices": devices}))
        return exit_code
    print_table(("device", "state", "what differs, or why"), ((row.device, row.state, row.text) for row in rows))
    return exit_code
