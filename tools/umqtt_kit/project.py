"""umqtt.toml: settings that the commands of one project share, so that nothing is typed twice.

    broker = "mqtts://broker.example"      # --broker, and so on: each key is the option of that name; or a list
    username = "owner"
    password_file = "owner.password"
    ca = "certs/ca.pem"
    board = "ESP32_GENERIC"
    sensors = "sensors"
    fleet = "fleet.txt"

The nearest file counts, from the current folder upwards. Paths in it are relative to the file. The command line and
the environment override it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from spark_ingest.errors import UsageError
from spark_ingest.toml_file import read_toml
from umqtt_kit.errors import EXIT_USAGE, KitError

FILE = "umqtt.toml"
_FILES = ("password_file", "ca", "cert", "key", "sensors")
KEYS = ("broker", "username", "mqtt_version", *_FILES, "device", "board", "fleet")
# `umqtt collect` takes either --broker or a file of its own, --board of `umqtt size` means something else, and --ca
# of `umqtt spool` is not the broker's.
_NOT_FOR = ("collect", "size", "spool")
# `umqtt board --device` means something else: what is connected to a virtual board.
_CONNECTED = ("board", "device")


def find_project(start: Path) -> Path | None:
    """Return the nearest umqtt.toml from a folder upwards; None if there is none."""
    return next((folder / FILE for folder in (start, *start.parents) if (folder / FILE).is_file()), None)


def read_project(start: Path) -> dict[str, Any]:
    """Return the values of the nearest umqtt.toml, {} without one. Raises KitError (exit code 2).

    Paths of files are absolute.
    """
    file = find_project(start)
    if file is None:
        return {}
    try:
        if file.stat().st_uid not in (os.getuid(), 0):
            # In a folder that others may write to, their file could send this user's password to their broker.
            raise KitError(f"{file} belongs to another user — take it over with chown, or work elsewhere", EXIT_USAGE)
        values = read_toml(file)
    except (OSError, UsageError) as error:
        raise KitError(f"{error} — correct it", EXIT_USAGE) from error
    for key, value in values.items():
        if key == "password":
            raise KitError(f"{file}: a password does not belong into this file — give password_file", EXIT_USAGE)
        if key not in KEYS:
            raise KitError(f"{file}: there is no key {key!r} — known are: {', '.join(KEYS)}", EXIT_USAGE)
        if key == "broker" and isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            continue
        if not isinstance(value, str) or not value:
            raise KitError(f"{file}: {key} must be text — put it in quotes", EXIT_USAGE)
        if key in _FILES or (key == "fleet" and (file.parent / value).is_file()):
            values[key] = str(file.parent / value)
    return values


def defaults_of(command: click.Command, values: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults that `values` give a command's options, by parameter name; for a group, by command."""
    if command.name in _NOT_FOR:
        return {}
    if isinstance(command, click.Group):
        return {name: defaults_of(part, values) for name, part in command.commands.items()}
    found: dict[str, Any] = {}
    for option in command.params:
        key = max(option.opts, key=len).removeprefix("--").replace("-", "_")
        if isinstance(option, click.Option) and key in values and option.name and (command.name, key) != _CONNECTED:
            value = values[key]
            found[option.name] = [value] if option.multiple and isinstance(value, str) else value
    return found
