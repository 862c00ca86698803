"""No private name of somebody else's package: it may change in any release of that package."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("spark_ingest", "tools", "umqtt_cli")
OURS = frozenset({"spark_ingest", "umqtt_broker", "umqtt_kit", "umqtt_robust", "umqtt_cli", "umqtt_testkit", "app"})
# Public in spite of their underscore: documented as such.
PUBLIC = frozenset({"_asdict", "_replace", "_fields", "_make", "_field_defaults", "_exit"})
# (file, name): why it is needed.
EXCEPTIONS = {
    ("spark_ingest/pipeline/run/session.py", "_accumulatorServer"): "it reports the end of Java with a traceback",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name.strip("_") != ""


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a module defines: functions, classes, variables, and attributes of self and cls."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                yield from (one.value for one in ast.walk(value) if isinstance(one, ast.Constant))


def used(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a module uses, and those that it imports from packages that are not ours."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name):
                yield name
            case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                yield name
            case ast.ImportFrom(level=0, module=str(module), names=names) if module.split(".")[0] not in OURS:
                yield from (f"import {part}" for part in [*module.split("."), *(one.name for one in names)])
            case ast.Import(names=names):
                yield from (
                    f"import {part}"
                    for one in names
                    if one.name.split(".")[0] not in OURS
                    for part in one.name.split(".")
                )


def foreign(root: Path) -> set[tuple[str, str]]:
    """Return (file, name) of each private name that is none of ours."""
    files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    trees = {file.relative_to(root).as_posix(): ast.parse(file.read_text()) for file in files}
    ours = {name for tree in trees.values() for name in defined(tree)} | PUBLIC
    return {
        (file, name)
        for file, tree in trees.items()
        for name in used(tree)
        if is_private(name.removeprefix("import ")) and name.removeprefix("import ") not in sys.stdlib_module_names
        if name.startswith("import ") or name not in ours
    }


def test_no_private_name_of_another_package_is_used_but_for_the_exceptions():
    found = foreign(ROOT)
    assert sorted(found - EXCEPTIONS.keys()) == []
    assert sorted(EXCEPTIONS.keys() - found) == [], "exceptions that are not needed any more"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from deltalake._internal import RawDeltaTable", "import _internal"),
        ("from pyiceberg.table.update.snapshot import _OverwriteFiles", "import _OverwriteFiles"),
        ("import deltalake._internal", "import _internal"),
        ("def f(table):\n    return table._raw", "_raw"),
        ("def f(session):\n    session.sparkContext._gateway.shutdown()", "_gateway"),
        ("def f(session):\n    return getattr(session, '_gateway', None)", "_gateway"),
        ("def f(session):\n    session._gateway = None", "_gateway"),
        ("class A:\n    def f(self, other):\n        self._mine = other._theirs", "_theirs"),
    ],
)
def test_a_planted_private_name_is_found(tmp_path: Path, line: str, name: str):
    package = tmp_path / "spark_ingest"
    package.mkdir()
    (package / "good.py").write_text(
        "from .other import _helper\nfrom collections import namedtuple\n"
        "class B:\n    def __init__(self):\n        self._mine = 1\n"
        "    def f(self, b):\n        return b._mine, b._asdict()\n"
    )
    assert foreign(tmp_path) == set()
    (package / "bad.py").write_text(line + "\n")
    assert foreign(tmp_path) == {("spark_ingest/bad.py", name)}
