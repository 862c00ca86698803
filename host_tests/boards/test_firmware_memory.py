"""The firmware boots and publishes in 100 KB of heap, TLS off, and the READMEs have the right figures.

Those are measured when UMQTT_MICROPYTHON32 names a 32-bit MicroPython: host_tests/bench/board_memory.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from umqtt_kit.deploy.build import build
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.models import MODELS
from umqtt_testkit.peer import ScriptedPeer
from umqtt_testkit.waiting import WAIT_LIMIT_S
from umqtt_testkit.wire import Type

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "host_tests" / "bench"))

import board_memory  # noqa: E402

MakeBoard = Callable[..., VirtualBoard]
# As a part of the program's bytes: the layout of the heap differs between two runs.
_TOLERANCE = 0.03


def test_the_firmware_boots_and_publishes_with_tls_off_in_100_kb_of_heap(virtual_board: MakeBoard, peer: ScriptedPeer):
    # As `umqtt deploy` installs it, with Wi-Fi, a watchdog and the store in flash, on a 64-bit MicroPython.
    board = virtual_board(heap="100K")
    board.hooks(networks={"cellar": "open sesame"}, rssi=-60)
    settings = {"device_id": "b1", "brokers": [peer.url], "interval_ms": 100, "wifi": ["cellar"]}
    board.install({
        **build("UNIX", []).files,
        "/settings.json": json.dumps(settings).encode(),
        "/secrets.json": json.dumps({"wifi": {"cellar": "open sesame"}}).encode(),
    })  # fmt: skip
    board.start()
    link = peer.accept()
    link.accept_session()
    seen: list[int] = []
    while len(seen) < 30:
        packet = link.receive()
        assert packet is not None, board.output
        link.answer(packet)
        if packet.type is Type.PUBLISH and packet.topic_name == b"fleet/b1/telemetry":
            seen.append(json.loads(packet.payload)["seq"])
    assert seen == list(range(30))
    assert "Traceback" not in board.output


def _told(board: str) -> board_memory.Memory:
    memory = board_memory.read_readme(board)
    if memory is None:
        pytest.skip(f"{board} was not measured yet, and its README says so")
    return memory


@pytest.mark.parametrize("board", MODELS)
def test_every_readme_says_what_the_program_takes_and_fits_into_96_kb(board: str):
    memory = _told(board)
    assert memory.program < memory.smallest_heap <= 96 * 1024
    readme = (ROOT / "boards" / board / "README.md").read_text()
    assert board_memory.readme_block(memory) in readme, "the rows do not follow from each other"


def test_the_page_of_boards_has_the_figures_of_the_readmes_and_the_pins_of_the_board_files():
    page = (ROOT / "docs" / "boards.md").read_text()
    assert board_memory.page_block({board: board_memory.read_readme(board) for board in MODELS}) in page
    pins = dict(re.findall(r"^\| (\w+) \| ((?:\w* \| ?){5})$", page.partition("## Pins")[2], re.MULTILINE))
    assert set(pins) == set(MODELS)
    for board, row in pins.items():
        described = json.loads((ROOT / "boards" / board / "board.json").read_text())["pins"]
        wanted = [str(described.get(role, "")) for role in ("led", "i2c_scl", "i2c_sda", "onewire", "dht")]
        assert [cell.strip() for cell in row.split("|")[:5]] == wanted


@pytest.mark.parametrize("board", MODELS)
def test_a_32_bit_micropython_measures_what_the_readme_says(board: str):
    try:
        with board_memory.interpreter32():
            told = _told(board)
            used = board_memory.used_heap(board, 256)
            assert used == pytest.approx(told.program, rel=_TOLERANCE)
            # In the smallest heap, and a little more, because the layout differs between runs.
            assert board_memory.used_heap(board, told.smallest_heap // 1024 + 4) is not None
    except board_memory.NoInterpreter as missing:
        pytest.skip(str(missing))


def test_without_a_32_bit_micropython_the_command_says_so_and_is_no_failure():
    environment = {key: value for key, value in os.environ.items() if key != board_memory.INTERPRETER}
    done = subprocess.run(
        [sys.executable, str(ROOT / "host_tests/bench/board_memory.py"), "--json"],
        capture_output=True, text=True, timeout=2 * WAIT_LIMIT_S, check=False, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    assert "skipped: no 32-bit MicroPython" in done.stderr and "get_micropython32.sh" in done.stderr
