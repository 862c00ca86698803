"""Asks a person at a terminal what a board is to be told. Passwords are typed without being shown."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from spark_ingest.escape import printable
from umqtt_kit.console import say
from umqtt_kit.device import Configuration, Info, Port
from umqtt_kit.device.guess import itself
from umqtt_kit.errors import EXIT_USAGE, KitError
from umqtt_kit.firmware_settings import settings_module
from umqtt_kit.provision.sensors import SensorCheck, line_of
from umqtt_kit.provision.values import Change, read_certificate

_NONE = "-"
_EXAMPLE_BROKER = "mqtts://192.168.1.2"


def ask(current: Configuration, info: Info, port: Port, sensors: SensorCheck, on_bus: str) -> Change:
    """Ask for all values: Enter keeps what is shown in brackets, `-` takes it away.

    on_bus: what answers on the board's I2C pins, as text.

    Raises KitError (exit code 2) without a terminal.
    """
    if not sys.stdin.isatty():
        raise KitError("there is no terminal to ask on — use --from FILE.json, --from - (stdin) or --csv", EXIT_USAGE)
    # Values that the board itself would refuse are not offered.
    settings = {key: value for key, value in (current.settings or {}).items() if not _problem(key, value)}
    secrets = current.sections
    change = Change()
    say("Enter keeps what stands in brackets, - takes it away.")
    named = _asked("Device id", settings.get("device_id") or info.unique_id, lambda text: _problem("device_id", text))
    change.settings["device_id"] = None if named in (None, info.unique_id) else named
    change.wifi = _ask_networks(settings.get("wifi", []), secrets.get("wifi", {}))
    change.settings["brokers"] = _ask_brokers(settings.get("brokers", []), port)
    mqtt = secrets.get("mqtt", {})
    known = mqtt.get("username")
    username = _asked("User name at the broker", known if isinstance(known, str) else None, None)
    change.mqtt["username"] = username
    if username is None:
        change.mqtt["password"] = None
    else:
        password = _ask_secret(f"Password of {username}", "password" in mqtt)
        if password is not None:
            change.mqtt["password"] = password
    if any(address.startswith("mqtts://") for address in change.settings["brokers"]):
        _ask_certificates(change, secrets.get("tls", {}))
    if on_bus:
        say(on_bus)
    change.settings["sensors"] = _ask_sensors(settings.get("sensors", []), sensors) or None
    return change


def _ask_networks(names: list[str], passwords: dict[str, str]) -> list[tuple[str, str | None]]:
    networks: list[tuple[str, str | None]] = []
    while True:
        number = len(networks)
        shown = names[number] if number < len(names) else None
        name = _asked(f"Wi-Fi network {number + 1}", shown, lambda text: _problem("wifi", [text]))
        if name is None:
            return networks
        while True:
            password = _ask_secret(f"Password of {name}", name in passwords)
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
        address = _asked(f"Broker {number + 1}{example}", shown, problem)
        if address is None and addresses:
            return addresses
        if address is None:
            say("A board needs at least one broker.")
        else:
            addresses.append(address)


def _ask_sensors(known: list[dict[str, Any]], sensors: SensorCheck) -> list[dict[str, Any]]:
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
        answer = _asked(f"Sensor {number + 1}{example}", shown, problem)
        if answer is None:
            return entries
        entries.append(sensors.entry_of(answer))


def _ask_certificates(change: Change, known: dict[str, str]) -> None:
    for key, what in (("ca", "CA certificate"), ("cert", "Certificate of the board"), ("key", "Private key of it")):
        if key == "key" and "cert" not in change.tls:
            return
        while True:
            answer = _asked(f"{what} (file on this computer)", "the one there" if key in known else None, None)
            if answer in (None, "the one there"):
                break
            try:
                change.tls[key] = read_certificate(Path(str(answer)).expanduser(), key)
                break
            except KitError as error:
                say(str(error))


def _asked(question: str, shown: str | None, problem: Callable[[str], str | None] | None) -> str | None:
    # Returns the answer, or None for none; asks again until the answer is valid.
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


def _ask_secret(question: str, known: bool) -> str | None:
    # Returns None if nothing was given: keep what is there, if anything.
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
