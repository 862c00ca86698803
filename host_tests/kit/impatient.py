"""The firmware without its waits: a crash restarts at once, and a new version is on trial for half a second."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from umqtt_kit.data import firmware_folder

_WAITS = {
    "postmortem.py": ("_PAUSE_S = 10", "_PAUSE_S = 0"),
    "app/health.py": ("\nCONFIRM_MS = 60_000", "\nCONFIRM_MS = 500"),
}


def impatient_firmware(target: Path, version: str) -> Path:
    """Copy the firmware into the folder `target`, as that version; return the folder."""
    for source in firmware_folder().rglob("*.py"):
        file = target / source.relative_to(firmware_folder())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source.read_text())
    for name, (patient, impatient) in _WAITS.items():
        text = (target / name).read_text()
        assert patient in text, name
        (target / name).write_text(text.replace(patient, impatient))
    package = target / "app" / "__init__.py"
    package.write_text(re.sub('^VERSION = ".*"$', f'VERSION = "{version}"', package.read_text(), flags=re.MULTILINE))
    return target


def builds_impatient(folder: Path, version: str) -> Iterator[None]:
    """For a fixture: build from impatient_firmware() whatever this process builds within this context."""
    firmware = impatient_firmware(folder, version)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("umqtt_kit.deploy.build.firmware_folder", lambda: firmware)
        yield
