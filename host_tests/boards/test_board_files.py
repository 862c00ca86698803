"""The boards' descriptions follow the schema, and every list of files names the same files, all of which compile."""

from __future__ import annotations

import ast
import json
import re
import struct
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from umqtt_kit.bundle import Bundle
from umqtt_kit.deploy import filesets
from umqtt_kit.deploy.build import deployed_files
from umqtt_kit.mpy_cross import mpy_cross_command
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.models import MODELS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import write_packages  # noqa: E402

pytestmark = pytest.mark.tier(1)

BOARDS = ROOT / "boards"
LIBRARY = ROOT / "umqtt_robust"
NAMES = sorted(folder.parent.name for folder in BOARDS.glob("*/board.json"))
SCHEMA = json.loads((BOARDS / "board.schema.json").read_text())


def described(name: str) -> dict[str, Any]:
    return json.loads((BOARDS / name / "board.json").read_text())


# The schema

_TYPES = {"string": str, "integer": int, "object": dict, "array": list, "null": type(None)}
_NOT_RULES = {"$schema", "title", "description"}


def violations(value: Any, schema: Mapping[str, Any], where: str = "") -> list[str]:
    """Return the value's violations of the schema, for the keywords of board.schema.json; any other is an error."""
    found = []
    for keyword, rule in schema.items():
        if keyword in _NOT_RULES:
            continue
        check = _CHECKS[keyword]
        found += [f"{where or '/'}: {problem}" for problem in check(value, rule, schema)]
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        for key, each in value.items():
            rule = inner.get(key, schema.get("additionalProperties"))
            if isinstance(rule, dict):
                found += violations(each, rule, f"{where}/{key}")
            if isinstance(schema.get("propertyNames"), dict):
                found += violations(key, schema["propertyNames"], f"{where}/{key} as a name")
    if isinstance(value, list) and "items" in schema:
        for position, each in enumerate(value):
            found += violations(each, schema["items"], f"{where}/{position}")
    return found


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return _is(value, "integer")


def _nothing(value: Any, rule: Any, schema: Mapping[str, Any]) -> list[str]:
    return []


_CHECKS = {
    "type": lambda v, rule, s: (
        [] if any(_is(v, name) for name in ([rule] if isinstance(rule, str) else rule)) else [f"{v!r} is no {rule}"]
    ),
    "enum": lambda v, rule, s: [] if v in rule else [f"{v!r} is not one of {rule}"],
    "const": lambda v, rule, s: [] if v == rule else [f"{v!r} is not {rule!r}"],
    "pattern": lambda v, rule, s: (
        [] if not isinstance(v, str) or re.search(rule, v) else [f"{v!r} does not match {rule}"]
    ),
    "minLength": lambda v, rule, s: [] if not isinstance(v, str) or len(v) >= rule else ["is too short"],
    "minimum": lambda v, rule, s: [] if not _number(v) or v >= rule else [f"{v} is less than {rule}"],
    "maximum": lambda v, rule, s: [] if not _number(v) or v <= rule else [f"{v} is more than {rule}"],
    "minItems": lambda v, rule, s: [] if len(v) >= rule else ["has too few entries"],
    "uniqueItems": lambda v, rule, s: [] if len(set(v)) == len(v) else ["has an entry twice"],
    "required": lambda v, rule, s: [f"{key} is missing" for key in rule if key not in v],
    "additionalProperties": lambda v, rule, s: (
        [f"{key} is unknown" for key in v if key not in s.get("properties", {})] if rule is False else []
    ),
    "properties": _nothing,  # handled in violations(), with the two below
    "propertyNames": _nothing,
    "items": _nothing,
}


@pytest.mark.parametrize("name", NAMES)
def test_board_json_follows_the_schema(name: str):
    assert violations(described(name), SCHEMA) == []
    assert described(name)["name"] == name


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"chip": "z80"}, "/chip: 'z80' is not one of"),
        ({"usb_ids": ["2E8A:0005"]}, "/usb_ids/0: '2E8A:0005' does not match"),
        ({"littlefs": {"block_size": 512, "block_count": 1, "program_size": 32}}, "/littlefs/block_size: 512 is not"),
        ({"pins": {"i2c_scl": 1, "i2c_sda": 2, "onewire": 3, "dht": True}}, "/pins/dht: True is no"),
        ({"pins": {"i2c_scl": 1, "i2c_sda": 2, "onewire": 3, "dht": 4, "flux": 5}}, "/pins/flux as a name"),
        ({"features": ["wifi", "wifi"]}, "/features: has an entry twice"),
        ({"flash_bytes": "2 MiB"}, "/flash_bytes: '2 MiB' is no integer"),
        ({"colour": "green"}, "/: colour is unknown"),
    ],
)
def test_a_board_json_that_is_wrong_is_found(change: dict[str, Any], complaint: str):
    wrong = {**described("RPI_PICO_W"), **change}
    assert any(problem.startswith(complaint) for problem in violations(wrong, SCHEMA))


# The files of one board agree with each other


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_complete(name: str):
    assert {file.name for file in (BOARDS / name).iterdir()} >= {"board.json", "pins.py", "manifest.py", "README.md"}


@pytest.mark.parametrize("name", NAMES)
def test_pins_py_says_what_board_json_says(name: str):
    pins: dict[str, Any] = {}
    exec((BOARDS / name / "pins.py").read_text(), {}, pins)
    told = {key: value for key, value in pins.items() if key != "__doc__"}
    assert told == {role.upper(): pin for role, pin in described(name)["pins"].items()}
    assert len(set(told.values())) == len(told), "two roles on one pin"


@pytest.mark.parametrize("name", NAMES)
def test_a_virtual_board_plays_what_board_json_describes(name: str):
    board, model = described(name), MODELS[name]
    assert (board["sys_platform"], board["machine"]) == (model.platform, model.machine or None)
    assert board["littlefs"]["block_count"] == model.geometry.block_count
    assert board["littlefs"]["program_size"] == model.geometry.program_size
    assert board["littlefs"]["block_count"] * board["littlefs"]["block_size"] <= board["flash_bytes"]
    if board["chip"]:
        assert board["chip"] == model.chip


def test_each_model_has_a_folder():
    assert sorted(MODELS) == NAMES


# The file sets


class Manifest:
    """Runs a manifest.py with MicroPython's manifest functions and records target path -> source file.

    `$(PORT_DIR)` belongs to MicroPython and is left out.
    """

    def __init__(self, path: Path) -> None:
        self.files: dict[str, Path] = {}
        self.ports: list[str] = []
        self._run(path)

    def _run(self, path: Path) -> None:
        folder = path.parent

        def include(manifest: str) -> None:
            if manifest.startswith("$("):
                self.ports.append(manifest)
            else:
                self._run(folder / manifest)

        def package(name: str, files: list[str] | None = None, base_path: str = ".", opt: int | None = None) -> None:
            base = folder / base_path / name
            for file in files or [found.relative_to(base).as_posix() for found in base.rglob("*.py")]:
                self._add(f"{name}/{file}", base / file)

        def module(name: str, base_path: str = ".", opt: int | None = None) -> None:
            self._add(name, folder / base_path / name)

        # The build runs it in its own folder; no other test may depend on the working directory.
        source = path.read_text().replace('open("', f'open("{folder}/').replace('listdir("', f'listdir("{folder}/')
        exec(compile(source, str(path), "exec"), {"include": include, "package": package, "module": module})

    def _add(self, target: str, source: Path) -> None:
        assert source.is_file(), f"{source} does not exist"
        assert target not in self.files, f"{target} is frozen twice"
        self.files[target] = source.resolve()


@pytest.mark.parametrize("name", NAMES)
def test_manifest_freezes_the_library_the_firmware_and_the_pins_of_its_board(name: str):
    manifest = Manifest(BOARDS / name / "manifest.py")
    library = (file for file in LIBRARY.glob("*.py") if file.stem not in filesets.HOST_MODULES)
    wanted = {file.relative_to(ROOT).as_posix(): file for file in library}
    firmware = ROOT / "firmware"
    wanted |= {file.relative_to(firmware).as_posix(): file for file in firmware.rglob("*.py")}
    wanted["pins.py"] = BOARDS / name / "pins.py"
    assert manifest.files == wanted
    assert len(manifest.ports) == 1, "what the official image has frozen"


def library_of(paths: list[str]) -> set[str]:
    return {Path(path).stem for path in paths if path.startswith("umqtt_robust/")}


def test_manifest_mip_and_deploy_install_the_same_library():
    sets = write_packages.library_sets()
    frozen = library_of(list(Manifest(BOARDS / "UNIX" / "manifest.py").files))
    written = {name: json.loads((ROOT / name).read_text()) for name in (write_packages.CORE, write_packages.FULL)}
    assert library_of([target for target, _ in written[write_packages.FULL]["urls"]]) == frozen
    assert library_of([target for target, _ in written[write_packages.CORE]["urls"]]) == set(sets["core"])
    # deploy: what a user's own program needs comes only by mip; the bundle has joined some modules into one.
    assert set(sets["tls"] + sets["websocket"]) == filesets.OPTIONAL - filesets.OF_APPLICATION
    assert set(sets["programs"]) == filesets.FOR_PROGRAMS
    bundle = Bundle(LIBRARY)
    deployed = set(filesets.library_modules(bundle.sources)) | set(bundle.joined) | filesets.FOR_PROGRAMS
    assert deployed == frozen


def test_a_board_with_source_has_no_driver_and_no_module_of_programs_either():
    """Planted: a small flash gets all drivers."""
    stems = {Path(path).stem for path in deployed_files()}
    assert not stems & (filesets.HOST_MODULES | filesets.FOR_PROGRAMS | filesets.driver_modules().keys())


@pytest.mark.parametrize("name", [write_packages.CORE, write_packages.FULL])
def test_package_json_is_up_to_date(name: str):
    text = write_packages.text_of(write_packages.packages()[name])
    assert (ROOT / name).read_text() == text, "run: .venv/bin/python tools/write_packages.py"
    assert all((ROOT / source).is_file() for _, source in json.loads(text)["urls"])


def test_every_set_names_modules_that_exist_and_each_once():
    sets = write_packages.library_sets()
    named = [module for members in sets.values() for module in members]
    assert sorted(named) == sorted(file.stem for file in LIBRARY.glob("*.py"))


def test_core_needs_nothing_of_the_other_sets_when_it_is_imported():
    core = set(write_packages.library_sets()["core"])
    for name in sorted(core):
        for node in ast.parse((LIBRARY / f"{name}.py").read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level:
                assert {node.module} <= core or not node.module, f"{name} imports {node.module}"


# Compiling


@pytest.fixture(scope="module")
def mpy_version() -> int:
    """Return the .mpy version that the installed MicroPython loads."""
    try:
        command = micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    program = "import sys; print(sys.implementation._mpy & 0xff)"
    return int(subprocess.run([*command, "-c", program], capture_output=True, text=True, check=True).stdout)


def test_every_frozen_file_compiles_for_the_boards(tmp_path: Path, mpy_version: int):
    sources = {file for name in NAMES for file in Manifest(BOARDS / name / "manifest.py").files.values()}

    def compiled(job: tuple[int, Path]) -> tuple[Path, str, bytes]:
        number, source = job
        target = tmp_path / f"{number}.mpy"
        done = subprocess.run(
            [mpy_cross_command(), "-o", str(target), str(source)], capture_output=True, text=True, check=False
        )
        return source, done.stderr, target.read_bytes()[:3] if target.exists() else b""

    with ThreadPoolExecutor(2) as pool:
        for source, problem, head in pool.map(compiled, enumerate(sorted(sources))):
            assert problem == "", source
            # tools/mpy-tool.py: M, version, then flags; their upper bits are those of machine code, of which there is
            # none.
            letter, version, flags = struct.unpack("cBB", head)
            assert (letter, version, flags >> 2) == (b"M", mpy_version, 0), source
