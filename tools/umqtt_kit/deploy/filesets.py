"""Which modules of the device library a board gets, by its settings. The sets are those of boards/filesets.json.

A module in none of the sets belongs to the core, so that a new one is never forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from umqtt_kit.data import boards_folder

# Schemes of broker addresses that need a module of the device library.
_BY_SCHEME = {"mqtts": ("tls",), "ws": ("websocket",), "wss": ("tls", "websocket")}
_SETS: dict[str, list[str]] = json.loads((boards_folder() / "filesets.json").read_text())
#: Modules of the device library that a board needs for some settings only.
OPTIONAL = frozenset(_SETS["tls"] + _SETS["websocket"])
#: Modules for computers alone: no board carries them.
HOST_MODULES = frozenset(_SETS["host"])
#: Modules for other people's programs, which the firmware does not use; `mpremote mip install` brings them.
FOR_PROGRAMS = frozenset(_SETS["programs"])


def optional_modules(settings: Mapping[str, object] | None) -> frozenset[str]:
    """Return the modules of OPTIONAL that a board with these settings needs; all of them if `settings` is None."""
    if settings is None:
        return OPTIONAL
    addresses = settings.get("brokers")
    needed = set()
    for address in addresses if isinstance(addresses, list) else []:
        needed.update(_BY_SCHEME.get(str(address).partition("://")[0], ()))
    if str(settings.get("update_url") or "").startswith("https://"):
        needed.add("tls")
    return frozenset(needed)


def library_modules(modules: Iterable[str], optional: Iterable[str] = OPTIONAL) -> list[str]:
    """Return `modules` sorted, without those that only programs use and without the optional ones not in `optional`."""
    left_out = FOR_PROGRAMS | (OPTIONAL - set(optional))
    return sorted(set(modules) - left_out)
