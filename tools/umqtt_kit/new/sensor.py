"""A new sensor: a module with a class Sensor, as firmware/app/sensors/__init__.py describes it."""

from __future__ import annotations

import keyword
from pathlib import Path
from string import Template

from umqtt_kit.data import firmware_folder
from umqtt_kit.errors import EXIT_USAGE, KitError
from umqtt_kit.firmware_settings import settings_module

_TEMPLATE = Path(__file__).resolve().parent / "templates" / "sensor.py.txt"


def make_sensor(name: str, folder: Path) -> Path:
    """Write folder/NAME.py; returns it. Raises KitError (exit code 2) for a name that will not do, or a file there."""
    _check_name(name)
    file = folder / f"{name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("x") as target:
            target.write(Template(_TEMPLATE.read_text()).substitute(name=name))
    except FileExistsError as error:
        raise KitError(f"{file} is there already — choose another name, or remove it", EXIT_USAGE) from error
    except OSError as error:
        raise KitError(f"{file}: {error.strerror} — choose another --folder", EXIT_USAGE) from error
    return file


def _check_name(name: str) -> None:
    try:
        settings_module().check_settings({"brokers": ["mqtt://host"], "sensors": [{"module": name}]})
    except ValueError as error:
        message = f"{name!r} is no name of a sensor — use letters, digits and _, not a digit first"
        raise KitError(message, EXIT_USAGE) from error
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise KitError(f"{name!r} is no name of a module — use small letters, digits and _", EXIT_USAGE)
    if (firmware_folder() / "app" / "sensors" / f"{name}.py").is_file():
        raise KitError(f"{name} is a sensor of the firmware, which comes first — choose another name", EXIT_USAGE)
