"""Which modules a board gets: the one home of that decision.

Everything goes onto a board unless a set below takes it out, so that a new module is never forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Schemes of broker addresses that need a module of the device library.
_BY_SCHEME = {"mqtts": ("tls",), "ws": ("websocket",), "wss": ("tls", "websocket")}
#: Modules of the device library that a board needs for some settings only.
OPTIONAL = frozenset({"tls", "websocket"})
#: Modules for programs of other people; the firmware uses none of them. `mpremote mip install` brings them.
FOR_PROGRAMS = frozenset({"aio", "robust", "simple"})


def optional_modules(settings: Mapping[str, object] | None) -> frozenset[str]:
    """Of OPTIONAL, what a board with these settings needs; all of it while they are not known."""
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
    """Of the device library's modules, those that the firmware can use with these optional ones."""
    left_out = FOR_PROGRAMS | (OPTIONAL - set(optional))
    return sorted(set(modules) - left_out)
