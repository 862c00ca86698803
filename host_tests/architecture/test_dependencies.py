"""Modules import only what they may, read from the source: every import statement, even those inside functions."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Package:
    """A part of the project, and what it may import besides itself and the standard library."""

    folder: str
    ours: frozenset[str] = frozenset()
    extras: frozenset[str] = frozenset()
    on_device: bool = False


# Longest folder first: a file belongs to the first folder that contains it.
PACKAGES = {
    "testkit's device files": Package(
        "host_tests/umqtt_testkit/_device",
        frozenset({"app", "umqtt_testkit", "file_flash", "power_cut", "board_boot"})
        # Shared by the stubs of a board.
        | {"_virtual", "_port", "_clock", "_bme280", "_sht31", "_pins", "_buses"},
        on_device=True,
    ),
    "umqtt_testkit": Package("host_tests/umqtt_testkit", frozenset({"umqtt_robust"}), frozenset({"kit", "test"})),
    # The broker alone runs without what the commands share.
    "the broker's commands": Package(
        "tools/umqtt_broker/cli", frozenset({"umqtt_broker", "umqtt_cli"}), frozenset({"broker"})
    ),
    "umqtt_broker": Package("tools/umqtt_broker", frozenset({"umqtt_page"}), frozenset({"broker", "redis"})),
    "umqtt_kit": Package(
        "tools/umqtt_kit",
        frozenset({"umqtt_robust", "umqtt_broker", "umqtt_console", "umqtt_testkit", "umqtt_cli", "spark_ingest"}),
        frozenset({"kit", "spark"}),
    ),
    "umqtt_console": Package(
        "tools/umqtt_console",
        frozenset({"umqtt_robust", "umqtt_broker", "umqtt_page", "spark_ingest"}),
        frozenset({"console"}),
    ),
    # Files for browsers, which every page reads.
    "umqtt_page": Package("tools/umqtt_page"),
    # It works with any MQTT broker, so it uses nothing of our broker.
    "spark_ingest": Package(
        "spark_ingest", frozenset({"umqtt_robust", "umqtt_cli", "umqtt_page"}), frozenset({"spark", "alerts"})
    ),
    "umqtt_cli": Package("umqtt_cli", extras=frozenset({"broker"})),
    "umqtt_robust": Package("umqtt_robust", on_device=True),
    "firmware": Package(
        "firmware",
        frozenset({"umqtt_robust", "app", "portal", "boot_choice", "startup", "postmortem", "pins"}),
        on_device=True,
    ),
}

# The modules of MicroPython, built in or frozen on a board. typing, dataclasses, enum, abc, functools, logging,
# contextlib and the like are missing, or would have to be installed.
DEVICE_MODULES = frozenset(
    [
        "__main__",
        "_thread",
        "array",
        "asyncio",
        "binascii",
        "builtins",
        "cmath",
        "collections",
        "cryptolib",
        "deflate",
        "dht",
        "ds18x20",
        "errno",
        "esp",
        "esp32",
        "framebuf",
        "gc",
        "hashlib",
        "heapq",
        "io",
        "json",
        "machine",
        "math",
        "micropython",
        "neopixel",
        "network",
        "ntptime",
        "onewire",
        "os",
        "platform",
        "random",
        "re",
        "rp2",
        "select",
        "socket",
        "ssl",
        "struct",
        "sys",
        "time",
        "tls",
        "uctypes",
        "umachine",
        "utime",
        "vfs",
    ]
)

# (file, module): why a file may import a module that is missing where it runs.
EXCEPTIONS = {
    ("host_tests/umqtt_testkit/flash.py", "vfs"): "runs on MicroPython too, and says so on CPython",
    ("umqtt_robust/_host.py", "ssl"): "CPython's half of _platform, not installed on boards",
    ("umqtt_robust/_host.py", "fcntl"): "likewise: to ask what a socket has sent",
    ("umqtt_robust/_host.py", "termios"): "likewise",
    ("umqtt_robust/_host.py", "tempfile"): "likewise: ssl reads a client's key from a file only",
    ("umqtt_robust/_host.py", "traceback"): "likewise: MicroPython has sys.print_exception()",
    ("firmware/postmortem.py", "traceback"): "used where sys.print_exception is missing: under CPython",
    ("tools/umqtt_broker/compiled.py", "mypy_extensions"): "never imported: for the compiler and the type check",
}

# Inside umqtt_robust: errors <- packets <- session <- client. A module must not reach any to its right.
LAYERS = ("errors", "packets", "session", "client")
# The session only moves bytes: it has no socket, no clock and no file.
SESSION_IS_FREE_OF = frozenset({"socket", "select", "time", "os", "ssl", "tls", "transport", "client", "_host"})
# The order inside these packages, lowest first: a room (a folder, or a module beside them) imports only rooms before
# it, and modules inside a room do not import each other in a circle. An import for a type alone counts too.
BROKER_ROOMS = (
    "errors",
    "stats",
    "json_log",
    "log",
    "compiled",
    "protocol",
    "access",
    "settings",
    "store",
    "core",
    "transport",
    "conf",
    "sessions",
    "routing",
    "clients",
    "observation",
    "reload",
    "broker",
    "process",
    "start_check",
    "cli",
    "__main__",
    "__init__",
)
INGEST_ROOMS = (
    "errors",
    "hosts",
    "address",
    "toml_file",
    "location",
    "durable",
    "java",
    "lock",
    "status",
    "limited_threads",
    "metrics",
    "spool",
    "collector",
    "source",
    "tables",
    "decoders",
    "alerts",
    "gold",
    "pipeline.process",
    "pipeline.decode",
    "pipeline.deduplicate",
    "pipeline.write",
    "pipeline.run",
    "pipeline.change",
    "pipeline",
    "report",
    "sql",
    "cli",
    "__init__",
)
ROOMS = {"umqtt_broker": BROKER_ROOMS, "spark_ingest": INGEST_ROOMS}
# The only module for the differences between the interpreters; what it imports is not charged to its importers.
PLATFORM = "_platform"


@cache
def import_statements(source: str) -> list[ast.Import | ast.ImportFrom]:
    """Return every import of a module, also those inside functions."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(file: Path) -> Iterator[str]:
    """Yield the dotted names of the modules that a file imports; relative ones begin with dots."""
    for node in import_statements(file.read_text()):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        else:
            base = "." * node.level + (node.module or "")
            if base.strip("."):
                yield base
            else:
                yield from (base + name.name for name in node.names)


def python_files(root: Path, package: Package) -> Iterator[Path]:
    inner = [root / other.folder for other in PACKAGES.values() if other.folder.startswith(package.folder + "/")]
    for file in sorted((root / package.folder).rglob("*.py")):
        if not any(file.is_relative_to(folder) for folder in inner):
            yield file


@cache
def import_names() -> dict[str, list[str]]:
    """Return the installed distributions of each importable name."""
    return dict(packages_distributions())


def declared(root: Path) -> dict[str, set[str]]:
    """Return the distribution names of each extra, with our own extras resolved."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    requirements: dict[str, list[str]] = project["optional-dependencies"]

    def names(extra: str) -> Iterator[str]:
        for requirement in requirements[extra]:
            name, inner = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", requirement).groups()
            if _normal(name) == project["name"]:
                for one in inner.split(","):
                    yield from names(one)
            else:
                yield _normal(name)

    return {extra: set(names(extra)) for extra in requirements}


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def violations(root: Path) -> list[str]:
    """Return one line for each import that the rules forbid."""
    return [
        *_package_violations(root),
        *_layer_violations(root / PACKAGES["umqtt_robust"].folder),
        *_boot_violations(root / PACKAGES["firmware"].folder),
        *(line for name, rooms in ROOMS.items() for line in _room_violations(root, name, rooms)),
    ]


def _package_violations(root: Path) -> Iterator[str]:
    extras = declared(root)
    distributions = import_names()
    own_names = {Path(package.folder).name for package in PACKAGES.values()}
    for name, package in PACKAGES.items():
        allowed = {item for extra in package.extras for item in extras.get(extra, ())}
        for file in python_files(root, package):
            where = file.relative_to(root).as_posix()
            for imported in imports(file):
                module = imported.split(".")[0]
                if not module or module in package.ours or module == Path(package.folder).name:
                    continue
                if (where, module) in EXCEPTIONS:
                    continue
                if module in own_names or (root / "host_tests" / module).is_dir() or module == "firmware":
                    yield f"{where}: {name} must not import {module}"
                elif package.on_device:
                    if module not in DEVICE_MODULES:
                        yield f"{where}: a board has no module {module}"
                elif module not in sys.stdlib_module_names:
                    found = {_normal(item) for item in distributions.get(module, [module])}
                    if not found & allowed:
                        yield f"{where}: {module} is not declared in the extras {sorted(package.extras)}"


def _layer_violations(folder: Path) -> Iterator[str]:
    graph = {file.stem: {name.lstrip(".").split(".")[0] for name in imports(file)} for file in folder.glob("*.py")}
    for module in graph:
        reached = _reach(graph, module)
        later = LAYERS[LAYERS.index(module) + 1 :] if module in LAYERS else ()
        for layer in later:
            if layer in reached:
                yield f"umqtt_robust/{module}.py: {module} must not reach {layer}"
    for forbidden in sorted(_reach(graph, "session") & SESSION_IS_FREE_OF):
        yield f"umqtt_robust/session.py: session must not reach {forbidden}"


def _boot_violations(folder: Path) -> Iterator[str]:
    graph = {file.stem: set(imports(file)) for file in folder.glob("*.py")}
    circular = [module for module in graph if module in _reach(graph, module)]
    yield from (f"firmware/{module}.py: imports itself by way of others" for module in circular)


def _room_violations(root: Path, package: str, rooms: tuple[str, ...]) -> Iterator[str]:
    folder = root / PACKAGES[package].folder
    graph = {_dotted(file, folder): set(_own_imports(file, folder)) for file in sorted(folder.rglob("*.py"))}
    for module, imported in graph.items():
        where = f"{PACKAGES[package].folder}/{module.replace('.', '/')}.py"
        room = _room(module, rooms)
        if room not in rooms:
            yield f"{where}: {room} has no place in ROOMS"
            continue
        for name in sorted({_room(other, rooms) for other in imported} - {room}):
            if name not in rooms or rooms.index(name) > rooms.index(room):
                yield f"{where}: {room} must not import {name}"
        if module in _reach(graph, module):
            yield f"{where}: {module} imports itself by way of others"


def _room(module: str, rooms: tuple[str, ...]) -> str:
    """Return the room of a module: the innermost one that has a place in `rooms`, or else the outermost."""
    parts = module.split(".")
    above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((room for room in above if room in rooms), parts[0])


def _dotted(file: Path, folder: Path) -> str:
    return ".".join(file.relative_to(folder).with_suffix("").parts)


def _own_imports(file: Path, folder: Path) -> Iterator[str]:
    """Yield the modules of its own package that a file imports, as dotted paths such as `store.base`."""
    for node in import_statements(file.read_text()):
        if isinstance(node, ast.Import):
            names = [item.name.split(".") for item in node.names]
        else:
            package = [folder.name, *file.relative_to(folder).parts[:-1]]
            base = package[: len(package) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            names = [[*base, item.name] for item in node.names]
        for package, *path in names:
            if package != folder.name:
                continue
            # The longest prefix that is a module: the rest is a name in it.
            at = folder.joinpath(*path)
            while at != folder and not at.is_dir() and not at.with_suffix(".py").exists():
                at = at.parent
            yield _dotted(at / "__init__.py" if at.is_dir() else at.with_suffix(".py"), folder)


def _reach(graph: dict[str, set[str]], module: str) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph.get(module, ()))
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            if name != PLATFORM:
                waiting.extend(graph.get(name, ()))
    return reached


def test_every_import_follows_the_dependency_directions():
    assert violations(ROOT) == []


def test_the_broker_lists_its_rooms_in_the_order_of_their_imports():
    source = (ROOT / PACKAGES["umqtt_broker"].folder / "__init__.py").read_text()
    rows = re.findall(r"^    ([a-z_]+(?:, [a-z_]+)*)  ", source, re.MULTILINE)
    assert [room for row in rows for room in row.split(", ")] == [*BROKER_ROOMS[:-1]]


def test_every_exception_is_still_needed():
    stale = [entry for entry in EXCEPTIONS if entry[1] not in set(imports(ROOT / entry[0]))]
    assert stale == []


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("umqtt_robust/packets.py", "from .session import Session", "packets must not reach session"),
        ("umqtt_robust/errors.py", "from . import packets", "errors must not reach packets"),
        ("umqtt_robust/session.py", "def f():\n    import socket", "session must not reach socket"),
        ("umqtt_robust/packets.py", "import time", "session must not reach time"),
        ("umqtt_robust/session.py", "from .transport import TCP", "session must not reach transport"),
        ("umqtt_robust/topics.py", "from dataclasses import dataclass", "a board has no module dataclasses"),
        ("umqtt_robust/topics.py", "import functools", "a board has no module functools"),
        ("umqtt_robust/client.py", "import app.telemetry", "a board has no module app"),
        ("umqtt_robust/client.py", "import umqtt_broker", "umqtt_robust must not import umqtt_broker"),
        ("firmware/app/clock.py", "import typing", "a board has no module typing"),
        ("firmware/main.py", "import umqtt_testkit.portable", "firmware must not import umqtt_testkit"),
        ("firmware/startup.py", "import boot_choice", "firmware/startup.py: imports itself by way of others"),
        ("spark_ingest/status.py", "from umqtt_broker import Broker", "spark_ingest must not import umqtt_broker"),
        ("spark_ingest/tables.py", "import click_spinner", "not declared in the extras ['alerts', 'spark']"),
        ("tools/umqtt_broker/broker.py", "import uvloop", "uvloop is not declared in the extras ['broker', 'redis']"),
        ("tools/umqtt_broker/broker.py", "import spark_ingest", "umqtt_broker must not import spark_ingest"),
        ("tools/umqtt_broker/core/limits.py", "from ..broker import Broker", "core must not import broker"),
        (
            "tools/umqtt_broker/core/limits.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..broker import Broker",
            "core must not import broker",
        ),
        ("tools/umqtt_broker/core/limits.py", "def f():\n    from .. import broker", "core must not import broker"),
        ("tools/umqtt_broker/core/limits.py", "import umqtt_broker.broker", "core must not import broker"),
        ("tools/umqtt_broker/core/limits.py", "from umqtt_broker import Broker", "core must not import __init__"),
        ("tools/umqtt_broker/core/clock.py", "from .limits import Limits", "core.clock imports itself"),
        ("spark_ingest/durable.py", "from .pipeline import batch", "durable must not import pipeline"),
        ("spark_ingest/pipeline/run/upkeep.py", "from .query import run", "pipeline.run.upkeep imports itself"),
        (
            "spark_ingest/pipeline/run/upkeep.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .query import run",
            "pipeline.run.upkeep imports itself",
        ),
        ("spark_ingest/attic.py", "", "attic has no place in ROOMS"),
        ("umqtt_cli/numbers.py", "from spark_ingest import errors", "umqtt_cli must not import spark_ingest"),
        ("umqtt_cli/numbers.py", "import pyarrow_hotfix", "pyarrow_hotfix is not declared"),
        ("tools/umqtt_broker/broker.py", "import umqtt_cli", "umqtt_broker must not import umqtt_cli"),
        ("tools/umqtt_broker/cli/store.py", "import umqtt_kit", "the broker's commands must not import umqtt_kit"),
        ("spark_ingest/cli/spool.py", "import umqtt_kit", "spark_ingest must not import umqtt_kit"),
        ("tools/umqtt_broker/attic/old.py", "", "attic has no place in ROOMS"),
        ("tools/umqtt_broker/attic.py", "", "attic has no place in ROOMS"),
        ("host_tests/umqtt_testkit/board.py", "import unit.helpers", "umqtt_testkit must not import unit"),
        ("host_tests/umqtt_testkit/board.py", "import umqtt_kit", "umqtt_testkit must not import umqtt_kit"),
        ("host_tests/umqtt_testkit/_device/a.py", "import pathlib", "a board has no module pathlib"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, source: str, complaint: str):
    good = {
        "umqtt_robust/errors.py": "import micropython",
        "umqtt_robust/packets.py": "from .errors import ProtocolError",
        "umqtt_robust/_platform.py": "import time",
        "umqtt_robust/session.py": "from . import packets\nfrom ._platform import const",
        "umqtt_robust/client.py": "import os\nfrom .session import Session",
        "firmware/boot_choice.py": "import startup",
        "firmware/startup.py": "import os",
        "firmware/main.py": "from app import telemetry\nfrom umqtt_robust import Client\nimport machine",
        "spark_ingest/status.py": "import click, json\nfrom umqtt_robust import Client",
        "spark_ingest/pipeline/run/upkeep.py": "from umqtt_cli.numbers import Finite",
        "spark_ingest/pipeline/run/query.py": "from ...status import Status\nfrom .upkeep import Upkeep",
        "tools/umqtt_broker/broker.py": "import asyncio",
        "tools/umqtt_broker/__init__.py": "from .broker import Broker",
        "tools/umqtt_broker/core/__init__.py": "",
        "tools/umqtt_broker/core/clock.py": "",
        "tools/umqtt_broker/core/limits.py": "from .clock import Clock\nfrom umqtt_broker.core import clock",
        "host_tests/umqtt_testkit/plugin.py": "import pytest\nfrom .both import x",
        "host_tests/unit/test_x.py": "",
        "pyproject.toml": (ROOT / "pyproject.toml").read_text(),
    }
    for name, text in good.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert violations(tmp_path) == []
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    with (tmp_path / file).open("a") as planted:
        planted.write("\n" + source + "\n")
    assert any(complaint in line for line in violations(tmp_path))
