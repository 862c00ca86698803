"""The device library as it goes onto a board: the smallest useful set as one module.

The readable modules stay the source of truth. From them this module makes

    __init__    the modules of the smallest useful set, joined in the order of their imports
    NAME        each optional module, which imports from `umqtt_robust` what it used to import from those
    store       what programs import from a joined module: its public names, taken from `umqtt_robust`

Docstrings and the code for computers are left out. Named numbers are replaced by their values. Classes delete their
__module__ and __qualname__. Tables that only optional modules read move into these. MicroPython keeps each name in RAM,
so arguments that no program can spell, and private attributes that are no methods, get names that are in every board's
ROM, or there anyway. All other names stay as they are in the source, so tracebacks show them.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import umqtt_robust
from umqtt_kit import minify
from umqtt_kit.deploy.filesets import HOST_MODULES
from umqtt_kit.mpy_cross import compile_file

PACKAGE = "umqtt_robust"
INIT = "__init__"
# QoS 0 and 1 over TCP with the outbox in memory: these modules and what they import.
SMALLEST = (INIT, "transport")
# Joined modules that programs import from, according to the documentation.
IMPORTED_BY_PROGRAMS = ("store",)
_HOST_MODULE = "_host"
# Attributes of every exception.
_OF_EXCEPTIONS = ("args", "errno", "value")
# Builtins that the client, or the drop-in, uses for each message, by module.
_BUSIEST_BUILTINS = {INIT: ("len", "min", "max", "bytes"), "inbox": ("len",), "simple": ("len",)}


def library_folder() -> Path:
    """Return the folder of the readable modules of the device library."""
    return Path(umqtt_robust.__file__).resolve().parent


def modules(folder: Path) -> dict[str, Path]:
    """Return the file of every module that a board may carry, by the module's name."""
    return {file.stem: file for file in sorted(folder.glob("*.py")) if file.stem not in HOST_MODULES}


def with_imports(wanted: Iterable[str], files: Mapping[str, Path]) -> list[str]:
    """Return the wanted modules and all that they import, in import order: each module after those it imports."""
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
    # Yields the package's modules that the file imports at its top level, not those that a function imports.
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module] if node.module else [alias.name for alias in node.names]


class Bundle:
    """The device library's modules, joined. `joined`: names of the joined modules; `sources`: source text by module."""

    def __init__(
        self,
        folder: Path,
        doors: Iterable[str] = IMPORTED_BY_PROGRAMS,
        keep: Iterable[str] = (),
    ) -> None:
        """Join the readable modules in `folder`.

        doors: joined modules from which programs can still import: their public names, which are those in a stub
        (.pyi), and those in `keep`.
        """
        files = modules(folder)
        keep = set(keep)
        self.joined = with_imports(SMALLEST, files)
        trees = {name: _prepared(file) for name, file in files.items()}
        home = {name: module for module in self.joined for name in _top_level(trees[module])}
        numbers: dict[str, dict[str, ast.expr]] = {}
        public: dict[str, set[str]] = {}
        for name, tree in trees.items():
            public[name] = _names_of_stubs([ast.parse(stub.read_text())]) if (stub := _stub(files[name])) else set()
            numbers[name] = minify.take_constants(tree, public[name])
        shared = {key: value for name in self.joined for key, value in numbers[name].items() if key[0] != "_"}
        for name, tree in trees.items():
            trees[name] = minify.with_constants(tree, shared | numbers[name] | _imported_numbers(tree, numbers))
        self._move_tables(trees)
        core = minify.with_empty_classes_by_call(self._join(trees))
        optional = {
            name: minify.with_empty_classes_by_call(_FromCore(self.joined, shared).visit(tree))
            for name, tree in trees.items()
            if name not in self.joined
        }
        still_there = _top_level(core)
        everything: dict[str, ast.Module] = {INIT: core, **optional}
        for name in doors:
            offered = public[name] | keep
            names = sorted(key for key, module in home.items() if module == name and key in still_there & offered)
            values = {key: value for key, value in numbers[name].items() if key in offered}
            everything[name] = _door([ast.alias(key) for key in names], values)
        names = minify.Names(everything.values())
        spelled = names.keywords | keep | {"self"}.union(*public.values())
        private = sorted(
            (name for name in names.made_values if name[0] == "_" != name[1:2] and name not in names.strings | spelled),
            key=lambda name: (-names.attributes[name], name),
        )
        short = minify.short_names(private, {*names.attributes, *_OF_EXCEPTIONS})
        for tree in everything.values():
            minify.without_class_names(tree)
            minify.rename_attributes(tree, short)
            minify.with_short_arguments(tree, (), spelled, [one for one in names.attributes if one.isidentifier()])
        for name, functions in _BUSIEST_BUILTINS.items():
            if name in everything:
                _make_global(functions, everything[name])
        self.sources = {name: ast.unparse(tree) + "\n" for name, tree in everything.items()}

    def _move_tables(self, trees: Mapping[str, ast.Module]) -> None:
        # A table that no joined module reads moves to the optional modules that do: a board without these does not
        # carry it.
        read = minify.Names([trees[name] for name in self.joined]).variables
        optional = [name for name in trees if name not in self.joined]
        for joined in self.joined:
            for node in list(trees[joined].body):
                if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)):
                    continue
                (table,) = minify.targets_of(node)
                if read[table] > 1:  # besides the assignment
                    continue
                trees[joined].body.remove(node)
                for module in optional:
                    _take_table(trees[module], joined, table, node)

    def compile(self, search: Path) -> dict[str, int]:
        """Compile the package into the folder `search` as .mpy; return the bytes of each module. Raises KitError."""
        sizes = {}
        with tempfile.TemporaryDirectory(prefix="umqtt-bundle-") as scratch:
            for name, text in self.sources.items():
                source = Path(scratch) / f"{name}.py"
                source.write_text(text)
                # A traceback of the bundle has no line numbers, so the package's name says as much as a file's.
                file_name = PACKAGE if name == INIT else name
                target = search / PACKAGE / f"{name}.mpy"
                sizes[name] = compile_file(source, target, file_name)
        return sizes

    def _join(self, trees: Mapping[str, ast.Module]) -> ast.Module:
        core = ast.Module([], [])
        imported: set[str] = set()
        for name in self.joined:
            for node in _WithoutOwnImports(self.joined).visit(trees[name]).body:
                text = ast.unparse(node)
                if not isinstance(node, (ast.Import, ast.ImportFrom)):
                    core.body.append(node)
                elif text not in imported:
                    core.body.append(node)
                    imported.add(text)
        return core


def _imported_numbers(tree: ast.Module, numbers: Mapping[str, dict[str, ast.expr]]) -> dict[str, ast.expr]:
    # Drops the imports of numbers that were taken out of optional modules.
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module in numbers:
            there = numbers[node.module]
            found |= {alias.name: there[alias.name] for alias in node.names if alias.name in there}
            node.names = [alias for alias in node.names if alias.name not in there]
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom) or node.names]
    return found


def _take_table(tree: ast.Module, home: str, table: str, node: ast.Assign) -> None:
    for at, one in enumerate(tree.body):
        if isinstance(one, ast.ImportFrom) and one.module == home and table in [alias.name for alias in one.names]:
            one.names = [alias for alias in one.names if alias.name != table]
            tree.body[at : at + 1] = [*([one] if one.names else []), node]
            return


def _make_global(names: Iterable[str], module: ast.Module) -> None:
    """Make builtins variables of the module.

    A builtin is searched for in the module's table first, in vain, and that takes long if the table is full: on an
    RP2040 a tenth of publish() and its PUBACK.
    """
    body = module.body
    first = next(number for number, node in enumerate(body) if not isinstance(node, (ast.Import, ast.ImportFrom)))
    body[first:first] = [ast.parse(f"{name} = {name}").body[0] for name in names]


def _prepared(file: Path) -> ast.Module:
    tree = minify.without_docstrings(ast.parse(file.read_text()))
    tree = minify.branch_of_boards(tree, _HOST_MODULE)
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.Assign) and "__all__" in minify.targets_of(node))
        and not (isinstance(node, ast.ImportFrom) and node.module == "micropython")  # const()
    ]
    return tree


def _stub(file: Path) -> Path | None:
    stub = file.with_suffix(".pyi")
    return stub if stub.exists() else None


def _top_level(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= minify.targets_of(node)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _names_of_stubs(stubs: Iterable[ast.Module]) -> set[str]:
    names = set()
    for node in (node for stub in stubs for node in minify.walk(stub)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _door(names: list[ast.alias], numbers: Mapping[str, ast.expr]) -> ast.Module:
    body: list[ast.stmt] = [ast.ImportFrom(PACKAGE, names, 0)] if names else []
    body += [ast.Assign([ast.Name(name, ast.Store())], value, lineno=0) for name, value in numbers.items()]
    return ast.Module(body, [])


class _WithoutOwnImports(ast.NodeTransformer):
    """A transformer for joined modules: drops imports from other joined modules; an alias becomes an assignment."""

    def __init__(self, joined: Iterable[str]) -> None:
        self._joined = set(joined)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | None:
        if not node.level:
            return node
        if node.module not in self._joined:
            return ast.ImportFrom(f"{PACKAGE}.{node.module}", node.names, 0)
        for alias in node.names:
            if alias.asname:
                return ast.Assign([ast.Name(alias.asname, ast.Store())], ast.Name(alias.name, ast.Load()), lineno=0)
        return None


class _FromCore(ast.NodeTransformer):
    """A transformer for optional modules: imports from joined ones come from the package; constants are dropped."""

    def __init__(self, joined: Iterable[str], constants: Iterable[str]) -> None:
        self._joined = set(joined)
        self._left_out = {*constants, "const"}

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        # One import of all of them: each statement takes 7 bytes of .mpy.
        together = [one for one in node.body if isinstance(one, ast.ImportFrom) and one.module == PACKAGE]
        for one in together[1:]:
            together[0].names += one.names
            node.body.remove(one)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | None:
        if not node.level:
            return node
        if node.module not in self._joined:
            return ast.ImportFrom(f"{PACKAGE}.{node.module}" if node.module else PACKAGE, node.names, 0)
        names = [alias for alias in node.names if alias.name not in self._left_out]
        return ast.ImportFrom(PACKAGE, names, 0) if names else None
