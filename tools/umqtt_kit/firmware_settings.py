"""Loads modules of the firmware on this computer, so that one place decides what a board accepts."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import ModuleType

from umqtt_cli.errors import EXIT_MISSING, KitError
from umqtt_kit.data import firmware_folder


def settings_module() -> ModuleType:
    """Return firmware/app/settings.py as a module. Raises KitError.

    It has DEFAULTS, check_settings, check_secrets, check_together and SettingsError.
    """
    return firmware_module("settings")


@cache
def firmware_module(module_name: str, package: str = "app") -> ModuleType:
    """Return firmware/PACKAGE/MODULE_NAME.py as a module, which may import nothing of the firmware. Raises KitError."""
    name = f"umqtt_kit._firmware_{module_name}"
    file = firmware_folder() / package / f"{module_name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        remedy = "pip install --force-reinstall '.[kit]', in a checkout of the project"
        raise KitError(f"{file} cannot be loaded — try: {remedy}", EXIT_MISSING)
    module = importlib.util.module_from_spec(spec)
    # Not under the name `app.settings`: the user may have a package of that common name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
