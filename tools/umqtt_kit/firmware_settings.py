"""Modules of the firmware, loaded on this computer: what a board accepts is decided in one place."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import ModuleType

from umqtt_kit.data import firmware_folder
from umqtt_kit.errors import EXIT_MISSING, KitError


def settings_module() -> ModuleType:
    """firmware/app/settings.py as a module: DEFAULTS, check_settings, check_secrets, SettingsError. Raises KitError."""
    return firmware_module("settings")


@cache
def firmware_module(module_name: str, package: str = "app") -> ModuleType:
    """firmware/PACKAGE/NAME.py as a module, one that needs nothing else of the firmware. Raises KitError."""
    name = f"umqtt_kit._firmware_{module_name}"
    file = firmware_folder() / package / f"{module_name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        remedy = "pip install --force-reinstall 'umqtt-robust[kit]'"
        raise KitError(f"{file} cannot be loaded — try: {remedy}", EXIT_MISSING)
    module = importlib.util.module_from_spec(spec)
    # Not as `app.settings`: a package of that common name may be the user's own.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
