"""Makes a new sensor: a module with a class Sensor, as firmware/app/sensors/__init__.py describes it."""

from __future__ import annotations

import keyword
from pathlib import Path
from string import Template

from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_kit.data import firmware_folder
from umqtt_kit.firmware_settings import settings_module

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def make_sensor(name: str, folder: Path, i2c_address: int | None = None) -> Path:
    """Write folder/NAME.py, which reads a pin, or the chip at i2c_address; return it.

    Raises KitError (exit code 2) if the name will not do, or the file is there already.
    """
    _check_name(name)
    file = folder / f"{name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        template = _TEMPLATES / ("sensor.py.txt" if i2c_address is None else "i2c_sensor.py.txt")
        with file.open("x") as target:
            target.write(Template(template.read_text()).substitute(name=name, address=i2c_address))
    except FileExistsError as error:
        raise KitError(f"{file} is there already — choose another name, or remove it", EXIT_USAGE) from error
    except OSError as error:
        raise KitError(f"{file}: {error.strerror} — choose another --folder", EXIT_USAGE) from error
    return file


def _check_name(name: str) -> None:
    if keyword.iskeyword(name):
        raise KitError(f"{name!r} is a word of Python — choose another name", EXIT_USAGE)
    try:
        settings_module().check_settings({"brokers": ["mqtt://host"], "sensors": [{"module": name}]})
        fits = name == name.lower()
    except ValueError:
        fits = False
    if not fits:
        message = f"{name!r} is no name of a sensor — use at most 32 of a to z, 0 to 9 and _, not a digit first"
        raise KitError(message, EXIT_USAGE)
    if (firmware_folder() / "app" / "sensors" / f"{name}.py").is_file():
        raise KitError(f"{name} is a sensor of the firmware — choose another name", EXIT_USAGE)
