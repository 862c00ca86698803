"""Finds Node.js and the package rp2040js, which are not installed with this project."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

from umqtt_cli.errors import EXIT_MISSING, KitError

#: The only version that works: board.mjs and chip.mjs use its internals.
VERSION = "1.4.1"


def emulator_command() -> tuple[str, Path]:
    """Return the paths of Node.js and of the module of rp2040js.

    Raises KitError (exit code 6) that says how to install what is missing.
    """
    node = shutil.which("node")
    if node is None:
        raise KitError("Node.js is missing, in which the emulator runs — install version 18 or newer", EXIT_MISSING)
    folder = package_folder()
    install = f"npm install --prefix {shlex.quote(str(folder))} rp2040js@{VERSION}"
    description = folder / "node_modules" / "rp2040js" / "package.json"
    try:
        found = json.loads(description.read_text())["version"]
    except (OSError, ValueError, LookupError, TypeError):
        raise KitError(f"the emulator rp2040js is missing — install it: {install}", EXIT_MISSING) from None
    if found != VERSION:
        raise KitError(f"rp2040js has version {found} here, not {VERSION} — install that: {install}", EXIT_MISSING)
    return node, description.parent / "dist" / "esm" / "index.js"


def package_folder() -> Path:
    """Return the folder where rp2040js is installed: in $XDG_DATA_HOME, ~/.local/share by default."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "umqtt-robust"
