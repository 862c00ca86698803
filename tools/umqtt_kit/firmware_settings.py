"""The firmware's own settings.py, loaded on this computer: what a board accepts is decided in one place."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import ModuleType

from umqtt_kit.data import firmware_folder
from umqtt_kit.errors import EXIT_MISSING, KitError

_NAME = "umqtt_kit._firmware_settings"


@cache
def settings_module() -> ModuleType:
    """firmware/app/settings.py as a module: DEFAULTS, check_settings, check_secrets, SettingsError. Raises KitError."""
    file = firmware_folder() / "app" / "settings.py"
    spec = importlib.util.spec_from_file_location(_NAME, file)
    if spec is None or spec.loader is None:
        remedy = "pip install --force-reinstall 'umqtt-robust[kit]'"
        raise KitError(f"{file} cannot be loaded — try: {remedy}", EXIT_MISSING)
    module = importlib.util.module_from_spec(spec)
    # Not as `app.settings`: a package of that common name may be the user's own.
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module
