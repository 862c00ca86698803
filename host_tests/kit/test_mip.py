"""mpremote mip install puts the library on a board, from a folder, a web server or an index, and it works there."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cable import Cable, broker
from umqtt_kit.device import Board
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import write_packages

pytestmark = pytest.mark.tier(1)

_ROOT = Path(__file__).resolve().parents[2]
_PUBLISH = """
from umqtt_robust import Client
client = Client("pump-7", "mqtt://127.0.0.1:{port}")
client.publish("a", b"b", qos=1)
for _ in range(100):
    client.poll(100)
    if not client.pending: break
print("pending", client.pending)
"""
_IMPORT = """
import umqtt_robust
for name in {names!r}:
    __import__("umqtt_robust." + name)
print("imported")
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: mpremote prints what it fetches."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run a web server for this folder; yield its address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """Provide the address of a web server for this checkout."""
    with served(_ROOT) as address:
        yield address


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide an index like that of a release."""
    folder = tmp_path_factory.mktemp("index")
    write_packages.write_index(folder)
    return folder


def mip_install(port: str, *arguments: str) -> str:
    """Run `mpremote mip install`; return what it prints."""
    return mpremote(port, "mip", "install", *arguments)


def mpremote(port: str, *arguments: str) -> str:
    """Run mpremote, which begins with a soft reset and so with an empty heap; return what it prints."""
    command = [sys.executable, "-m", "mpremote", "connect", port, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * WAIT_LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("place", ["folder", "web"])
@pytest.mark.parametrize("package", ["package.json", "package-full.json"])
@pytest.mark.sample(2)
def test_mip_installs_every_file_as_it_is_and_it_publishes(cable: Cable, tmp_path: Path, web, package, place):
    source = f"{web}/{package}" if place == "web" else str(_ROOT / package)
    with broker(tmp_path) as port, cable.board(heap="2M") as virtual:
        mip_install(virtual.port, "--no-mpy", source)
        listed = json.loads((_ROOT / package).read_text())["urls"]
        files = {f"/lib/{target}": _ROOT / url for target, url in listed}
        with Board(virtual.port, restart=False) as board:
            assert {path for path, size in board.list_files("/lib").items() if size >= 0} == set(files)
            expected = {path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in files.items()}
            assert board.hashes(files) == expected
            assert board.exec(_PUBLISH.format(port=port), 60) == "pending 0\n"
            names = [Path(target).stem for target, _ in listed if "__init__" not in target]
            assert board.exec(_IMPORT.format(names=names), 60) == "imported\n"


@pytest.mark.parametrize(("package", "heap"), [("umqtt-robust", "128K"), ("umqtt-robust-full", "256K")])
def test_an_index_has_what_this_board_loads_and_it_publishes(
    cable: Cable, tmp_path: Path, index: Path, package: str, heap: str
) -> None:
    """Planted: the index names another version of .mpy; a hash that is not the file's."""
    theirs = {"/lib/umqtt/robust.py": b"MQTTClient = 'of micropython-lib'\n"}
    with served(index) as address, broker(tmp_path) as port, cable.board(heap=heap, files=theirs) as virtual:
        install = ("--index", address, package)
        assert "Exists:" not in mip_install(virtual.port, *install)
        assert "Installing:" not in mip_install(virtual.port, *install)
        assert mpremote(virtual.port, "exec", _PUBLISH.format(port=port)).splitlines() == ["pending 0"]
        theirs_too = "from umqtt.robust import MQTTClient; print(MQTTClient)"
        assert mpremote(virtual.port, "exec", theirs_too).splitlines() == ["of micropython-lib"]
        with Board(virtual.port, restart=False) as board:
            files = [path for path, size in board.list_files("/lib/umqtt_robust").items() if size >= 0]
            assert files and all(path.endswith(".mpy") for path in files)
            if heap == "256K":
                names = [name for path in files if (name := Path(path).stem) != "__init__"]
                assert board.exec(_IMPORT.format(names=names), 60) == "imported\n"


def test_one_command_puts_mpy_files_in_the_place_of_older_modules(cable: Cable, tmp_path: Path) -> None:
    """Planted: the .py files stay, and MicroPython prefers them."""
    old = {"/lib/umqtt_robust/__init__.py": b"", "/lib/umqtt_robust/client.py": b"raise ImportError('old')\n"}
    with broker(tmp_path) as port, cable.board(heap="128K", files=old) as virtual:
        command = [sys.executable, str(_ROOT / "tools" / "mip.py"), "umqtt-robust", virtual.port]
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, timeout=3 * WAIT_LIMIT_S, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        assert "Installing:" not in done.stdout
        assert mpremote(virtual.port, "exec", _PUBLISH.format(port=port)).splitlines() == ["pending 0"]
        command[2:] = ["umqtt"]
        wrong = subprocess.run(command, capture_output=True, text=True, timeout=3 * WAIT_LIMIT_S, check=False)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1) and "umqtt-robust-full" in wrong.stderr


@pytest.mark.parametrize(("kind", "fits"), [("6", True), ("py", False)])
def test_the_mpy_of_an_index_imports_in_64_kb_and_the_readable_modules_do_not(
    index: Path, tmp_path: Path, kind: str, fits: bool
) -> None:
    """Planted: the index has the readable modules for boards that load .mpy."""
    for target, name in json.loads((index / "package" / kind / "umqtt-robust" / "latest.json").read_text())["hashes"]:
        (tmp_path / target).parent.mkdir(exist_ok=True)
        (tmp_path / target).write_bytes((index / "file" / name[:2] / name).read_bytes())
    try:
        command = micropython_command("64K")
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    program = "from umqtt_robust import Client; Client('pump-7', 'mqtt://127.0.0.1').publish('t', b'21', qos=1)"
    done = subprocess.run(
        [*command, "-c", program], cwd=tmp_path, env={"MICROPYPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=3 * WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) is fits, done.stdout + done.stderr
    assert fits or "MemoryError" in done.stdout + done.stderr


def test_the_index_has_the_readable_modules_too_and_no_path_of_others(index: Path) -> None:
    """Planted: a file of the package `umqtt`, which belongs to micropython-lib."""
    described = {
        path.relative_to(index / "package"): json.loads(path.read_text()) for path in index.glob("package/**/*.json")
    }
    assert {path.parts[1] for path in described} == set(write_packages.INDEX_PACKAGES)
    for path, content in described.items():
        targets = [target for target, _ in content["hashes"]]
        assert all(target.startswith("umqtt_robust/") for target in targets)
        for _, name in content["hashes"]:
            assert hashlib.sha256((index / "file" / name[:2] / name).read_bytes()).hexdigest() == name
        if path.parts[0] == "py":
            listed = json.loads((_ROOT / write_packages.INDEX_PACKAGES[path.parts[1]]).read_text())["urls"]
            assert targets == [target for target, _ in listed]
