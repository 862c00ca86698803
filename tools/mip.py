"""Put the client on the board at the cable, as .mpy files for its MicroPython: `make mip`.

    make mip                                                 umqtt-robust, the core
    make mip PACKAGE=umqtt-robust-full                       TLS, WebSocket, asyncio and the API of umqtt too
    make mip PORT=/dev/ttyACM1                               if several boards are connected

This writes a package index into build/mip and runs `mpremote mip install --index build/mip PACKAGE`. Modules as .py are
removed from the board first, because MicroPython prefers them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from write_packages import INDEX_PACKAGES, ROOT, write_index

from umqtt_cli.errors import KitError

_INDEX = ROOT / "build" / "mip"
_REMOVE = """
import os
try:
    for name in os.listdir("/lib/umqtt_robust"):
        if name.endswith(".py"):
            os.remove("/lib/umqtt_robust/" + name)
except OSError:
    pass  # there is no such folder
"""


def main(package: str = "umqtt-robust", port: str = "") -> int:
    """Return the exit code: 2 for bad input, 6 if a tool is missing, or mpremote's."""
    if package not in INDEX_PACKAGES:
        print(f"mip: there is no package {package!r} — PACKAGE is {' or '.join(INDEX_PACKAGES)}", file=sys.stderr)
        return 2
    shutil.rmtree(_INDEX, ignore_errors=True)
    try:
        write_index(_INDEX)
    except KitError as error:
        print(f"mip: {error}", file=sys.stderr)
        return error.exit_code
    where = ["connect", port] if port else []
    command = ["mpremote", *where, "exec", _REMOVE, "+", "mip", "install", "--index", str(_INDEX), package]
    return subprocess.run([sys.executable, "-P", "-m", *command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
