"""Checks the sensors of a board's settings before they are written, and tries each one on the board."""

from __future__ import annotations

import ast
import contextlib
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from umqtt_cli.console import say
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.strict_json import loads
from umqtt_kit import minify
from umqtt_kit.data import firmware_folder
from umqtt_kit.deploy.filesets import driver_modules
from umqtt_kit.deploy.plan import SENSORS, read_record
from umqtt_kit.device import Board, DeviceError, Info, Port
from umqtt_kit.device.guess import guess_board
from umqtt_kit.device.ports import board_description
from umqtt_kit.doctor import scripts

_APP = firmware_folder() / "app"
_PINS = frozenset({"clock", "data", "echo", "pin", "rx", "scl", "sda", "select", "trigger", "tx"})
_OF_EVERY_ENTRY = {"module": True, "name": False}
# What the class Sensors needs, in the order of its imports.
_READS = ("modules", "sensor_class", "sensors/__init__")


def drivers() -> dict[str, dict[str, bool]]:
    """Return the keys of each driver's settings entry, and whether it must have them."""
    texts = {name: (_APP / "sensors" / f"{name}.py").read_text() for name in (*driver_modules(), "chip")}
    return {name: _keys(name, "Sensor") | _OF_EVERY_ENTRY for name, text in texts.items() if "class Sensor" in text}


def _keys(module: str, kind: str) -> dict[str, bool]:
    # Returns the arguments of the constructor, and of those before it that get what is left.
    tree = ast.parse((_APP / "sensors" / f"{module}.py").read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    made = next(
        (node.args for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None
    )
    keys: dict[str, bool] = {}
    if made is not None:
        names = [argument.arg for argument in made.args[1:]]
        keys = {name: at < len(names) - len(made.defaults) for at, name in enumerate(names) if name != "i2c"}
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    for node in imports if found.bases and (made is None or made.kwarg is not None) else ():
        for alias in node.names:
            if ast.unparse(found.bases[0]) in (alias.name, alias.asname):
                keys = _keys(str(node.module).rpartition(".")[2], alias.name) | keys
    return keys


class SensorCheck:
    """The check of the sensors of one board. own: modules in its /sensors; description: its board.json, or None."""

    def __init__(self, own: Iterable[str], description: Mapping[str, Any] | None) -> None:
        self._own = frozenset(own)
        self._pins: dict[str, object] = description["pins"] if description else {}
        self._gpio = [range(first, last + 1) for first, last in description["gpio"]] if description else []
        self._mcu = description["mcu"] if description else ""
        self._drivers = drivers()
        self.names = sorted(self._drivers)

    @classmethod
    def of(cls, board: Board, info: Info, port: Port, named: object = None) -> SensorCheck:
        """Return the check for a board. named: its folder below boards/, if that is known."""
        try:
            name = named or read_record(board).board or guess_board(info, port)
            description: Mapping[str, Any] | None = board_description(str(name))
        except KitError:
            description = None
        files = (path.removeprefix(SENSORS) for path in board.list_files() if path.startswith(SENSORS))
        return cls((file.partition(".")[0] for file in files), description)

    def checked(self, entries: object) -> object:
        """Return the entries with addresses like "0x76" and pins like "onewire" as numbers.

        What is no list of objects is left to the check of all settings. Raises KitError (exit code 2).
        """
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            return entries
        return [self._entry(entry, f"sensor {at} ({entry.get('module')})") for at, entry in enumerate(entries, 1)]

    def _entry(self, entry: dict[str, Any], where: str) -> dict[str, Any]:
        module = str(entry.get("module"))
        if module not in self._own:
            if module not in self._drivers:
                if nearest := difflib.get_close_matches(module, self._drivers, 1, 0.7):
                    raise KitError(f"{where}: no module of this name — did you mean {nearest[0]}?", EXIT_USAGE)
                say(f"{where}: not in the firmware, so it has to be your own: umqtt deploy --sensors FOLDER")
            else:
                self._check_keys(entry, self._drivers[module], where)
        return {key: self._value(key, value, f"{where}: {key}") for key, value in entry.items()}

    def _check_keys(self, entry: dict[str, Any], known: dict[str, bool], where: str) -> None:
        for key in entry:
            if key not in known:
                nearest = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(sorted(known))}"
                raise KitError(f"{where}: no key {key!r} — {hint}", EXIT_USAGE)
        if missing := sorted(key for key, needed in known.items() if needed and key not in entry):
            raise KitError(f"{where}: {missing[0]} is missing — add it", EXIT_USAGE)

    def _value(self, key: str, value: Any, where: str) -> Any:
        if key == "address" and isinstance(value, str) and re.fullmatch("0[xX][0-9a-fA-F]{1,2}", value):
            return int(value, 16)
        if key not in _PINS or not self._gpio:
            return value
        if isinstance(value, str):
            if value not in self._pins:
                nearest = difflib.get_close_matches(value, self._pins, 1)
                hint = f"did you mean {nearest[0]}?" if nearest else f"a number, or one of {', '.join(self._pins)}"
                raise KitError(f"{where}: no pin {value!r} — {hint}", EXIT_USAGE)
            value = self._pins[value]
        if isinstance(value, int) and not any(value in pins for pins in self._gpio):
            there = ", ".join(f"{pins[0]} to {pins[-1]}" for pins in self._gpio)
            raise KitError(f"{where}: an {self._mcu} has no pin {value} for sensors — it has {there}", EXIT_USAGE)
        return value

    def scan(self, board: Board) -> str:
        """Return what answers on the board's own I2C pins, as text."""
        if not self._pins:
            return ""
        scl, sda = self._pins["i2c_scl"], self._pins["i2c_sda"]
        source = (_APP / "sensors" / "i2c_names.py").read_text()
        try:
            found = cast(list[str], board.value(scripts.SCAN_I2C.format(source=source, scl=scl, sda=sda)))
        except DeviceError as error:
            found = [error.error]
        return f"I2C with scl {scl} and sda {sda}: {'; '.join(found) or 'nothing answers'}"

    def entry_of(self, text: str) -> dict[str, Any]:
        """Return the entry in a line like `bme280 address=0x76 name=attic`. Raises KitError (exit code 2)."""
        module, *pairs = text.split()
        entry: dict[str, Any] = {"module": module}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise KitError(f"{pair!r}: must be KEY=VALUE, for instance pin=4", EXIT_USAGE)
            with contextlib.suppress(ValueError):
                value = loads(value)
            entry[key] = value
        return cast(list[Any], self.checked([entry]))[0]


def line_of(entry: Mapping[str, Any]) -> str:
    """Return an entry as a line for SensorCheck.entry_of()."""
    pairs = (f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in entry.items() if key != "module")
    return " ".join([str(entry["module"]), *pairs])


def try_sensor(board: Board, entry: Mapping[str, Any]) -> tuple[str | None, dict[str, float]]:
    """Read a sensor once on a board whose program does not run. Returns (problem or None, metrics).

    A driver that the board lacks is lent to it for this reading.
    """
    module = str(entry["module"])
    files = [*_READS]
    if module in (imports := driver_modules()):
        # Before what imports it.
        files += [f"sensors/{name}" for name in sorted({module, *imports[module]}, key=lambda name: len(imports[name]))]
    lent = [(f"app.{file}".replace("/", ".").removesuffix(".__init__"), file) for file in files]
    texts = [
        (name, ast.unparse(minify.without_docstrings(ast.parse((_APP / f"{file}.py").read_text()))))
        for name, file in lent
    ]
    try:
        problem, metrics = cast(Any, board.value(scripts.SENSOR.format(entry=dict(entry), lent=texts), 30.0))
    except DeviceError as error:
        return error.error, {}
    return problem, metrics
