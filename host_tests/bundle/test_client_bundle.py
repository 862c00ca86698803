"""The bundled client for boards passes the same tests as the readable modules, on real MicroPython.

`make prove-client` (UMQTT_FULL_SWEEPS=1) runs all of them, `make test` those of some files: a bundle breaks names and
imports, which any test of a module reveals.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from umqtt_kit import minify
from umqtt_kit.bundle import INIT, PACKAGE, SMALLEST, Bundle, library_folder, modules, with_imports
from umqtt_kit.deploy.build import build
from umqtt_kit.device.board import architecture_of
from umqtt_kit.mpy_cross import compile_file
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

_TESTS = Path(__file__).resolve().parents[1]
_FOLDERS = [_TESTS / "unit", _TESTS / "laws"]
_FULL = bool(os.getenv("UMQTT_FULL_SWEEPS"))
_CLIENT = "not (test_app or test_encoder)"  # the firmware and the test kit have tests in the same folder
# MicroPython makes an object for each slice in machine code, and none in bytecode: two for a publish().
_CLIENT_IN_MACHINE_CODE = f"{_CLIENT} and not publish_at_qos_0_allocates and not publish_at_qos_1_allocates"
# A file for every module of the bundle, and the laws that use most of them.
_SAMPLED_FILES = [
    *(_TESTS / "unit" / f"test_{name}.py" for name in ("aio_alone", "allocation", "client", "flash_store", "late",
                                                       "mqtt5", "outbox", "packets", "policy", "request", "tls",
                                                       "topics", "websocket")),
    *(_TESTS / "laws" / f"test_{name}.py" for name in ("inbox", "keep_alive", "large_messages", "regressions")),
]  # fmt: skip

try:
    micropython_command()
except MicroPythonMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)


def _names_that_tests_look_at() -> set[str]:
    """Return the names used in the tests that run here, and in what they import beside them."""
    files = [
        file
        for folder in _FOLDERS
        for file in folder.glob("*.py")
        if _FULL or file in _SAMPLED_FILES or not file.name.startswith("test_")
    ]
    names = minify.Names([ast.parse(file.read_text()) for file in files])
    return {*names.attributes, *names.variables}


@cache
def _bundle() -> Bundle:
    return Bundle(library_folder())


def _run_tests(library: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "micropython", *options],
        capture_output=True,
        text=True,
        cwd=_TESTS.parent,
        env={**os.environ, "UMQTT_DEVICE_LIBRARY": str(library)},
        check=False,
    )


@pytest.mark.timeout(2700 if _FULL else 180)
def test_units_and_laws_hold_for_the_bundle(tmp_path: Path):
    doors = [name for name in with_imports(SMALLEST, modules(library_folder())) if name != INIT]
    bundle = Bundle(library_folder(), doors, _names_that_tests_look_at())
    bundle.compile(tmp_path)
    assert len(bundle.attributes) > 40  # most names are still short
    files = _FOLDERS if _FULL else _SAMPLED_FILES
    ended = _run_tests(tmp_path, *map(str, files), "-k", _CLIENT)
    assert ended.returncode == 0, ended.stdout[-6000:]


@pytest.mark.timeout(2700 if _FULL else 180)
def test_units_and_laws_hold_for_machine_code(tmp_path: Path):
    """Planted: an exception raised again is another one in machine code; no function becomes machine code."""
    program = [*micropython_command(), "-c", "import sys; print(sys.implementation._mpy)"]
    architecture = architecture_of(int(subprocess.check_output(program)))
    doors = [name for name in with_imports(SMALLEST, modules(library_folder())) if name != INIT]
    bundle = Bundle(library_folder(), doors, _names_that_tests_look_at(), architecture=architecture)
    sizes = bundle.compile(tmp_path)
    assert sizes[INIT] > 2 * Bundle(library_folder(), doors, _names_that_tests_look_at()).compile(tmp_path / "b")[INIT]
    names = ("allocation", "client", "outbox", "packets") if not _FULL else ()
    files = [*(_TESTS / "unit" / f"test_{name}.py" for name in names), _TESTS / "laws" / "test_regressions.py"]
    ended = _run_tests(tmp_path, *map(str, files if not _FULL else _FOLDERS), "-k", _CLIENT_IN_MACHINE_CODE)
    assert ended.returncode == 0, ended.stdout[-6000:]


def test_what_the_tests_import_is_the_bundle(tmp_path: Path):
    _bundle().compile(tmp_path)
    (tmp_path / PACKAGE / f"{INIT}.mpy").unlink()
    (tmp_path / PACKAGE / f"{INIT}.py").write_text("raise RuntimeError('planted')\n")
    ended = _run_tests(tmp_path, "-x", str(_TESTS / "unit" / "test_client.py"))
    assert ended.returncode == 1
    assert "planted" in ended.stdout


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


def test_programs_find_every_public_name(tmp_path: Path):
    bundle = _bundle()
    shortened = {*bundle.attributes, *bundle.variables}
    public = {"Client", "publish", "on_message", "expires_in", "MemoryStore", "tombstone", "TCP", "socket"}
    assert not shortened & public
    assert {"_send", "_pump", "Outbox", "SendBuffer"} <= shortened
    assert len({*bundle.attributes.values()}) == len(bundle.attributes)
    assert len({*bundle.variables.values()}) == len(bundle.variables)


def test_a_joined_module_offers_programs_its_public_names_alone():
    # Planted: the door to `store` offers every name of that module.
    assert _bundle().sources["store"] == f"from {PACKAGE} import MemoryStore as MemoryStore\n"


def test_an_optional_module_imports_from_the_core_in_one_statement():
    # Planted: an import for each joined module. Each takes 7 bytes of .mpy.
    for name, text in _bundle().sources.items():
        imports = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) and node.module == PACKAGE]
        assert len(imports) < 2, name


def test_what_is_deployed_names_its_functions_as_the_readable_modules_do():
    # Planted: deploy gives short names to functions.
    files = build("UNIX", ()).files
    assert b"_handle_other" in files["/lib/umqtt_robust/__init__.mpy"]
    assert b"handle_pubrel" in files["/lib/umqtt_robust/qos2.mpy"]
    names = minify.Names([ast.parse(text) for text in Bundle(library_folder(), short_names=False).sources.values()])
    assert "heard_at" not in names.attributes  # names that tracebacks do not show are short
    assert b"_handle_other" not in build("UNIX", (), short_names=True).files["/lib/umqtt_robust/__init__.mpy"]


_BASE = """
class Base:
    def method(self, first, **others):
        for name in others:
            self.heard.append(name)
        {last}

class Derived(Base):
    def method(self, first, **others):
        self.heard = [{before}]
        Base.method(self, {passed})
        self.heard.append({after})
"""
_PLAIN = {"last": "self.heard.append(first)", "before": "", "passed": "first, **others", "after": "'end'"}


@pytest.mark.parametrize(
    ("change", "spliced"),
    [
        ({}, True),
        ({"last": "return 1"}, False),
        ({"last": "first = 2", "after": "first"}, False),
        ({"before": "name := 'x'", "after": "name"}, False),
        ({"passed": "first + 1, **others"}, False),
        ({"passed": "first"}, False),
    ],
)
def test_a_method_of_a_base_takes_the_place_of_its_call_only_where_nothing_changes(change, spliced):
    """Planted: every statement that is such a call is replaced, whatever the method and its caller do with names."""
    source = _BASE.format_map(_PLAIN | change)
    merged = ast.unparse(minify.merge_single_bases(ast.parse(source)))
    assert ("_Basemethod" not in merged) == spliced
    heard = []
    for text in (source, merged):
        names: dict = {}
        exec(text, names)
        derived = names["Derived"]()
        derived.method(7, colour="red")
        heard.append(derived.heard)
    assert heard[0] == heard[1]


def test_no_short_name_means_something_to_the_interpreter():
    """Planted: __class__, which the source uses as an attribute, becomes a function's name, or an argument's: in a
    method, MicroPython takes it for the class of the method."""
    given = minify.short_names(["function", "other"], ["__class__", "__import__"], [])
    assert [name for name in given.values() if name.startswith("__")] == []
    tree = minify.with_short_arguments(ast.parse("def function(argument):\n    return argument"), (), (), ["__class__"])
    assert "__class__" not in ast.unparse(tree)
    for bundle in (_bundle(), Bundle(library_folder(), short_names=False)):
        short = [*bundle.variables.values(), *bundle.attributes.values()]
        assert [name for name in short if name.startswith("__")] == []


def test_no_class_keeps_names_that_micropython_never_reads_or_a_body_without_anything_in_it():
    """Planted: __module__ and __qualname__ stay in the classes of optional modules, or an empty class has a body."""
    bodies = [
        node.body
        for source in _bundle().sources.values()
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    ]
    assert len(bodies) > 20
    assert {ast.unparse(body[0]) for body in bodies} == {"del __module__, __qualname__"}
    assert min(map(len, bodies)) > 1
