"""Joins and shortens Python sources for boards, by optimisations that mpy-cross does not make.

This module knows nothing about what it is given: bundle.py says what is joined of the client, whose names all stay;
app_bundle.py what is joined of the firmware, and which of its names become short.
"""

from __future__ import annotations

import ast
import functools
import keyword
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping

# Names that every MicroPython has in its ROM, and every .mpy refers to by number (py/makeqstrdata.py). As a private
# name, such a word takes two bytes of flash and no heap; any other takes some 10 bytes of flash and 25 of heap.
_WORDS = """
ArithmeticError AssertionError AttributeError EOFError Ellipsis GeneratorExit ImportError IndentationError IndexError
KeyError KeyboardInterrupt LookupError NameError NotImplementedError OverflowError RuntimeError StopIteration
SyntaxError SystemExit TypeError ValueError ZeroDivisionError abs all any append args bool builtins bytecode callable
chr classmethod clear close copy count dict dir divmod end endswith eval exec extend find format from_bytes get
getattr globals hasattr hash id index insert int isalpha isdigit isinstance islower isspace issubclass isupper items
iter join key keys len list little locals lower lstrip main map next object open ord pop popitem pow print range read
readinto readline remove replace repr reverse rfind rindex round rsplit rstrip send sep set setattr setdefault sort
sorted split start startswith staticmethod step stop str strip sum super throw to_bytes tuple type update upper value
values write zip
"""
ROM_NAMES = tuple(_WORDS.split())
# Short names of modules and functions in every board's MicroPython: they take no heap, but an .mpy spells them.
SPELLED_ROM_NAMES = ("e", "pi", "io", "os", "gc", "re", "exp", "log", "sin", "cos", "tan", "add", "sys", "path")
# Names of one or two of these letters are next best.
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Fields that hold an operator or a context: half of all nodes, and none of them has a name.
_WITHOUT_NAMES = frozenset({"ctx", "op", "ops"})


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node in the order of ast.walk(), except operators and contexts."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for field in _fields(type(node)):
            value = getattr(node, field, None)
            if isinstance(value, list):
                waiting.extend([one for one in value if isinstance(one, ast.AST)])
            elif isinstance(value, ast.AST):
                waiting.append(value)


@functools.cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(field for field in kind._fields if field not in _WITHOUT_NAMES)


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Remove all docstrings; a function or class with nothing else gets `pass`. Return the tree."""
    for node in walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    return tree


def branch_of_boards(tree: ast.Module, host_module: str) -> ast.Module:
    """Replace each `try` that imports `host_module` by what runs without that module. Return the tree."""

    def imports_host(body: Iterable[ast.stmt]) -> bool:
        return any(isinstance(node, ast.ImportFrom) and node.module == host_module for node in body)

    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Try) and any(imports_host(handler.body) for handler in node.handlers):
            body += node.body
        elif isinstance(node, ast.Try) and imports_host(node.orelse):
            body += node.handlers[0].body
        else:
            body.append(node)
    tree.body = body
    return tree


def targets_of(node: ast.Assign) -> set[str]:
    """Return the names that an assignment sets."""
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def take_constants(tree: ast.Module, public: Iterable[str] = ()) -> dict[str, ast.expr]:
    """Remove each assignment of a number to a name in capitals, unless it is public; return the numbers by name."""
    found: dict[str, ast.expr] = {}
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(targets := targets_of(node)) == 1:
            (name,) = targets
            value = node.value
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "const":
                value = value.args[0]
            if name.isupper() and name not in public and _is_number(value):
                found[name] = value
                continue
        body.append(node)
    tree.body = body
    return found


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        value = value.operand
    return isinstance(value, ast.Constant) and isinstance(value.value, int) and not isinstance(value.value, bool)


class _Inline(ast.NodeTransformer):
    def __init__(self, constants: Mapping[str, ast.expr]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._constants.get(node.id, node)


def with_constants(tree: ast.Module, constants: Mapping[str, ast.expr]) -> ast.Module:
    """Return the module with numbers in place of these names; mpy-cross folds expressions of them."""
    return _Inline(constants).visit(tree)


def without_class_names(tree: ast.Module) -> ast.Module:
    """Make each class delete its __module__ and __qualname__, which MicroPython never reads. Return the tree."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            node.body.insert(0, ast.Delete([ast.Name("__module__", ast.Del()), ast.Name("__qualname__", ast.Del())]))
    return tree


def with_empty_classes_by_call(tree: ast.Module) -> ast.Module:
    """Replace each class without a body by a call of type(), which needs no code object. Return the tree."""

    def made(node: ast.stmt) -> ast.stmt:
        if isinstance(node, ast.ClassDef) and all(isinstance(one, ast.Pass) for one in node.body):
            call = ast.Call(
                ast.Name("type", ast.Load()),
                [ast.Constant(node.name), ast.Tuple(node.bases, ast.Load()), ast.Dict([], [])],
                [],
            )
            return ast.Assign([ast.Name(node.name, ast.Store())], call, lineno=node.lineno)
        return node

    tree.body = [made(node) for node in tree.body]
    return tree


class Names:
    """The names in sources, by kinds that never mix.

    attributes: how often each name of an attribute, a method or a class member is used. variables: the same for names
    of modules and functions, arguments included. keywords: names of arguments that calls spell. strings: strings that
    could be names. made_attributes, made_globals: names that the sources themselves define; made_values: those of the
    attributes that are no methods.
    """

    def __init__(self, trees: Iterable[ast.AST]) -> None:
        self.attributes: Counter[str] = Counter()
        self.variables: Counter[str] = Counter()
        self.keywords: set[str] = set()
        self.strings: set[str] = set()
        self.made_attributes: set[str] = set()
        self.made_globals: set[str] = set()
        methods: set[str] = set()
        for tree in trees:
            if isinstance(tree, ast.Module):
                self.made_globals |= made_globals(tree)
            for node in walk(tree):
                self._take(node)
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    methods.add(node.name)
        self.made_values = self.made_attributes - methods

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            self.variables[node.id] += 1
        elif isinstance(node, ast.arg):
            self.variables[node.arg] += 1
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ExceptHandler)) and node.name:
            self.variables[node.name] += 1
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self.variables.update(node.names)
        elif isinstance(node, ast.alias):
            self.variables.update([*node.name.split("."), node.asname or node.name])
            self.attributes.update(node.name.split("."))
        elif isinstance(node, ast.Attribute):
            self.attributes[node.attr] += 1
            if isinstance(node.ctx, ast.Store):
                self.made_attributes.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            self.keywords.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            self.strings.add(node.value)
        elif isinstance(node, ast.ClassDef):
            self.variables[node.name] += 1
            for statement in node.body:
                if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self.made_attributes.add(statement.name)
                    self.attributes[statement.name] += 1
                if isinstance(statement, ast.Assign):
                    self.made_attributes |= targets_of(statement)
                    self.attributes.update(targets_of(statement))


def made_globals(tree: ast.Module) -> set[str]:
    """Return the names that a module defines at its top level, except those it imports under their own names."""
    made: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, ast.Assign):
            made |= targets_of(node)
        elif isinstance(node, ast.ImportFrom):
            made |= {one.asname for one in node.names if one.asname}
    return made


def rename_variables(tree: ast.AST, new: Mapping[str, str]) -> None:
    """Rename variables of modules in place. new: new names by old.

    No function may have a variable of its own with one of these names.
    """
    for node in walk(tree):
        if isinstance(node, ast.Name):
            node.id = new.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = new.get(node.arg, node.arg)
        elif isinstance(node, ast.ClassDef):
            node.name = new.get(node.name, node.name)
        elif isinstance(node, ast.alias):
            if node.asname is None:
                node.name = new.get(node.name, node.name)
            else:
                node.asname = new.get(node.asname, node.asname)
        elif isinstance(node, ast.Module):
            _rename_functions(node.body, new)


def rename_attributes(tree: ast.Module, new: Mapping[str, str]) -> None:
    """Rename attributes, methods and class members in place. new: new names by old."""
    for node in walk(tree):
        if isinstance(node, ast.Attribute):
            node.attr = new.get(node.attr, node.attr)
        elif isinstance(node, ast.ClassDef):
            _rename_functions(node.body, new)
            for target in (one for part in node.body if isinstance(part, ast.Assign) for one in part.targets):
                if isinstance(target, ast.Name):
                    target.id = new.get(target.id, target.id)


def _rename_functions(body: Iterable[ast.stmt], new: Mapping[str, str]) -> None:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            statement.name = new.get(statement.name, statement.name)


def with_short_arguments(
    tree: ast.Module, public: Iterable[str], keywords: Iterable[str], pool: Iterable[str]
) -> ast.Module:
    """Rename the arguments of functions to names that the function does not use, first those of the pool.

    public: functions (as `function` or `Class.function`) whose arguments programs may spell; keywords: arguments that
    calls in the library spell. Both stay. Returns the tree.
    """
    public = set(public)
    keywords = set(keywords)
    # In a method, MicroPython takes __class__ for the class that super() needs.
    pool = [name for name in (*pool, *ROM_NAMES, *_LETTERS) if name != "__class__"]
    for name, function in _outermost_functions(tree):
        nodes = list(walk(function))
        names = [node.arg for node in nodes if isinstance(node, ast.arg)]
        own = {argument.arg for argument in _arguments(function)} - {"self"} if name in public else set()
        wanted = [name for name in dict.fromkeys(names) if name not in own | keywords]
        used = Names([function]).variables
        free = iter([name for name in pool if name not in used])
        short = {name: next(free) for name in wanted}
        for node in nodes:
            if isinstance(node, ast.Name):
                node.id = short.get(node.id, node.id)
            elif isinstance(node, ast.arg):
                node.arg = short.get(node.arg, node.arg)
    return tree


def _outermost_functions(tree: ast.Module) -> Iterable[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for inner in node.body if isinstance(node, ast.ClassDef) else (node,):
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield prefix + inner.name, inner


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterable[ast.arg]:
    every = function.args
    yield from (*every.posonlyargs, *every.args, *every.kwonlyargs)
    yield from (one for one in (every.vararg, every.kwarg) if one)


def short_names(wanted: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """Return a short name, not among `taken`, for each wanted name; the first ones get the cheapest."""
    taken = set(taken)
    pool = [*ROM_NAMES, *SPELLED_ROM_NAMES, *_LETTERS, *(a + b for a in _LETTERS for b in _LETTERS)]
    free = [name for name in dict.fromkeys(pool) if name not in taken and not keyword.iskeyword(name)]
    return dict(zip(wanted, free, strict=False))
