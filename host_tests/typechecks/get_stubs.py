"""Installs the type stubs of each board's own modules into a separate folder, .venv/stubs/BOARD.

They cannot go where other packages are, because every board has a `machine.pyi` and a `socket.pyi`.

    .venv/bin/python host_tests/typechecks/get_stubs.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BOARDS = {
    "esp32": "micropython-esp32-stubs~=1.29.0",
    "rp2": "micropython-rp2-rpi_pico_w-stubs~=1.29.0",
}


def stubs_of(board: str) -> Path:
    """Return the folder of a board's stubs, which may be missing."""
    return Path(sys.prefix) / "stubs" / board


def main() -> int:
    for board, requirement in BOARDS.items():
        folder = stubs_of(board)
        if (folder / "machine.pyi").exists() or (folder / "machine").exists():
            continue
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        ended = subprocess.run([*command, "--target", str(folder), requirement], check=False)
        if ended.returncode:
            return ended.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
