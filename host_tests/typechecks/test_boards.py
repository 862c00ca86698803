"""Device code uses only what the boards have: a type checker checks it against stubs of each board's own modules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from get_stubs import BOARDS, stubs_of
from umqtt_kit.deploy.filesets import HOST_MODULES

_ROOT = Path(__file__).resolve().parents[2]
_HOST_FILES = [f"{name}.py" for name in HOST_MODULES]


@dataclass(frozen=True)
class Allowed:
    """An accepted complaint. file, message: regular expressions; why: the reason for accepting it."""

    file: str
    message: str
    why: str

    def matches(self, told: Complaint) -> bool:
        return bool(re.match(self.file, told.file) and re.search(self.message, told.message))


_EXCEPTIONS = (
    Allowed(r"umqtt_robust/_platform\.py", "ticks_diff", "the library's own replaces one with another period"),
    Allowed(r"umqtt_robust/(client|session|simple)\.py", r"_TicksMs", "ticks_ms() is an int, which the stubs hide"),
    Allowed(r"umqtt_robust/\w+\.py", r'Import "\._host" could not be resolved', "the computer's half, not on boards"),
    Allowed(
        r"umqtt_robust/\w+\.py",
        r'Argument of type "[^"]*\| None" cannot be assigned',
        "an attribute is None only while nothing uses it; without annotations the checker cannot know",
    ),
    Allowed(
        r"umqtt_robust/(session|aio)\.py",
        r'"Never" is not iterable|"refused" for class "None"',
        "mqtt5 is None only on a link of MQTT 3.1.1; the checker takes it for None always",
    ),
    Allowed(
        r"umqtt_robust/(session|simple)\.py",
        r'"MethodType" is not assignable to "None"|No overloads for "__setitem__"',
        "on_connect is None until connect() sets it; and a message's topic is bytes once it is encoded",
    ),
    Allowed(r"umqtt_robust/flash\.py", r'"_places"', "backlog.py sets it when it opens the store"),
    Allowed(
        r"firmware/portal/__init__\.py",
        r'Import "rp2" could not be resolved|"ModuleType"',
        "the button of a Pico alone; and a class stands for the package app, which is not to be loaded",
    ),
    Allowed(r"firmware/app/reasons\.py", r'parameter "key"', "what is not a key has no text"),
    Allowed(
        r"umqtt_robust/transport\.py",
        r"Expected 1 positional argument",
        "a stream's write(buf, offset, size): in py/stream.c, not in the stubs",
    ),
    Allowed(
        r"umqtt_robust/aio\.py",
        r'"core" is unknown import symbol|"AsyncGenerator\[Unknown, Any\]" cannot be assigned',
        "asyncio.core and its tasks that yield: in extmod/asyncio, not in the stubs",
    ),
    Allowed(
        r"umqtt_robust/aio\.py",
        r'"None" is not awaitable|"waits" for class "TCP"',
        "set by __aenter__(); and asked for with hasattr()",
    ),
    Allowed(
        r"firmware/postmortem\.py",
        r"StringIO",
        "print_exception() takes it and it has getvalue(): in py/modio.c, not in the stubs",
    ),
    Allowed(
        r"firmware/app/(build_board|board)\.py",
        r'(for|of) class "Board\*?"',
        "app.board.Board is the bag of the parts, which app.build_board puts in",
    ),
    Allowed(
        r"firmware/(boot_choice|startup)\.py",
        r'for class "Startup\*?"',
        "startup.Startup holds what boot_choice.read_boots() puts in",
    ),
    Allowed(r"firmware/portal/server\.py", r'"mark" for class "None"', "main.py has set startup.now"),
    Allowed(
        r"firmware/app/(update_http|names)\.py",
        r'"(TCP|good_addresses)" is unknown import symbol',
        "in the bundle: see umqtt_kit.bundle",
    ),
    Allowed(r"firmware/app/sensors/i2c\.py", r'Import "pins"', "each board's own, beside the application"),
)


# Device code has no annotations: the checker knows only None of an attribute that is first None.
_OFF = ("OptionalMemberAccess", "OptionalIterable", "OptionalSubscript", "OptionalOperand", "OptionalCall")


# Mistakes that must all be found: code for a computer, or for no board at all.
_PLANTED = {
    "machine.teleport()": "teleport",
    "machine.Pin(2, machine.Pin.OUT).blink()": "blink",
    "time.perf_counter()": "perf_counter",
    "socket.socket().sendmsg([b''])": "sendmsg",
}


@dataclass(frozen=True)
class Complaint:
    """A complaint of the checker. file: as in the checkout; line: from 1."""

    file: str
    line: int
    message: str

    @property
    def allowed(self) -> bool:
        return any(each.matches(self) for each in _EXCEPTIONS)


@pytest.fixture(scope="module", params=list(BOARDS))
def complaints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Complaint]:
    """Return the checker's complaints about the device code on a board, and about the mistakes in app/planted.py."""
    stubs = stubs_of(request.param)
    if not (stubs / "stdlib").is_dir():
        pytest.skip("the boards' stubs are missing - try: .venv/bin/python host_tests/typechecks/get_stubs.py")
    copy = tmp_path_factory.mktemp(request.param)
    for name in ("umqtt_robust", "firmware"):
        # Without the .pyi files, so that the checker infers from the source what a module uses of another.
        shutil.copytree(_ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.pyi", *_HOST_FILES, "__pycache__"))
    (copy / "firmware" / "app" / "planted.py").write_text("\n".join(["import machine, socket, time", *_PLANTED]))
    settings = {
        "include": ["umqtt_robust", "firmware"],
        "stubPath": str(stubs),
        "typeshedPath": str(stubs),
        "extraPaths": [str(copy), str(copy / "firmware")],
        "typeCheckingMode": "basic",
        "reportMissingModuleSource": "none",
        **{f"report{name}": "none" for name in _OFF},
    }
    (copy / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [str(Path(sys.executable).parent / "basedpyright"), "-p", str(copy), "--level", "error", "--outputjson"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return [
        Complaint(
            str(Path(told["file"]).relative_to(copy)),
            told["range"]["start"]["line"] + 1,
            " ".join(told["message"].split()),
        )
        for told in json.loads(ended.stdout)["generalDiagnostics"]
        if told["severity"] == "error"
    ]


def test_device_code_fits_the_boards_modules(complaints):
    assert [each for each in complaints if not each.allowed and not each.file.endswith("planted.py")] == []


def test_every_exception_is_still_needed(complaints):
    assert [each.why for each in _EXCEPTIONS if not any(each.matches(told) for told in complaints)] == []


def test_what_a_board_does_not_have_is_found(complaints):
    told = {each.line: each.message for each in complaints if each.file.endswith("planted.py")}
    assert sorted(told) == list(range(2, 2 + len(_PLANTED)))
    for line, name in enumerate(_PLANTED.values(), 2):
        assert name in told[line]
