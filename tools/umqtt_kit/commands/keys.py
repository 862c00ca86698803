"""umqtt keys: the keys by which boards know their owner's commands."""

from __future__ import annotations

import json

import click

from spark_ingest.printable import printable
from umqtt_kit.console import print_result, results
from umqtt_kit.device.choose import choose, device_option
from umqtt_kit.errors import EXIT_USAGE, KitError


@click.group()
def keys() -> None:
    """Make and list the keys of boards.

    A board takes reboot, update and most of set only signed with its key, which the broker has not. Keys lie in
    keys.json in this folder, or in the file that UMQTT_KEYS names: who has that file owns the boards.

    \b
    Example:
      umqtt keys make
      umqtt keys list
    """


@keys.command()
@device_option
def make(device: str) -> None:
    """Give the board on the cable a new key.

    \b
    Example:
      umqtt keys make --device /dev/ttyACM0
    """
    from umqtt_kit.device import Board, read_configuration
    from umqtt_kit.keys import Keys
    from umqtt_kit.provision.values import Change
    from umqtt_kit.provision.write import provision

    port = choose(device)
    with Board(port) as board:
        name = (read_configuration(board).settings or {}).get("device_id") or board.info().unique_id
    if not name:
        raise KitError(f"{port.name} has no device id — tell it who it is: umqtt provision", EXIT_USAGE)
    store = Keys()
    key = store.offer(name)
    provision(port, Change(commands={"key": key}))
    store.accept(name, key)
    print_result(printable(f"{name} has a key of its own, in {store.file} too"))


@keys.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_keys(as_json: bool) -> None:
    """List whose keys there are; the keys themselves are never shown.

    \b
    Example:
      umqtt keys list --json
    """
    from umqtt_kit.keys import Keys

    store = Keys()
    found = [
        {"device": name, "made": entry.get("made"), "counter": entry["counter"]}
        for name, entry in sorted(store.read().items())
    ]
    if as_json:
        click.echo(json.dumps({"file": str(store.file), "keys": found}))
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for title in ("device id", "made"):
        table.add_column(title)
    for one in found:
        table.add_row(printable(one["device"]), printable(str(one["made"])))
    results().print(table)
