"""umqtt provision: tells boards who they are, which Wi-Fi to join and where their broker is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from umqtt_cli.clouds import CLOUDS
from umqtt_cli.console import print_result, print_table, say
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.escape import printable
from umqtt_kit.device.choose import choose, device_option, interrupt_option

if TYPE_CHECKING:
    from umqtt_kit.device import Port
    from umqtt_kit.provision.values import Change
    from umqtt_kit.provision.write import Provisioned


@click.command()
@device_option
@click.option(
    "--board",
    "board_name",
    metavar="NAME",
    help="Folder under boards/, noted in its settings.",
)
@click.option("--from", "source", metavar="FILE|-", help="Take the values from a JSON file, or from stdin.")
@click.option("--set", "pairs", metavar="KEY=VALUE", multiple=True, help="One key of settings.json; may be repeated.")
@click.option("--cloud", type=click.Choice(list(CLOUDS)), help="Topics, payloads and login as that cloud wants them.")
@click.option("--show", is_flag=True, help="Only show what is on the board, secrets hidden.")
@click.option("--portal", is_flag=True, help="Give it a new code, with which a phone can set it up without a cable.")
@interrupt_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def provision(
    device: str, board_name: str | None, source: str | None, pairs: tuple[str, ...], cloud: str | None,
    show: bool, portal: bool, interrupt: bool, as_json: bool,
) -> int:  # fmt: skip
    """Give a board its device id, Wi-Fi, broker and credentials.

    Without --from, --set and --portal it asks for them; with --cloud, only for what that cloud needs. With
    --cloud and --from, the password is what the cloud calls key or token.

    Everything is checked by the firmware's own rules before it is written; what is not asked for stays as it is.
    Passwords are typed without being shown, or come from a file that only you may read: never from the command line.

    FILE: {"settings": {"device_id": "pump-7", "brokers": ["mqtts://broker.example"]}, "wifi": [{"ssid": "workshop",
    "password": "…"}], "mqtt": {"username": "pump-7", "password": "…"}, "tls": {"ca": "ca.crt"}}

    \b
    Example:
      umqtt provision
      umqtt provision --set interval_ms=5000
      umqtt provision --cloud aws
      umqtt provision --device ttyACM0 --from pump-7.json
      umqtt provision --portal
    """
    from umqtt_kit.device.ports import board_description
    from umqtt_kit.provision.write import provision as provision_one

    if sum((source is not None, bool(pairs), show, portal)) > 1:
        raise click.UsageError("--from, --set, --show and --portal exclude each other")
    if cloud is not None and (pairs or show or portal):
        raise click.UsageError("--cloud goes with --from, or with questions")
    if board_name is not None:
        if show:
            # A board named in umqtt.toml is ignored here.
            if click.get_current_context().get_parameter_source("board_name") is ParameterSource.COMMANDLINE:
                raise click.UsageError("--board goes with --from, --set, --portal or questions")
            board_name = None
        else:
            board_description(board_name)
    port = choose(device)
    if show:
        return _show(port, interrupt, as_json)
    if portal:
        return _give_code(port, board_name, as_json)
    change = _change(port, source, pairs, cloud)
    if board_name is not None:
        change.settings["board"] = board_name
    _report(provision_one(port, change), as_json)
    return 0


def _change(port: Port, source: str | None, pairs: tuple[str, ...], cloud: str | None) -> Change:
    from umqtt_kit.provision.cloud import apply
    from umqtt_kit.provision.values import Change, change_from_json, read_private, set_from_arguments

    if pairs:
        return Change(settings=set_from_arguments(pairs))
    if source is None:
        return _asked(port, cloud)
    file = Path(source)
    text, where, folder = (sys.stdin.buffer.read(), "stdin", Path()) if source == "-" else (
        read_private(file), source, file.parent
    )  # fmt: skip
    change = change_from_json(text, where, folder)
    return apply(cloud, change) if cloud else change


def _asked(port: Port, cloud: str | None) -> Change:
    from umqtt_kit.device import look, read_configuration
    from umqtt_kit.device.guess import check_network
    from umqtt_kit.provision import cloud as clouds
    from umqtt_kit.provision.questions import ask, ask_sensors
    from umqtt_kit.provision.sensors import SensorCheck

    if not sys.stdin.isatty():
        raise KitError("there is no terminal to ask on — use --from FILE.json or --from -", EXIT_USAGE)
    # The board runs while the questions are answered, since it may have a watchdog, and readings to take. The write
    # restarts it.
    with look(port, interrupt=True) as board:
        info = board.info()
        check_network(info, port)
        current = read_configuration(board)
        sensors = SensorCheck.of(board, info, port, (current.settings or {}).get("board"))
        on_bus = sensors.scan(board)
    change = clouds.ask(cloud, current, info) if cloud else ask(current, info, port)
    ask_sensors(change, current, sensors, on_bus)
    return change


def _show(port: Port, interrupt: bool, as_json: bool) -> int:
    from umqtt_kit.device import look, read_configuration
    from umqtt_kit.provision.values import masked

    with look(port, interrupt=interrupt) as board:
        current = read_configuration(board)
    values = masked(current.settings, current.secrets)
    if as_json:
        click.echo(json.dumps({"port": port.name, **values}))
        return 0
    if current.settings is None:
        say(f"{port.name} has no settings yet: umqtt provision")
    for file, content in values.items():
        for key, value in (content or {}).items():
            print_result(f"{file}.{key} = {json.dumps(value, ensure_ascii=False)}")
    return 0


def _give_code(port: Port, board_name: str | None, as_json: bool) -> int:
    from dataclasses import asdict

    from umqtt_kit.provision.portal import give_code

    given = give_code(port, board_name)
    if as_json:
        click.echo(json.dumps(asdict(given)))
        return 0
    print_result(f"Wi-Fi {given.network}, password and code {given.code}, page http://192.168.4.1")
    say("For the board's label: it is shown once. The page opens where no network is known, or by the boot button.")
    return 0


def _report(one: Provisioned, as_json: bool) -> None:
    from umqtt_kit.provision.write import about_dot

    if problem := about_dot(one.device_id):
        say(problem)
    if as_json:
        click.echo(json.dumps({"boards": [one.as_dict()]}))
        return
    written = ", ".join(one.changed) or "nothing (no change)"
    print_table(("port", "device id", "written"), [(one.port, one.device_id, written)])
    say(f"{one.device_id}: {one.room}")
    for ssid in one.open:
        say(f"{one.device_id}: joins {printable(ssid)} without a password; if it has one: umqtt provision")
    for name, problem, found in one.sensors:
        metrics = ", ".join(f"{metric} {value}" for metric, value in sorted(found.items())) or "no value yet"
        said = f"{problem} — look at its wires and its pins, or correct it: umqtt provision" if problem else metrics
        say(printable(f"{one.device_id}: sensor {name}: {said}"))
    if one.deploy:
        say("The firmware there lacks a module that these settings need: umqtt deploy")
