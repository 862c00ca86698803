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
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command

_TESTS = Path(__file__).resolve().parents[1]
_FOLDERS = [_TESTS / "unit", _TESTS / "laws"]
_FULL = bool(os.getenv("UMQTT_FULL_SWEEPS"))
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_CLIENT = "not (test_app or test_encoder)"  # the firmware and the test kit have tests in the same folder
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


def _private_names(file: Path) -> set[str]:
    """Return the names that a module defines: its own tests look at private ones too."""
    names = minify.Names([ast.parse(file.read_text())])
    return names.made_globals | names.made_attributes


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
    private = {name for file in modules(library_folder()).values() for name in _private_names(file)}
    Bundle(library_folder(), doors, private).compile(tmp_path)
    files = _FOLDERS if _FULL else _SAMPLED_FILES
    ended = _run_tests(tmp_path, *map(str, files), "-k", _CLIENT)
    assert ended.returncode == 0, ended.stdout[-6000:]


def test_what_the_tests_import_is_the_bundle(tmp_path: Path):
    _bundle().compile(tmp_path)
    (tmp_path / PACKAGE / f"{INIT}.mpy").unlink()
    (tmp_path / PACKAGE / f"{INIT}.py").write_text("raise RuntimeError('planted')\n")
    ended = _run_tests(tmp_path, "-x", str(_TESTS / "unit" / "test_client.py"))
    assert ended.returncode == 1
    assert "planted" in ended.stdout


def test_a_joined_module_offers_programs_its_public_names_alone():
    # Planted: the door to `store` offers every name of that module.
    assert _bundle().sources["store"] == f"from {PACKAGE} import MemoryStore\n"


def test_an_optional_module_imports_from_the_core_in_one_statement():
    # Planted: an import for each joined module. Each takes 7 bytes of .mpy.
    for name, text in _bundle().sources.items():
        imports = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) and node.module == PACKAGE]
        assert len(imports) < 2, name


def test_functions_classes_and_public_attributes_keep_their_names():
    """Planted: a method is renamed. Tracebacks would show the new name."""
    written, bundled = (
        (names, {node.name for tree in trees for node in minify.walk(tree) if isinstance(node, _NAMED)})
        for trees in (
            [ast.parse(file.read_text()) for file in modules(library_folder()).values()],
            [ast.parse(text) for text in _bundle().sources.values()],
        )
        for names in [minify.Names(trees)]
    )
    assert bundled[1] - written[1] == set()
    lost = {name for name in written[0].made_attributes - bundled[0].made_attributes if name[0] != "_"}
    assert lost == set()
    files = build("UNIX", ()).files
    assert b"_handle_other" in files["/lib/umqtt_robust/__init__.mpy"]
    assert b"heard_at" in files["/lib/umqtt_robust/__init__.mpy"]


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
