"""umqtt keys: manages the keys by which boards know their owner's commands, and sends new secrets over the air."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umqtt_cli.console import print_result, print_table, say
from umqtt_cli.errors import EXIT_DEVICE, EXIT_USAGE, KitError
from umqtt_cli.escape import printable
from umqtt_cli.groups import CommandGroup
from umqtt_cli.numbers import Finite
from umqtt_kit.device.choose import choose, device_option
from umqtt_kit.mqtt import broker_options

if TYPE_CHECKING:
    from umqtt_kit.mqtt import Access


@click.group(cls=CommandGroup)
def keys() -> None:
    """Make, rotate and list the keys of boards.

    A board accepts reboot, update, rotate and most of set only if they are signed with its key, which the broker does
    not have. The keys are in keys.json beside the project's umqtt.toml, without one in this folder, or in the file that
    UMQTT_KEYS names. Anyone who has that file can control the boards.

    \b
    Example:
      umqtt keys make
      umqtt keys rotate pump-7
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
        {"device": name, "made": entry.get("made"), "counter": entry["counter"], "rotating": "other" in entry}
        for name, entry in sorted(store.read().items())
    ]
    if as_json:
        click.echo(json.dumps({"file": str(store.file), "keys": found}))
        return
    print_table(
        ("device id", "made", "rotation"),
        ((one["device"], str(one["made"]), "not finished" if one["rotating"] else "") for one in found),
    )


@keys.command()
@click.argument("device")
@click.option("--from", "source", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Rotate the passwords and certificates in this file, not the key.")  # fmt: skip
@click.option("--timeout", type=Finite(min=1), default=900.0, show_default=True, metavar="SECONDS",
              help="For everything, until the new secrets have delivered readings.")  # fmt: skip
@broker_options
def rotate(device: str, source: Path | None, timeout: float, access: Access) -> None:
    """Replace the key of DEVICE over the air, or with --from its passwords, CA and certificate.

    What is new is sealed with the key of the device, so that the broker does not see it. The device tries it on its
    next connection and keeps it once readings have been delivered with it for a minute; otherwise it goes back by
    itself, and this command ends with 5. The broker must know the old and the new password until then.

    FILE is as for umqtt provision --from, without settings: {"wifi": [{"ssid": "workshop", "password": "…"}],
    "mqtt": {"password": "…"}, "tls": {"ca": "ca.pem"}}

    \b
    Example:
      umqtt keys rotate pump-7
      umqtt keys rotate pump-7 --from new.json
    """
    from umqtt_kit.keys import Keys
    from umqtt_kit.ota.release import sealed_release
    from umqtt_kit.ota.updater import Updater

    secrets = _secrets(source) if source is not None else {}
    store = Keys()
    if device not in store.read():
        raise KitError(f"{store.file} has no key of {device} — make one over the cable: umqtt keys make", EXIT_USAGE)
    with Updater(access, device) as updater:
        updater.find_key(timeout)
        new_key = None
        if source is None:
            new_key = store.offer(device)
            secrets = {"commands": {"key": new_key}}
        release = sealed_release(store.seal(device, json.dumps(secrets, ensure_ascii=False).encode()))
        updater.serve(release, lambda size: None)
        say(f"{device} is sent the new secrets, and tries them")
        updater.update({"mqtt": True, "sha256": release.manifest}, timeout, "rotate")
        if source is None:
            updater.find_key(timeout)
    if new_key is not None and store.read()[device]["key"] != new_key:
        raise KitError(f"{device} still has its old key — repeat the command", EXIT_DEVICE)
    print_result(printable(f"{device} uses {', '.join(sorted(secrets)) if source else 'its new key'}"))


def _secrets(source: Path) -> dict[str, Any]:
    """Return the sections of secrets.json that a file changes. Raises KitError (exit code 2)."""
    from umqtt_kit.provision.values import change_from_json, read_private

    change = change_from_json(read_private(source), str(source), source.parent)
    secrets: dict[str, Any] = {
        "wifi": {ssid: password for ssid, password in change.wifi or () if password is not None},
        "mqtt": change.mqtt,
        "tls": {name: content.decode() for name, content in change.tls.items()},
    }
    secrets = {section: values for section, values in secrets.items() if values}
    if change.settings or not secrets:
        raise KitError(f"{source} must hold wifi, mqtt or tls, and no settings — for those: umqtt cmd", EXIT_USAGE)
    return secrets
