"""A board boots whatever waits in its outbox, in the smallest heap of its table, and sends all of it in order."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest
from umqtt_kit.deploy.build import build, deployed_files
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.peer import Link, PeerError, ScriptedPeer
from umqtt_testkit.waiting import WAIT_LIMIT_S
from umqtt_testkit.wire import Type

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "host_tests" / "bench"))

import board_memory  # noqa: E402

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
_OLD_BOOT = "1-00112233445566ff"
_CHUNKS = {"UNIX": 120, "RPI_PICO_W": 504}
# KB of heap: .mpy with words of 64 bits, and source, which needs more, with 64 and 32. For .mpy with words of 32 bits,
# the README of each board has the smallest heap; the layout differs between runs, so it gets a little more.
_MPY_KB = {"UNIX": 108, "RPI_PICO_W": 120}
_SOURCE_KB, _SOURCE32_KB, _MORE_KB = 192, 128, 4


@dataclass(frozen=True)
class Case:
    """waiting: readings in flash, from place `first` on; outbox: the setting at the boot; bits: of a word."""

    waiting: int
    outbox: int
    first: int = 0
    qos2: int = 0
    board: str = "UNIX"
    source: bool = False
    bits: int = 64

    def __str__(self) -> str:
        return "-".join(str(value) for value in vars(self).values())

    def heap(self) -> str:
        if self.source:
            return f"{_SOURCE_KB if self.bits == 64 else _SOURCE32_KB}K"
        memory = board_memory.read_readme(self.board)
        return f"{_MPY_KB[self.board] if self.bits == 64 or not memory else memory.smallest_heap // 1024 + _MORE_KB}K"


_SAMPLE = [
    Case(290, 600),
    Case(120, 16, board="RPI_PICO_W"),
    Case(290, 600, board="RPI_PICO_W", bits=32),
    Case(200, 16, bits=32),
]
_SWEEP = [
    Case(waiting, outbox, first, qos2, board, source, bits)
    for bits in (64, 32)
    for board in _CHUNKS
    for source in (False, True)
    for waiting, first, qos2 in ((0, 0, 0), (1, 0, 0), (64, 0, 0), (64, 500, 0), (600, 0, 40), (1200, 0, 0))
    for outbox in (1, 16, 64, 600, 10_000)
]


@pytest.fixture(autouse=True)
def _interpreter(request: pytest.FixtureRequest) -> Iterator[None]:
    case = getattr(request.node, "callspec", None)
    if case is None or case.params["case"].bits == 64:
        yield
        return
    try:
        with board_memory.interpreter32():
            yield
    except board_memory.NoInterpreter as missing:
        pytest.skip(str(missing))


def _fill(image: Path, case: Case) -> int:
    # Returns how many readings were stored: the flash may be full before.
    library = {f"/fill/umqtt_robust/{file.name}": file for file in (ROOT / "umqtt_robust").glob("*.py")}
    wanted = {"count": case.waiting, "slots": case.first + case.waiting + 64, "chunk": _CHUNKS[case.board],
              "first": case.first, "qos2": case.qos2}  # fmt: skip
    with VirtualBoard(image, board=case.board, heap="4M") as board:
        board.install({
            **library,
            "/main.py": ROOT / "host_tests/boards/programs/fill_outbox.py",
            "/backlog.json": json.dumps(wanted).encode(),
        })  # fmt: skip
        board.start()
        line = board.wait_for("readings").splitlines()[-1]
        board.kill()
        for path in board.files():
            if not path.startswith("/state/"):
                board.remove(path)
    return int(line.split()[1])


def _drain(board: VirtualBoard, peer: ScriptedPeer, count: int) -> tuple[list[int], list[int]]:
    # Returns seq of the readings of the old boot as they arrive, and those that the board announced as dropped.
    found: list[int] = []
    dropped: list[int] = []
    link: Link | None = None
    fresh = 0
    deadline, arrived = 0.0, -1
    while len(found) + len(dropped) < count or not fresh:
        if arrived != len(found) + len(dropped):  # the limit is that of the next reading, not of all
            arrived, deadline = len(found) + len(dropped), time.monotonic() + WAIT_LIMIT_S
        assert time.monotonic() < deadline, f"{len(found)} of {count} readings, {fresh} new ones\n{board.output}"
        assert "Traceback" not in board.output, board.output
        try:
            if link is None:
                link = peer.accept()
                link.accept_session()
            packet = link.receive()
        except PeerError:
            continue
        if packet is None:  # a part that lacks memory for a moment may end the link
            link = None
            continue
        link.answer(packet)
        if packet.type is Type.PUBLISH and packet.topic_name == b"fleet/b1/telemetry":
            reading = json.loads(packet.payload)
            if reading["boot"] == _OLD_BOOT:
                if reading["seq"] not in found:
                    found.append(reading["seq"])
            else:
                fresh += 1
        elif packet.type is Type.PUBLISH and packet.topic_name == b"fleet/b1/log":
            for first, last in json.loads(packet.payload).get("dropped_seq", ()):
                dropped += range(first, last + 1)
    return found, dropped


@pytest.mark.parametrize("case", _SWEEP if FULL else _SAMPLE, ids=str)
def test_a_board_boots_and_sends_all_that_waits_in_order(case: Case, tmp_path: Path):
    """Planted: each message is read whole, which leaves its garbage between the entries of the index; messages in
    places above `outbox` are refused; garbage is collected only when the heap is full."""
    files = deployed_files() if case.source else build(case.board, []).files
    try:
        count = _fill(tmp_path / "flash.img", case)
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    with (
        ScriptedPeer(timeout_s=0.5) as peer,
        VirtualBoard(tmp_path / "flash.img", board=case.board, heap=case.heap()) as board,
    ):
        board.hooks(networks={"cellar": "open sesame"}, rssi=-60)
        settings = {"device_id": "b1", "brokers": [peer.url], "wifi": ["cellar"], "ntp_host": "",
                    "outbox": case.outbox}  # fmt: skip
        board.install({
            **files,
            "/settings.json": json.dumps(settings).encode(),
            "/secrets.json": json.dumps({"wifi": {"cellar": "open sesame"}}).encode(),
        })  # fmt: skip
        board.start()
        found, dropped = _drain(board, peer, count)
        # Readings that are taken before the link is up need places: only a full outbox, or one of one place, has none.
        assert not dropped or case.outbox in (1, count)
        assert found == [seq for seq in range(count) if seq not in dropped]
        assert board.lives == 1, board.output


def _start_with(planted: str, tmp_path: Path, peer: ScriptedPeer, boots: dict[str, bytes]) -> VirtualBoard:
    # A board whose flash cannot be opened, by what backlog.py does.
    files = build("UNIX", []).files
    del files["/lib/umqtt_robust/backlog.mpy"]
    board = VirtualBoard(tmp_path / "flash.img", heap=f"{_MPY_KB['UNIX']}K")
    board.install({
        **files,
        **boots,
        "/lib/umqtt_robust/backlog.py": f"def open_store(store):\n    raise {planted}\n".encode(),
        "/settings.json": json.dumps({"device_id": "b1", "brokers": [peer.url], "interval_ms": 200}).encode(),
    })  # fmt: skip
    board.start()
    return board


def _wait_for(peer: ScriptedPeer, board: VirtualBoard, topic: bytes, text: str) -> None:
    peer.timeout_s = WAIT_LIMIT_S
    link = peer.accept()
    link.accept_session()
    while True:
        packet = link.receive()
        assert packet is not None, board.output
        link.answer(packet)
        if packet.type is Type.PUBLISH and packet.topic_name == topic and text in packet.payload.decode():
            return


def test_an_index_for_which_there_is_no_memory_leaves_the_outbox_in_ram(tmp_path: Path):
    """Planted: the error ends the application."""
    with ScriptedPeer() as peer, _start_with("MemoryError('planted')", tmp_path, peer, {}) as board:
        _wait_for(peer, board, b"fleet/b1/log", "readings are not kept in flash: no memory for its index")
        assert "Traceback" not in board.output


def _record(*words: object) -> bytes:
    text = " ".join(map(str, words))
    return f"{text} {crc32(text.encode()):08x}\n".encode()


def test_safe_mode_is_reached_although_the_client_fails_with_what_is_in_flash(tmp_path: Path):
    """Planted: safe mode uses the flash at which it failed before."""
    boots = {"/state/boot-a": _record(9, 3), "/state/mark": _record(9, "x")}
    with ScriptedPeer() as peer, _start_with("RuntimeError('planted')", tmp_path, peer, boots) as board:
        _wait_for(peer, board, b"fleet/b1/status", "safe mode")
