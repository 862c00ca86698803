"""Which modules a board gets, by its settings: of the device library, and drivers of sensors.

The sets of the library are those of boards/filesets.json. A module in none of them belongs to the core, so that a new
one is never forgotten. A driver takes at least a block of 4 KB, so a board gets only those that its settings name. One
module of the application is for some settings only too: cloud.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from umqtt_kit.data import boards_folder, firmware_folder

# Schemes of broker addresses that need a module of the device library.
_BY_SCHEME = {"mqtts": ("tls",), "ws": ("websocket",), "wss": ("tls", "websocket")}
# Modules of app/sensors that every board gets. The others are drivers, or imported by them.
_ON_EVERY_BOARD = frozenset({"__init__", "chip", "system"})
_IMPORT = re.compile(r"^ *from app\.sensors\.(\w+) import", re.MULTILINE)
_SETS: dict[str, list[str]] = json.loads((boards_folder() / "filesets.json").read_text())
#: Modules of the application that a board needs for some settings only.
OF_APPLICATION = frozenset({"cloud"})
#: These, and those of the device library.
OPTIONAL = OF_APPLICATION | {*_SETS["tls"], *_SETS["websocket"]}
#: Modules for computers alone: no board carries them.
HOST_MODULES = frozenset(_SETS["host"])
#: Modules for other people's programs, which the firmware does not use; `mpremote mip install` brings them.
FOR_PROGRAMS = frozenset(_SETS["programs"])


def driver_modules() -> dict[str, frozenset[str]]:
    """Return the drivers of sensors, each with the modules of app/sensors that it imports: those go with it."""
    sources = {file.stem: file.read_text() for file in (firmware_folder() / "app" / "sensors").glob("*.py")}
    imports = {name: frozenset(_IMPORT.findall(text)) for name, text in sources.items() if name not in _ON_EVERY_BOARD}

    def all_of(name: str) -> frozenset[str]:
        return imports[name].union(*map(all_of, imports[name]))

    return {name: all_of(name) for name in imports}


def optional_modules(settings: Mapping[str, object] | None) -> frozenset[str]:
    """Return the modules that a board with these settings needs beside those of every board.

    With None: all those of OPTIONAL, and no driver.
    """
    if settings is None:
        return OPTIONAL
    addresses = settings.get("brokers")
    needed = set()
    for address in addresses if isinstance(addresses, list) else []:
        needed.update(_BY_SCHEME.get(str(address).partition("://")[0], ()))
    if settings.get("topics"):
        needed.add("cloud")
    if str(settings.get("update_url") or "").startswith("https://"):
        needed.add("tls")
    drivers = driver_modules()
    sensors = settings.get("sensors")
    for entry in sensors if isinstance(sensors, list) else []:
        module = str(entry.get("module")) if isinstance(entry, dict) else ""
        if module in drivers:
            needed |= {module, *drivers[module]}
    return frozenset(needed)


def library_modules(modules: Iterable[str], optional: Iterable[str] = OPTIONAL) -> list[str]:
    """Return `modules` sorted, without those that only programs use and without the optional ones not in `optional`."""
    left_out = FOR_PROGRAMS | (OPTIONAL - set(optional))
    return sorted(set(modules) - left_out)
