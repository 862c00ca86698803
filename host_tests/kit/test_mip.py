"""mpremote mip install brings the library onto a board, from a folder and from a web server, and it works there."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cable import Cable, broker
from umqtt_kit.device import Board

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
        """mpremote says what it fetches."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """A web server for this checkout."""
    handler = functools.partial(_Quiet, directory=str(_ROOT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("place", ["folder", "web"])
@pytest.mark.parametrize("package", ["package.json", "package-full.json"])
def test_mip_installs_every_file_as_it_is_and_it_publishes(cable: Cable, tmp_path: Path, web, package, place):
    source = f"{web}/{package}" if place == "web" else str(_ROOT / package)
    with broker(tmp_path) as port, cable.board(heap="2M") as virtual:
        command = [sys.executable, "-m", "mpremote", "connect", virtual.port, "mip", "install", "--no-mpy", source]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        listed = json.loads((_ROOT / package).read_text())["urls"]
        files = {f"/lib/{target}": _ROOT / url for target, url in listed}
        with Board(virtual.port, restart=False) as board:
            assert {path for path, size in board.list_files("/lib").items() if size >= 0} == set(files)
            expected = {path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in files.items()}
            assert board.hashes(files) == expected
            assert board.exec(_PUBLISH.format(port=port), 60) == "pending 0\n"
            names = [Path(target).stem for target, _ in listed if "__init__" not in target]
            assert board.exec(_IMPORT.format(names=names), 60) == "imported\n"
