"""Measures what the device library costs a board in flash and heap, against budgets.

It counts the bytes of .mpy in flash, and the bytes of heap after import. The budgets are those of the bundle
(bundle.py), which is what goes onto a board. Flash is measured with `mpy-cross -O3`, heap with the unix port of
MicroPython. That is a 64-bit program, unless UMQTT_MICROPYTHON names another; a 32-bit board needs 0.7 to 0.8 of that
heap.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command

from umqtt_cli.errors import EXIT_MISSING, EXIT_USAGE, KitError
from umqtt_kit.bundle import INIT, PACKAGE, Bundle, library_folder, modules, with_imports
from umqtt_kit.firmware_settings import firmware_module, settings_module
from umqtt_kit.mpy_cross import last_line

#: Bytes of a usual reading: the metrics of the firmware itself and of three sensors.
RECORD_BYTES = 300
#: Blocks of flash that the firmware fills at most, on every kind of board.
PROGRAM_BLOCKS = 90
_TIMEOUT_S = 30.0


# The one table of budgets. A limit leaves 3 % of air above the size it was set at, so that a mend of a lost reading
# does not have to be paid for elsewhere with unreadable code. A change that passes one saves elsewhere, or raises it
# here and says why in its commit. The peer: mqtt_as has 11,052 bytes of .mpy and takes 26,080 of heap after import.
BUDGETS = {
    "smallest_mpy_bytes": 15_750,
    "everything_mpy_bytes": 69_400,
    "smallest_heap_bytes": 28_970,
    # The heap of the smallest client if the code stays in flash, as in a frozen image or a ROMFS.
    "smallest_rom_heap_bytes": 14_110,
    # The heap of a program that imports only this module.
    "aio_heap_bytes": 39_220,
    # 3,840 of them are one step of MicroPython's table of names, which these programs are the first to take.
    "simple_heap_bytes": 41_600,
}
# The modules with a heap budget of their own, because programs import them instead of the package.
_FACES = ("aio", "simple")


@dataclass(frozen=True)
class ModuleSize:
    """The size of one module: bytes of its .mpy, and bytes of heap for importing it when its own imports are there.

    smallest: whether it belongs to the smallest client.

    MicroPython keeps names in pools that grow in steps; the module that causes a step bears all of it.
    """

    module: str
    mpy_bytes: int
    heap_bytes: int
    smallest: bool


@dataclass(frozen=True)
class Sizes:
    """The sizes of all modules, each after those that it imports, and the totals.

    totals: by the names of BUDGETS, and `everything_heap_bytes`, which has no budget. `smallest_rom_heap_bytes` is the
    heap after import if the code stays in flash, as in a frozen image or a ROMFS.
    """

    modules: list[ModuleSize]
    totals: dict[str, int]

    def passed(self) -> list[str]:
        """Return a line for each budget whose limit is passed."""
        return [
            f"{name}: {self.totals[name]} bytes are more than the limit of {limit}"
            for name, limit in BUDGETS.items()
            if self.totals[name] > limit
        ]

    def as_dict(self) -> dict[str, object]:
        return {
            "modules": [asdict(module) for module in self.modules],
            "totals": self.totals,
            "budgets": {
                name: {"limit": limit, "used": self.totals[name], "met": self.totals[name] <= limit}
                for name, limit in BUDGETS.items()
            },
        }


def measure(folder: Path | None = None) -> Sizes:
    """Measure the bundle of the device library (in `folder`, a copy of the package, if given). Raises KitError."""
    files = modules(folder or library_folder())
    bundle = Bundle(folder or library_folder())
    names = [INIT, *(name for name in with_imports(files, files) if name in bundle.sources and name != INIT)]
    with tempfile.TemporaryDirectory(prefix="umqtt-size-") as scratch:
        search = Path(scratch)
        library = search / PACKAGE
        bundle.compile(search)
        imported = {name: PACKAGE if name == INIT else f"{PACKAGE}.{name}" for name in names}
        heap = _heap_of(search, imported.values())
        heap[PACKAGE] = heap_after_import(search, [PACKAGE])  # alone, as most programs import it
        measured = [
            ModuleSize(name, (library / f"{name}.mpy").stat().st_size, heap[imported[name]], name == INIT)
            for name in names
        ]
        totals = _totals(measured)
        totals["smallest_rom_heap_bytes"] = _heap_in_rom(library / f"{INIT}.mpy")
        for face in _FACES:
            totals[f"{face}_heap_bytes"] = heap_after_import(search, [imported[face]])
    return Sizes(measured, totals)


@dataclass(frozen=True)
class FileSizes:
    """What the files of a board take of its flash, and how long the flash lasts.

    files: bytes of each file that a board gets, by its path there; flash_bytes: the blocks that these fill, at most
    (littlefs may put a small file beside its name); file_system_bytes: size of the board's whole file system; hours:
    for how long the blocks that are left keep readings without a broker, with one each interval_ms; years: until they
    are worn out.
    """

    board: str
    files: dict[str, int]
    flash_bytes: int
    file_system_bytes: int
    interval_ms: int
    hours: float
    years: float


def room_and_years(
    interval_ms: int, program_size: int, blocks: int, outbox: int | None = None, reading_bytes: int = RECORD_BYTES // 3
) -> tuple[float, float]:
    """Return (hours without a broker for which `blocks` free blocks keep readings, years until they are worn out).

    reading_bytes: what the firmware keeps of a reading; by default, the numbers of a record.
    """
    return firmware_module("room").room(blocks, program_size, reading_bytes, interval_ms, outbox)


def measure_files(board: str, interval_ms: int | None = None) -> FileSizes:
    """Measure what `umqtt deploy` puts onto a board whose settings need every module. Raises KitError.

    interval_ms: the time between its readings; None: the firmware's default.
    """
    from umqtt_kit.deploy.build import build
    from umqtt_kit.deploy.filesets import OPTIONAL
    from umqtt_kit.device.ports import board_description

    geometry: Any = board_description(board).get("littlefs")
    if not isinstance(geometry, dict) or not {"block_size", "block_count", "program_size"} <= geometry.keys():
        problem = f"board.json of {board} does not say its littlefs' block_size, block_count and program_size"
        raise KitError(f"{problem} — add them", EXIT_USAGE)
    measured = firmware_module("room").ERASES_PER_1000
    if geometry["program_size"] not in measured:
        known = " and ".join(map(str, measured))
        raise KitError(f"board.json of {board}: program_size is measured for {known} — give one of these", EXIT_USAGE)
    files = {path: len(content) for path, content in build(board, OPTIONAL).files.items()}
    block = geometry["block_size"]
    flash = sum(-(-size // block) * block for size in files.values())
    between_ms = int(settings_module().DEFAULTS["interval_ms"]) if interval_ms is None else interval_ms
    blocks = geometry["block_count"] - flash // block
    hours, years = room_and_years(between_ms, geometry["program_size"], blocks)
    return FileSizes(board, files, flash, block * geometry["block_count"], between_ms, round(hours, 1), round(years, 1))


def _totals(sizes: Iterable[ModuleSize]) -> dict[str, int]:
    sizes = list(sizes)
    smallest = [module for module in sizes if module.smallest]
    return {
        "smallest_mpy_bytes": sum(module.mpy_bytes for module in smallest),
        "everything_mpy_bytes": sum(module.mpy_bytes for module in sizes),
        "smallest_heap_bytes": sum(module.heap_bytes for module in smallest),
        "everything_heap_bytes": sum(module.heap_bytes for module in sizes),
    }


def heap_after_import(search: Path, modules: Iterable[str]) -> int:
    """Return the bytes of heap that these modules take together. Raises KitError."""
    return sum(_heap_of(search, modules).values())


_PROGRAM = """
import gc, sys
names = [(name, [0]) for name in sys.argv[1:]]  # made before, so that the measuring itself takes nothing
for name, cell in names:
    gc.collect()
    before = gc.mem_alloc()
    __import__(name)
    gc.collect()
    cell[0] = gc.mem_alloc() - before
for name, cell in names:
    print(name, cell[0])
"""

# Runs code in place from a file system in ROM, which is mounted before the heap is measured.
_ROM_PROGRAM = """
import gc, sys, vfs
with open(sys.argv[1], "rb") as file:
    vfs.mount(vfs.VfsRom(file.read()), "/rom")
sys.path.insert(0, "/rom")
cell = [0]
gc.collect()
before = gc.mem_alloc()
import umqtt_robust
gc.collect()
cell[0] = gc.mem_alloc() - before
print("umqtt_robust", cell[0])
"""


def _heap_of(search: Path, modules: Iterable[str]) -> dict[str, int]:
    # Returns the heap of each module, imported in this order in one interpreter.
    return _run(search, _PROGRAM, *modules)


def _heap_in_rom(mpy: Path) -> int:
    from mpremote.romfs import VfsRomWriter

    rom = VfsRomWriter()
    rom.opendir(PACKAGE)
    rom.mkfile(mpy.name, mpy.read_bytes())
    rom.closedir()
    image = mpy.parent.parent / "image.romfs"
    image.write_bytes(rom.finalise())
    return _run(mpy.parent.parent, _ROM_PROGRAM, str(image))[PACKAGE]


def _run(folder: Path, program: str, *arguments: str) -> dict[str, int]:
    # Runs the program in MicroPython; it prints lines of a name and a number.
    try:
        command = micropython_command()
    except MicroPythonMissing as missing:
        raise KitError(str(missing), EXIT_MISSING) from missing
    (folder / "measure.py").write_text(program)
    # Run as a module in its working folder: MicroPython keeps paths in memory, however long they are.
    ended = subprocess.run(
        [*command, "-m", "measure", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if ended.returncode:
        raise KitError(f"MicroPython cannot import it: {last_line(ended.stdout + ended.stderr)}", EXIT_MISSING)
    return {name: int(used) for name, used in (line.split() for line in ended.stdout.splitlines())}
