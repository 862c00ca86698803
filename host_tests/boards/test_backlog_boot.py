"""A board boots whatever waits in its outbox, in the smallest heap of its table, and sends all of it in order."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from umqtt_kit.data import deployed_files
from umqtt_kit.deploy.build import build
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.peer import Link, PeerError, ScriptedPeer
from umqtt_testkit.waiting import WAIT_LIMIT_S
from umqtt_testkit.wire import Type

ROOT = Path(__file__).resolve().parents[2]
FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
_OLD_BOOT = "1-00112233445566ff"
_CHUNKS = {"UNIX": 120, "RPI_PICO_W": 504}
# KB with words of 64 bits, about 1.5 times as many as words of 32 bits need (docs/boards.md); source needs more.
_MPY_KB, _SOURCE_KB = 128, 192


@dataclass(frozen=True)
class Case:
    """waiting: readings in flash, from place `first` on; outbox: the setting at the boot."""

    waiting: int
    outbox: int
    first: int = 0
    qos2: int = 0
    board: str = "UNIX"
    source: bool = False

    def __str__(self) -> str:
        return "-".join(str(value) for value in vars(self).values())


_SAMPLE = [Case(290, 600), Case(120, 16, board="RPI_PICO_W")]
_SWEEP = [
    Case(waiting, outbox, first, qos2, board, source)
    for board in _CHUNKS
    for source in (False, True)
    for waiting, first, qos2 in ((0, 0, 0), (1, 0, 0), (64, 0, 0), (64, 500, 0), (600, 0, 40), (1200, 0, 0))
    for outbox in (1, 16, 64, 600, 10_000)
]


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
    deadline = time.monotonic() + WAIT_LIMIT_S
    fresh = 0
    while len(found) + len(dropped) < count or not fresh:
        assert time.monotonic() < deadline, f"{len(found)} of {count} readings, {fresh} new ones\n{board.output}"
        assert "Traceback" not in board.output, board.output
        try:
            if link is None:
                link = peer.accept()
                link.accept_session()
            packet = link.receive()
        except PeerError:
            continue
        assert packet is not None, board.output
        link.answer(packet)
        if packet.type is Type.PUBLISH and packet.topic_name == b"fleet/b1/telemetry":
            reading = json.loads(packet.payload)
            if reading["boot"] == _OLD_BOOT:
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
    places above `outbox` are refused."""
    files = deployed_files() if case.source else build(case.board, []).files
    try:
        count = _fill(tmp_path / "flash.img", case)
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    heap = f"{_SOURCE_KB if case.source else _MPY_KB}K"
    with (
        ScriptedPeer(timeout_s=0.5) as peer,
        VirtualBoard(tmp_path / "flash.img", board=case.board, heap=heap) as board,
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
        # A reading that is taken before the link is up needs a place: only a full outbox has none.
        assert not dropped or count == case.outbox
        assert found == [seq for seq in range(count) if seq not in dropped]
        assert board.lives == 1, board.output
