"""umqtt.toml: settings that the commands of one project share, so that nothing is typed twice.

    broker = "mqtts://broker.example"      # --broker, and so on: each key is the option of that name; or a list
    username = "owner"
    password_file = "owner.password"
    ca = "certs/ca.pem"
    board = "ESP32_GENERIC"
    sensors = "sensors"
    fleet = "fleet.txt"

The nearest file counts, from the current folder upwards. Paths in it are relative to the file, and of files in its
folder. The command line and the environment override it.

The file may come with somebody else's folder, and name a broker that is to get this user's password. So it counts only
after this user has allowed it, as it is: the first command that would use it asks, or `umqtt allow` says so.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.escape import printable
from umqtt_cli.toml_file import read_toml

FILE = "umqtt.toml"
_FILES = ("password_file", "ca", "cert", "key", "sensors")
KEYS = ("broker", "username", "mqtt_version", *_FILES, "device", "board", "fleet")
# `umqtt collect` takes either --broker or a file of its own, --board of `umqtt size` and --broker of `umqtt prove` mean
# something else, and --ca of `umqtt spool` is not the broker's.
_NOT_FOR = ("collect", "prove", "size", "spool")
# `umqtt board --device` means something else: what is connected to a virtual board.
_CONNECTED = ("board", "device")


@dataclass
class Project:
    """A umqtt.toml and its values; paths of files are absolute. file: None if there is none."""

    file: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)
    _is_allowed: bool = False

    @property
    def is_allowed(self) -> bool:
        """True if this user has allowed the file as it is."""
        self._is_allowed = self._is_allowed or self.file is None or self._mark().exists()
        return self._is_allowed

    def allow(self) -> None:
        """Note that this user allows the file as it is. Raises KitError."""
        try:
            self._mark().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._mark().touch(mode=0o600)
        except OSError as error:
            raise KitError(f"{error.filename}: {error.strerror} — set XDG_STATE_HOME to a folder of yours",
                           EXIT_USAGE) from error  # fmt: skip

    def deny(self) -> None:
        """Take the permission back. Raises KitError."""
        self._is_allowed = False
        try:
            self._mark().unlink(missing_ok=True)
        except OSError as error:
            raise KitError(f"{error.filename}: {error.strerror} — remove it yourself", EXIT_USAGE) from error

    def require_allowed(self) -> None:
        """Return if the user has allowed the file, or allows it now on the terminal. Raises KitError (exit code 2)."""
        if self.is_allowed:
            return
        shown = printable(str(self.file))
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise KitError(f"{shown} is new, or was changed — read it, then: umqtt allow", EXIT_USAGE)
        # Imported here: most commands ask nothing.
        from umqtt_cli.console import say

        for line in [f"{self.file} is new, or was changed. It says:", *self.lines()]:
            say(line)
        if not click.confirm("Use it from now on?", err=True):
            raise KitError(f"{shown} is not used — give its options yourself, or work elsewhere", EXIT_USAGE)
        self.allow()

    def lines(self) -> list[str]:
        """Return the values as lines, which console.say() makes safe for the terminal."""
        return [f"  {key} = {value}" for key, value in self.values.items()]

    def _mark(self) -> Path:
        """Return the file whose existence says that the project's file is allowed with its current content."""
        assert self.file is not None
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        known_by = hashlib.sha256(os.fsencode(self.file.resolve()) + b"\0" + self.file.read_bytes()).hexdigest()
        return state / "umqtt-robust" / "allowed" / known_by


def find_project(start: Path) -> Path | None:
    """Return the nearest umqtt.toml from a folder upwards; None if there is none."""
    return next((folder / FILE for folder in (start, *start.parents) if (folder / FILE).is_file()), None)


def read_project(start: Path) -> Project:
    """Return the project of a folder, with the nearest umqtt.toml. Raises KitError (exit code 2)."""
    file = find_project(start)
    if file is None:
        return Project()
    try:
        if file.stat().st_uid not in (os.getuid(), 0):
            # In a folder that others may write to, their file could send this user's password to their broker.
            raise KitError(f"{file} belongs to another user — take it over with chown, or work elsewhere", EXIT_USAGE)
        values = read_toml(file)
    except (OSError, ValueError) as error:
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
            values[key] = str(_inside(file, key, value))
    return Project(file, values)


def _inside(file: Path, key: str, value: str) -> Path:
    """Return the path that a key names. Raises KitError if it leads out of the project's folder, also by a link."""
    found = file.parent / value
    if not found.resolve().is_relative_to(file.parent.resolve()):
        option = key.replace("_", "-")
        raise KitError(
            f"{file}: {key} is outside of the project's folder — put the file there, or give --{option} yourself",
            EXIT_USAGE,
        )
    return found


def defaults_of(
    command: click.Command, values: dict[str, Any], check: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Return the defaults that `values` give a command's options, by parameter name; for a group, by command.

    check: called when the first of them is used; raises KitError if they may not be.
    """
    if command.name in _NOT_FOR:
        return {}
    if isinstance(command, click.Group):
        return {name: defaults_of(part, values, check) for name, part in command.commands.items()}
    found: dict[str, Any] = {}
    for option in command.params:
        key = max(option.opts, key=len).removeprefix("--").replace("-", "_")
        if isinstance(option, click.Option) and key in values and option.name and (command.name, key) != _CONNECTED:
            value = values[key]
            found[option.name] = _Checked([value] if option.multiple and isinstance(value, str) else value, check)
    return found


class _Checked:
    """A default that click asks for only if the command line and the environment give no value."""

    def __init__(self, value: Any, check: Callable[[], None]) -> None:
        self._value = value
        self._check = check

    def __call__(self) -> Any:
        self._check()
        return self._value

    def __str__(self) -> str:  # in --help
        return str(self._value)
