"""Programs that the tools run on a board, and the replies that they recognize, name only what the firmware has.

These programs are text, which no type checker reads, and a board that lacks a name may just have an older firmware.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import umqtt_kit
from umqtt_kit import device_commands
from umqtt_kit.app_bundle import AppBundle
from umqtt_kit.data import firmware_folder
from umqtt_kit.ota import order

import umqtt_robust

_KIT = Path(umqtt_kit.__file__).parent


@cache
def _firmware() -> dict[str, ast.Module]:
    """Return the modules as they lie on a board, where private names are short, by their dotted names."""
    found = AppBundle(firmware_folder()).sources
    return {name.removesuffix(".__init__"): ast.parse(text) for name, text in found.items()}


@cache
def _attributes() -> set[str]:
    """Return the names of all methods and attributes that firmware and client's parts define, whatever their class."""
    # Parts of the client that are no modules of the bundle keep their public names on a board.
    library = Path(umqtt_robust.__file__).parent
    parts = [ast.parse((library / f"{name}.py").read_text()) for name in ("session", "quarantine")]
    nodes = [node for tree in (*_firmware().values(), *parts) for node in ast.walk(tree)]
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    defined |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return defined | {name for each in classes for name in _made(each.body)}


def _made(body: list[ast.stmt]) -> set[str]:
    """Return the names that these statements make."""
    found = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assigned = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    imported = [alias for node in body if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names]
    names = [node for target in assigned for node in ast.walk(target) if isinstance(node, ast.Name)]
    return found | {node.id for node in names} | {alias.asname or alias.name for alias in imported}


def _parsed(text: str) -> ast.Module:
    """Return a text as a program, an empty one if it is none; fields of str.format() stand for None."""
    for one in (text, re.sub(r"(?<!\{)\{\w+(!r)?\}", "None", text).replace("{{", "{").replace("}}", "}")):
        try:
            return ast.parse(one)
        except (SyntaxError, ValueError):
            continue
    return ast.parse("")


def _uses(program: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield what the program uses of the firmware: ("startup", "now"), ("", name) for an attribute of an object."""
    ours: dict[str, str] = {"board": ""}  # variables: the module that each is, or "" for an object
    # What is imported where an import has failed is of another firmware than ours.
    handlers = [node for node in ast.walk(program) if isinstance(node, ast.ExceptHandler)]
    other = {id(node) for handler in handlers for node in ast.walk(handler)}
    for node in ast.walk(program):
        if id(node) in other:
            continue
        if isinstance(node, ast.Import):
            ours |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in _firmware()}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "app":
            ours |= {alias.asname or alias.name: "" for alias in node.names}
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Assign) and _root(node.value, ours) is not None:
            ours |= {target.id: "" for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(program):
        if isinstance(node, ast.Attribute) and (module := _root(node.value, ours)) is not None:
            yield module, node.attr


def _root(node: ast.expr, ours: dict[str, str]) -> str | None:
    """Return the module of the firmware that an expression is, "" if it is made from one, None for anything else."""
    if isinstance(node, ast.Name):
        return ours.get(node.id)
    if isinstance(node, ast.BoolOp):
        return next((found for each in node.values if (found := _root(each, ours)) is not None), None)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "__import__":
        name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        return name if isinstance(name, str) and name in _firmware() else None
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return None if _root(node.value, ours) is None else ""
    if isinstance(node, ast.Call):
        return None if _root(node.func, ours) is None else ""
    return None


def _programs() -> dict[str, list[tuple[str, str]]]:
    found = {}
    for file in sorted(_KIT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search("import|\n", node.value):
                uses = sorted(set(_uses(_parsed(node.value))))
                if uses:
                    found[f"{file.relative_to(_KIT)}:{node.lineno}"] = uses
    return found


def test_a_program_for_the_board_names_only_what_the_firmware_has() -> None:
    """Planted: startup._cause(), which is boot_choice.cause(); board.clock.uptime(); from app.health import Gone.

    Only texts that are programs before str.format() are looked at.
    """
    programs = _programs()
    for place, uses in programs.items():
        for module, name in uses:
            there = _made(_firmware()[module].body) if module else _attributes()
            assert name in there, f"{place}: {module or 'no object'} has no {name}"
    assert {(place.partition(":")[0], name) for place, uses in programs.items() for _, name in uses} >= {
        ("doctor/scripts.py", "cause"), ("doctor/scripts.py", "Sensors"), ("doctor/scripts.py", "uptime_ms"),
        ("deploy/apply.py", "mark"), ("device/running.py", "restart"), ("deploy/telemetry.py", "delivered"),
    }  # fmt: skip


@pytest.mark.parametrize("words", [*order._UNDER_WAY, device_commands._WRONG_SIGNATURE, device_commands._UNSIGNED])
def test_words_that_the_tools_look_for_in_a_reply_are_those_of_the_firmware(words: str):
    """Planted: "an update goes on"."""
    assert any(words in file.read_text() for file in firmware_folder().joinpath("app").glob("*.py"))
