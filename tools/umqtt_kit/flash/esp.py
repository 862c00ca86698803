"""ESP32 family: writes an image with esptool, as a separate program."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig

from umqtt_cli.errors import EXIT_DEVICE, EXIT_MISSING, KitError
from umqtt_kit.flash.images import Image

# Where the ROM of a chip expects the image, if not at 0.
_OFFSETS = {"esp32": "0x1000", "esp32s2": "0x1000"}
_FAST_BAUD = "460800"
_WITHIN_S = 600.0


def write(image: Image, port: str, *, erase: bool, show: bool) -> None:
    """Write the image, after erasing everything if `erase`. show: let the user see esptool's own progress.

    Raises KitError: exit code 6 without esptool, 5 if it fails.
    """
    command = _command()
    # Version 5 renamed its commands; the old names only work with a warning.
    hyphen = "-" if _major_version(command) >= 5 else "_"
    common = [*command, "--chip", image.chip, "--port", port]
    if erase:
        _run([*common, f"erase{hyphen}flash"], show)
    offset = _OFFSETS.get(image.chip, "0x0")
    _run([*common, "--baud", _FAST_BAUD, f"write{hyphen}flash", offset, str(image.file)], show)


def _command() -> list[str]:
    scripts = sysconfig.get_path("scripts")
    for name in ("esptool", "esptool.py"):
        path = shutil.which(name) or shutil.which(name, path=scripts)
        if path is not None:
            return [path]
    raise KitError("there is no esptool here — try: pip install esptool", EXIT_MISSING)


def _major_version(command: list[str]) -> int:
    said = subprocess.run([*command, "version"], capture_output=True, text=True, timeout=30, check=False).stdout
    found = re.search(r"v?(\d+)\.\d+", said)
    if found is None:
        raise KitError("esptool does not tell its version — try: pip install -U esptool", EXIT_MISSING)
    return int(found[1])


def _run(command: list[str], show: bool) -> None:
    # Its output goes to stderr, because stdout is for the result of `umqtt flash`.
    output = sys.stderr if show else subprocess.PIPE
    try:
        ended = subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, text=True, timeout=_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise KitError(f"esptool did not end within {_WITHIN_S:g} s — {_REMEDY}", EXIT_DEVICE) from None
    if ended.returncode:
        lines = [line.strip() for line in (ended.stdout or "").splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "see above")
        raise KitError(f"esptool failed: {why} — {_REMEDY}", EXIT_DEVICE)


_REMEDY = "hold the button BOOT, press RESET (or plug in the cable), let BOOT go, and repeat"
