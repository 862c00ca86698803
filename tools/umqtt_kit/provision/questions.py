"""Asks a person at a terminal what a board is to be told. Passwords are typed without being shown."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from umqtt_cli.console import say
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.escape import printable
from umqtt_kit.device import Configuration, Info, Port
from umqtt_kit.device.guess import itself
from umqtt_kit.firmware_settings import settings_module
from umqtt_kit.provision.sensors import SensorCheck, line_of
from umqtt_kit.provision.values import Change, read_certificate

_NONE = "-"
_EXAMPLE_BROKER = "mqtts://192.168.1.2"


def ask(current: Configuration, info: Info, port: Port) -> Change:
    """Ask for all values but the sensors: Enter keeps what is shown in brackets, `-` takes it away.

    Raises KitError (exit code 2) without a terminal.
    """
    if not sys.stdin.isatty():
        raise KitError("there is no terminal to ask on — use --from FILE.json, or --from - for stdin", EXIT_USAGE)
    change = begin(current, info)
    secrets = current.sections
    known_brokers = (current.settings or {}).get("brokers", [])
    change.settings["brokers"] = _ask_brokers([] if _problem("brokers", known_brokers) else known_brokers, port)
    mqtt = secrets.get("mqtt", {})
    known = mqtt.get("username")
    username = asked("User name at the broker", known if isinstance(known, str) else None, None)
    change.mqtt["username"] = username
    if username is None:
        change.mqtt["password"] = None
    else:
        password = ask_secret(f"Password of {username}", "password" in mqtt)
        if password is not None:
            change.mqtt["password"] = password
    if any(address.startswith("mqtts://") for address in change.settings["brokers"]):
        ask_certificates(change, secrets.get("tls", {}))
    return change


def begin(current: Configuration, info: Info) -> Change:
    """Ask for the device id and the networks, which every board needs."""
    # Values that the board itself would refuse are not offered.
    settings = {key: value for key, value in (current.settings or {}).items() if not _problem(key, value)}
    change = Change()
    say("Enter keeps what stands in brackets, - takes it away.")
    named = asked("Device id", settings.get("device_id") or info.unique_id, lambda text: _problem("device_id", text))
    change.settings["device_id"] = None if named in (None, info.unique_id) else named
    change.wifi = _ask_networks(settings.get("wifi", []), current.sections.get("wifi", {}))
    return change


def _ask_networks(names: list[str], passwords: dict[str, str]) -> list[tuple[str, str | None]]:
    networks: list[tuple[str, str | None]] = []
    while True:
        number = len(networks)
        shown = names[number] if number < len(names) else None
        name = asked(f"Wi-Fi network {number + 1}", shown, lambda text: _problem("wifi", [text]))
        if name is None:
            return networks
        while True:
            password = ask_secret(f"Password of {name}", name in passwords)
            problem = _secret_problem(name, password)
            if problem is None:
                break
            say(problem)
        # If no password was known, an empty answer means an open network.
        networks.append((name, password if password is not None or name in passwords else ""))


def _ask_brokers(known: list[str], port: Port) -> list[str]:
    addresses: list[str] = []

    def problem(text: str) -> str | None:
        return _problem("brokers", [*addresses, text]) or " — ".join(itself(port, [text]) or ()) or None

    while True:
        number = len(addresses)
        shown = known[number] if number < len(known) else None
        example = f", for instance {_EXAMPLE_BROKER}" if number == 0 and shown is None else ""
        address = asked(f"Broker {number + 1}{example}", shown, problem)
        if address is None and addresses:
            return addresses
        if address is None:
            say("A board needs at least one broker.")
        else:
            addresses.append(address)


def ask_sensors(change: Change, current: Configuration, sensors: SensorCheck, on_bus: str) -> None:
    """Ask for the sensors. on_bus: what answers on the board's I2C pins, as text."""
    known = (current.settings or {}).get("sensors", [])
    if _problem("sensors", known):
        known = []
    if on_bus:
        say(on_bus)
    entries: list[dict[str, Any]] = []

    def problem(text: str) -> str | None:
        if text == "?":
            return ", ".join(sensors.names)
        try:
            return _problem("sensors", [*entries, sensors.entry_of(text)])
        except KitError as error:
            return str(error)

    while True:
        number = len(entries)
        shown = line_of(known[number]) if number < len(known) else None
        example = ", for instance dht22 pin=4 name=cellar (? lists all)" if number == 0 and shown is None else ""
        answer = asked(f"Sensor {number + 1}{example}", shown, problem)
        if answer is None:
            change.settings["sensors"] = entries or None
            return
        entries.append(sensors.entry_of(answer))


def ask_certificates(change: Change, known: dict[str, str], *, certificate: bool = True) -> None:
    """Ask for the files of TLS; certificate: also for the board's own."""
    asked_for = (("ca", "CA certificate"), ("cert", "Certificate of the board"), ("key", "Private key of it"))
    for key, what in asked_for if certificate else asked_for[:1]:
        if key == "key" and "cert" not in change.tls:
            return
        while True:
            answer = asked(f"{what} (file on this computer)", "the one there" if key in known else None, None)
            if answer in (None, "the one there"):
                break
            try:
                change.tls[key] = read_certificate(Path(str(answer)).expanduser(), key)
                break
            except KitError as error:
                say(str(error))


def asked(question: str, shown: str | None, problem: Callable[[str], str | None] | None) -> str | None:
    """Return the answer, or None for none; ask again until it is valid. problem(answer): what is wrong, or None."""
    while True:
        # The default comes from the board, and may hold anything.
        words = f"{question} [{shown}]" if shown else question
        answer = click.prompt(printable(words), default=shown or "", show_default=False, err=True).strip()
        if answer in ("", _NONE):
            return None
        wrong = problem(answer) if problem else None
        if wrong is None:
            return answer
        say(wrong)


def ask_secret(question: str, known: bool) -> str | None:
    """Return the answer, which is not shown, or None if there was none: keep what is there, if anything."""
    return getpass.getpass(f"{question}{' [unchanged]' if known else ''}: ") or None


def _problem(key: str, value: Any) -> str | None:
    # Uses the firmware's own check; the broker is there because the settings need one.
    try:
        settings_module().check_settings({"brokers": [_EXAMPLE_BROKER], key: value})
    except ValueError as error:
        return str(error)
    return None


def _secret_problem(ssid: str, password: str | None) -> str | None:
    try:
        settings_module().check_secrets({"wifi": {ssid: password or ""}})
    except ValueError as error:
        return str(error)
    return None
