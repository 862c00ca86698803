"""The firmware as it goes onto a board: modules that are loaded together joined, with short private names.

The readable modules of firmware/ stay the source of truth. From them this module makes

    app/__init__, app/application, app/commands
                modules that are loaded together, joined in the order of their imports
    app/NAME    each other module, loaded when needed; what it imported from a joined module comes from those three
    app/start, app/telemetry    doors: they re-export what main.py, and a virtual board, import from a joined module
    boot_choice, startup, postmortem    modules of their own, because they are written over the cable only

On a board a name costs some 25 bytes of heap until the next reset, even after the name's module is gone, and a
module costs some 300. Docstrings are left out, and private named numbers are replaced by their values. Names that
begin with an underscore are renamed, and so are arguments. A traceback of the board names lines of the generated
modules; readable() translates it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from umqtt_kit import minify

PACKAGE = "app"
INIT = f"{PACKAGE}.__init__"
# The modules that are joined, by the name of the joined module. Every board that is not in safe mode loads the first
# two, and keeps them: the first while the client is made, which takes the most heap at once, the second after it. The
# third is loaded for commands: a file of its own takes at least 4 KB of flash.
BUNDLES = {
    INIT: ("__init__", "modules", "clock", "identity", "board", "gaps", "log", "status", "start"),
    f"{PACKAGE}.application": (
        "health", "wifi", "sensors.__init__", "sensors.system", "telemetry", "command_door", "application",
    ),
    f"{PACKAGE}.commands": ("ledger", "commands", "actions"),
    f"{PACKAGE}.settings_files": ("settings", "settings_files"),
}  # fmt: skip
_HOME = {f"{PACKAGE}.{name}": bundle for bundle, names in BUNDLES.items() for name in names}
# What main.py, and a virtual board that notes its readings, still import from the modules that were joined.
DOORS = {f"{PACKAGE}.start": ("run",), f"{PACKAGE}.telemetry": ("on_published",)}
# MicroPython runs these from source, and they may use any name of these three.
_AS_SOURCE = ("boot", "main")
# Functions that are called with the keys of settings.json as keyword arguments.
_BY_KEYWORD = frozenset({"Sensor.__init__", "Chip.__init__"})
# Attributes of every exception: no other attribute may get one of these names.
_TAKEN = frozenset({"args", "value", "errno"})
_LINE = re.compile(r'File "([\w./]+?)(\.py)?", line (\d+), in (\S+)')


class Place(NamedTuple):
    """A line of a readable module: its file below firmware/, the line's number, and the function it is in."""

    file: str
    line: int
    function: str


class AppBundle:
    """The firmware's modules, joined and shortened.

    sources: source text by dotted module name, a package as NAME.__init__. places: by the same names, the Place that
    each line of the source text comes from, by the line's number.
    """

    def __init__(self, folder: Path, doors: Mapping[str, Iterable[str]] = DOORS, keep: Iterable[str] = ()) -> None:
        """Join and shorten the firmware's modules in `folder`.

        doors: joined modules that can still be imported from, and the names they give. keep: private names and
        arguments that are not renamed. Raises ValueError if two joined modules have a public name in common.
        """
        files = {_dotted(file.relative_to(folder)): file for file in sorted(folder.rglob("*.py"))}
        keep = {*keep}
        self._kept = keep | _identifiers(ast.parse(files.pop(name).read_text()) for name in _AS_SOURCE)
        trees = {name: _prepared(file, name, keep) for name, file in files.items() if "__pycache__" not in name}
        bundles = {}
        for bundle in BUNDLES:
            joined = {name: trees.pop(name) for name, home in _HOME.items() if home == bundle}
            _check_names(joined)
            for name, tree in joined.items():
                _make_unique(tree, name, joined)
                _FromBundle(bundle).visit(tree)
            bundles[bundle] = ast.Module(_merged(joined.values()), [])
        for tree in trees.values():
            _FromBundle(None).visit(tree)
        everything = {**bundles, **trees}
        self._shorten(everything, keep)
        self.sources: dict[str, str] = {}
        self.places: dict[str, dict[int, Place]] = {}
        for name, tree in everything.items():
            self.sources[name] = text = ast.unparse(tree) + "\n"
            self.places[name] = _places(tree, ast.parse(text))
        for name, names in doors.items():
            home = _HOME.get(name) or _HOME[f"{name}.__init__"]
            self.sources[name] = f"from {home.removesuffix('.__init__')} import {', '.join(names)}\n"

    def readable(self, text: str) -> str:
        """Return a traceback of a board with the files, lines and functions of the readable modules."""
        return _LINE.sub(self._readable_line, text)

    def _readable_line(self, found: re.Match[str]) -> str:
        name = found[1].removeprefix("/").replace("/", ".")
        place = self.places.get(f"{name}.__init__" if name == PACKAGE else name, {}).get(int(found[3]))
        return f'File "{place.file}", line {place.line}, in {place.function}' if place else found[0]

    def _shorten(self, trees: Mapping[str, ast.Module], keep: set[str]) -> None:
        names = minify.Names(trees.values())
        kept = self._kept | names.strings | names.keywords
        modules = {part for name in trees for part in name.split(".")}

        def private(made: Iterable[str]) -> list[str]:
            return sorted(
                name for name in made if name[0] == "_" and name != "_" and name[:2] != "__" and name not in kept
            )

        used = minify.Names([trees[name] for name in BUNDLES])
        variables = minify.short_names(
            sorted(private(names.made_globals), key=lambda name: (-used.variables[name], name)),
            {*names.variables, *names.keywords, *modules, *_TAKEN},
        )
        for tree in trees.values():
            minify.rename_variables(tree, variables)
        attributes = minify.short_names(
            sorted(private(names.made_attributes), key=lambda name: (-used.attributes[name], name)),
            {*names.attributes, *_TAKEN},
        )
        for tree in trees.values():
            minify.rename_attributes(tree, attributes)
        for tree in trees.values():
            pool = [name for name in minify.Names([tree]).attributes if name.isidentifier()]
            minify.with_short_arguments(tree, _BY_KEYWORD, names.keywords | keep | {"self"}, pool)


def public_names(folder: Path) -> dict[str, list[str]]:
    """Return the public names of each joined module, except the modules that a bundle is named after."""
    found = {}
    for name in _HOME:
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        names = sorted(one for one in _globals(ast.parse(path.read_text())) if one[0] != "_")
        if name not in BUNDLES and names:
            found[name] = names
    return found


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


def _prepared(file: Path, name: str, keep: set[str]) -> ast.Module:
    tree = ast.parse(file.read_text())
    functions = _functions(tree)
    shown = "/".join([*name.split(".")[:-1], file.name])
    for node in minify.walk(tree):
        if hasattr(node, "lineno"):
            # Later passes move and rename nodes; each node keeps a note of its place in the readable source.
            place = Place(shown, node.lineno, functions.get(node, "<module>"))
            node.place = place  # pyrefly: ignore[missing-attribute]
    tree = minify.without_docstrings(tree)
    private = minify.take_constants(tree, keep | {name for name in _constants(tree) if name[0] != "_"})
    return minify.with_constants(tree, private)


def _functions(tree: ast.Module) -> dict[ast.AST, str]:
    found: dict[ast.AST, str] = {}
    for function in minify.walk(tree):  # from the outside in, so that the innermost function wins
        if isinstance(function, ast.FunctionDef):
            found.update(dict.fromkeys((inner for part in function.body for inner in minify.walk(part)), function.name))
    return found


def _constants(tree: ast.Module) -> set[str]:
    return {name for node in tree.body if isinstance(node, ast.Assign) for name in minify.targets_of(node)}


def _identifiers(trees: Iterable[ast.Module]) -> set[str]:
    names = minify.Names(trees)
    return {*names.attributes, *names.variables}


def _globals(tree: ast.Module) -> set[str]:
    return minify.made_globals(tree)


def _check_names(joined: Mapping[str, ast.Module]) -> None:
    home: dict[str, str] = {}
    for module, tree in joined.items():
        for name in sorted(_globals(tree)):
            if name[0] != "_" and name in home:
                raise ValueError(f"{home[name]} and {module} both have {name}, and become one module: rename one")
            home[name] = module


def _make_unique(tree: ast.Module, module: str, joined: Mapping[str, ast.Module]) -> None:
    # A private name that two modules have gets the module's name in front.
    others = set().union(*(_globals(other) for name, other in joined.items() if name != module))
    prefix = "_" + module.removeprefix(f"{PACKAGE}.").replace(".", "_").replace("__", "")
    twice = {name: prefix + name for name in _globals(tree) & others if name[0] == "_"}
    minify.rename_variables(tree, twice)


class _FromBundle(ast.NodeTransformer):
    """A transformer that redirects imports from a joined module to its bundle, and removes them within it."""

    def __init__(self, bundle: str | None) -> None:
        self._bundle = bundle

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | None:
        home = _HOME.get(f"{node.module}.__init__") or _HOME.get(node.module or "")
        if home is None or (node.module == PACKAGE and any(alias.name.islower() for alias in node.names)):
            return node  # a module that is not joined
        if home == self._bundle:
            return None
        node.module = home.removesuffix(".__init__")
        return node


def _merged(trees: Iterable[ast.Module]) -> list[ast.stmt]:
    body: list[ast.stmt] = []
    imported: set[str] = set()
    for tree in trees:
        for node in tree.body:
            text = ast.unparse(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else None
            if text is None or text not in imported:
                body.append(node)
            if text:
                imported.add(text)
    return body


def _places(tree: ast.Module, written: ast.Module) -> dict[int, Place]:
    # Both trees differ only in the positions of their nodes, so the nodes can be paired.
    places: dict[int, Place] = {}
    for node, twin in zip(minify.walk(tree), minify.walk(written), strict=True):
        place = getattr(node, "place", None)
        if place and hasattr(twin, "lineno"):
            places.setdefault(twin.lineno, place)
    return places
