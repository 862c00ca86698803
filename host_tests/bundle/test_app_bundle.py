"""The bundled firmware for boards behaves like the readable modules, and takes less heap.

The firmware's unit tests run on it, in `make prove-firmware` (UMQTT_FULL_SWEEPS=1) with all that they sweep.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from umqtt_kit import minify
from umqtt_kit.app_bundle import BUNDLES, AppBundle, public_names
from umqtt_kit.bundle import SMALLEST, Bundle, library_folder, modules, with_imports
from umqtt_kit.data import firmware_folder
from umqtt_kit.mpy_cross import compile_file
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

_TESTS = Path(__file__).resolve().parents[1]
_UNITS = sorted((_TESTS / "unit").glob("test_app_*.py"))
_FULL = bool(os.getenv("UMQTT_FULL_SWEEPS"))
try:
    micropython_command("1M")
except MicroPythonMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)


@cache
def _bundle() -> AppBundle:
    return AppBundle(firmware_folder())


def _is_name(text: object) -> bool:
    return isinstance(text, str) and text.isidentifier()


def _compile(sources: Mapping[str, str], folder: Path) -> None:
    def one(name: str) -> None:
        path = name.replace(".", "/")
        source = folder / "sources" / f"{name}.py"
        source.write_text(sources[name])
        compile_file(source, folder / f"{path}.mpy", "app" if name == "app.__init__" else f"{path}.py", 2)

    (folder / "sources").mkdir()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, sources))


def _run(program: str, *search: Path) -> subprocess.CompletedProcess[str]:
    head = f"import sys\nsys.path[:] = {[str(folder) for folder in search]}\n"
    return subprocess.run(
        [*micropython_command("1M"), "-c", head + program],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )


@pytest.mark.timeout(900 if _FULL else 180)
def test_the_firmwares_units_hold_for_its_bundle(tmp_path: Path):
    firmware = firmware_folder()
    trees = [ast.parse(file.read_text()) for file in [*_UNITS, _TESTS / "unit" / "_app_fakes.py"]]
    looked_at = minify.Names(trees)
    # Planted mistakes are named by strings.
    texts = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    keep = {*looked_at.attributes, *looked_at.variables, *looked_at.keywords, *filter(_is_name, texts)}
    _compile(AppBundle(firmware, public_names(firmware), keep).sources, tmp_path)
    library = [name for name in with_imports(SMALLEST, modules(library_folder())) if name != "__init__"]
    Bundle(library_folder(), library, keep).compile(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "micropython",
         *map(str, _UNITS)],
        capture_output=True, text=True, cwd=_TESTS.parent, check=False,
        env={**os.environ, "UMQTT_DEVICE_LIBRARY": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]


def test_a_traceback_of_the_bundle_is_translated_to_the_lines_of_the_readable_modules(tmp_path: Path):
    bundle = _bundle()
    _compile({name: bundle.sources[name] for name in ("boot_choice", "startup")}, tmp_path)
    done = _run("import boot_choice\nboot_choice.read_boots('/dev/null').mark('c')\n", tmp_path)
    told = bundle.readable(done.stdout + done.stderr)
    written = _line_of("startup.py", 'with open(path, "w")')
    assert f'File "startup.py", line {written}, in write' in told, told
    # In a joined module, the line number is one of the package.
    line = _line_of("app/clock.py", "raise ValueError(")
    (here,) = (number for number, place in bundle.places["app.__init__"].items()
               if (place.file, place.line) == ("app/clock.py", line))  # fmt: skip
    for package in ("app", "/app"):
        told = bundle.readable(f'  File "{package}", line {here}, in __init__')
        assert told == f'  File "app/clock.py", line {line}, in synchronised'
    assert bundle.readable('File "main.py", line 10, in <module>') == 'File "main.py", line 10, in <module>'


def _line_of(file: str, text: str) -> int:
    lines = (firmware_folder() / file).read_text().splitlines()
    return 1 + next(number for number, line in enumerate(lines) if text in line)


def test_every_line_of_a_bundle_knows_where_it_came_from():
    firmware = firmware_folder()
    bundle = _bundle()
    checked = 0
    for name, places in bundle.places.items():
        lines = bundle.sources[name].splitlines()
        for number, place in places.items():
            text = lines[number - 1].split()
            if text[0] in ("def", "class", "return", "raise", "while"):
                origin = (firmware / place.file).read_text().splitlines()[place.line - 1].split()
                assert origin[0] == text[0], (name, number, place, text)
                checked += 1
    assert checked > 500


def test_private_names_take_no_heap_of_a_board():
    bundle = _bundle()
    names = minify.Names([ast.parse(text) for text in bundle.sources.values()])
    left = {name for name in (names.made_attributes | names.made_globals) if name[0] == "_" and name[:2] != "__"}
    assert left == set()


def test_every_rom_name_is_in_the_rom(tmp_path: Path):
    # A name spelled out in an .mpy may be missing in the interpreter: here all of them must be numbers.
    source = tmp_path / "words.py"
    source.write_text("\n".join(f"_.{name}" for name in minify.ROM_NAMES))
    compile_file(source, tmp_path / "words.mpy", "_")
    compiled = (tmp_path / "words.mpy").read_bytes()
    assert [name for name in minify.ROM_NAMES if len(name) > 2 and name.encode() in compiled] == []


def test_spelled_rom_names_take_no_heap(tmp_path: Path):
    # Planted: a spelled name that is not in the ROM.
    program = tmp_path / "names.py"
    program.write_text(
        f"import micropython\nclass O: pass\no = O()\nnames = {' '.join(minify.SPELLED_ROM_NAMES)!r}.split()\n"
        "micropython.qstr_info()\nfor name in names: getattr(o, name, None)\nmicropython.qstr_info()\n"
    )
    ended = subprocess.run(
        [*micropython_command(), str(program)], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
    )
    before, after = ended.stdout.splitlines()
    assert before == after


def test_no_argument_gets_a_name_that_means_something_to_the_interpreter():
    """Planted: an argument is called __class__, which MicroPython takes for the class of the method."""
    tree = minify.with_short_arguments(ast.parse("def function(argument):\n    return argument"), (), (), ["__class__"])
    assert "__class__" not in ast.unparse(tree)


def test_no_two_names_become_the_same_short_name():
    """Planted: a name that is in two of the lists of short names is given twice."""
    wanted = [f"_name_{number}" for number in range(500)]
    given = minify.short_names(wanted, {"append", "a"})
    assert len({*given.values()}) == len(wanted)
    assert not {"append", "a"} & {*given.values()}


def test_two_joined_modules_with_one_public_name_are_refused(tmp_path: Path):
    folder = tmp_path / "firmware"
    for source in firmware_folder().rglob("*.py"):
        target = folder / source.relative_to(firmware_folder())
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
    log = folder / "app" / "log.py"
    log.write_text(log.read_text() + "\n\nclass Clock:\n    pass\n")
    with pytest.raises(ValueError, match=r"app\.clock and app\.log both have Clock"):
        AppBundle(folder)


def test_the_bundle_takes_a_seventh_less_heap_than_the_readable_modules(tmp_path: Path):
    firmware = firmware_folder()
    bundled, readable = tmp_path / "bundled", tmp_path / "readable"
    client = Bundle(library_folder())
    for folder in (bundled, readable):
        folder.mkdir()
        client.compile(folder)
    for_commands = {f"app.{name}" for name in BUNDLES["app.commands"]}
    always = ["app", *(name for name in public_names(firmware) if name not in for_commands), "app.application"]
    everything = _bundle().sources
    _compile({name: everything[name] for name in (*BUNDLES, "boot_choice", "startup")}, bundled)
    paths = {
        name: next(path for path in (f"{name.replace('.', '/')}/__init__", name.replace(".", "/"))
                   if (firmware / f"{path}.py").exists())
        for name in (*always, "boot_choice", "startup")
    }  # fmt: skip
    sources = {path.replace("/", "."): (firmware / f"{path}.py").read_text() for path in paths.values()}
    _compile(sources, readable)
    used = {}
    for folder, names in ((bundled, ["app", "app.application"]), (readable, always)):
        program = f"""
import gc, startup, umqtt_robust.errors, json, os, binascii, math
gc.collect()
before = gc.mem_alloc()
for name in {[name.removesuffix(".__init__") for name in names]}:
    __import__(name)
gc.collect()
print(gc.mem_alloc() - before)
"""
        done = _run(program, folder)
        assert done.returncode == 0, done.stdout + done.stderr
        used[folder] = int(done.stdout)
    print(f"64-bit heap: {used[bundled]} bytes bundled, {used[readable]} readable")
    assert used[bundled] < 0.86 * used[readable]
