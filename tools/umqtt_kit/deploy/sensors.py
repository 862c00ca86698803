"""The user's own sensors, which go to /sensors beside the firmware; `umqtt new sensor` makes one."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_kit.deploy.build import Build
from umqtt_kit.deploy.plan import SENSORS
from umqtt_kit.mpy_cross import compile_file

_LINE_NUMBERS = 2


def with_sensors(build: Build, folder: Path | None) -> Build:
    """Return the build with the modules of that folder added, compiled; with None, the build as it is.

    Raises KitError (exit code 2) if the folder has no modules, or some below it, or one does not compile.
    """
    if folder is None:
        return build
    _refuse_packages(folder)
    sources = sorted(file for file in folder.glob("*.py") if file.is_file())
    if not sources:
        raise KitError(f"--sensors {folder}: there is no .py file in it — make one: umqtt new sensor NAME", EXIT_USAGE)
    files = dict(build.files)
    with tempfile.TemporaryDirectory(prefix="umqtt-sensors-") as scratch:
        for source in sources:
            target = Path(scratch) / f"{source.stem}.mpy"
            try:
                compile_file(source, target, f"sensors/{source.name}", _LINE_NUMBERS)
            except KitError as error:
                raise KitError(str(error), EXIT_USAGE) from error
            files[f"{SENSORS}{source.stem}.mpy"] = target.read_bytes()
    return replace(build, files=dict(sorted(files.items())))


def _refuse_packages(folder: Path) -> None:
    below = (each for each in sorted(folder.iterdir()) if each.name[0] not in "._")
    package = next((each.name for each in below if any(each.rglob("*.py"))), None)
    if package is not None:
        what = f"{package} is a folder of modules, and only the modules beside it go to the board"
        raise KitError(f"--sensors {folder}: {what} — move them there, or the folder elsewhere", EXIT_USAGE)
