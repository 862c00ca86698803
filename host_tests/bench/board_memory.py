"""What the firmware takes of each board's heap, on a 32-bit MicroPython, where objects have the size of a board's.

    sh host_tests/bench/get_micropython32.sh /tmp/mp32                     once, on Debian or Ubuntu on amd64
    export UMQTT_MICROPYTHON32=/tmp/mp32/micropython32
    .venv/bin/python host_tests/bench/board_memory.py [--json] [--write] [BOARD …]

A virtual board that plays BOARD gets what `umqtt deploy` installs: TLS off, Wi-Fi, NTP, the chip's thermometer if it
has one, and an extra sensor that reads the heap. --write puts the figures into boards/*/README.md and docs/boards.md.
Without such an interpreter it says so and ends with 0, as nothing can be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from umqtt_kit.deploy.build import build
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.models import MODELS
from umqtt_testkit.peer import Link, PeerError, ScriptedPeer
from umqtt_testkit.waiting import WAIT_LIMIT_S
from umqtt_testkit.wire import Type

ROOT = Path(__file__).resolve().parents[2]
INTERPRETER = "UMQTT_MICROPYTHON32"
BEGIN, END = "<!-- memory -->", "<!-- /memory -->"
# Between the marks of a README until its board is measured.
NOT_MEASURED = "Not measured yet."
# Heap sizes for which the free memory is reported.
_SHOWN_KB = (96, 128, 192)
_AMPLE_KB = 256
_LEAST_KB, _MOST_KB, _STEP_KB = 48, 112, 2
_READINGS = 5
_SENSOR = b"""
import gc

class Sensor:
    def read(self):
        gc.collect()
        return {"used": gc.mem_alloc()}
"""


@dataclass(frozen=True)
class Memory:
    """The memory that the firmware needs on a board.

    program: bytes of heap in use while it runs, after a collection.
    smallest_heap: bytes in which it boots and publishes, in steps of 2 KB.
    """

    board: str
    program: int
    smallest_heap: int

    def free_of(self, kilobytes: int) -> int:
        """Return the bytes that a heap of that size has left."""
        return kilobytes * 1024 - self.program


class NoInterpreter(Exception):
    """There is no 32-bit MicroPython on this machine; str() says how to get one."""


@contextlib.contextmanager
def interpreter32() -> Iterator[None]:
    """Run virtual boards on the 32-bit MicroPython within this context. Raises NoInterpreter."""
    command = os.environ.get(INTERPRETER)
    if not command:
        raise NoInterpreter(
            f"no 32-bit MicroPython: sh host_tests/bench/get_micropython32.sh FOLDER (Debian or Ubuntu on amd64), then "
            f"set {INTERPRETER}=FOLDER/micropython32"
        )
    before = os.environ.get("UMQTT_MICROPYTHON")
    os.environ["UMQTT_MICROPYTHON"] = command
    try:
        yield
    finally:
        if before is None:
            del os.environ["UMQTT_MICROPYTHON"]
        else:
            os.environ["UMQTT_MICROPYTHON"] = before


@functools.cache
def _files(board: str) -> dict[str, bytes]:
    return build(board, []).files


def used_heap(board: str, kilobytes: int) -> int | None:
    """Return the bytes that the running program uses of that heap; None if it does not manage to publish in it."""
    with (
        tempfile.TemporaryDirectory(prefix="umqtt-memory-") as folder,
        ScriptedPeer(timeout_s=0.5) as peer,
        VirtualBoard(Path(folder) / "flash.img", board=board, heap=f"{kilobytes}K") as virtual,
    ):
        virtual.hooks(networks={"cellar": "open sesame"}, rssi=-60)
        settings = {
            "device_id": "b1", "brokers": [peer.url], "interval_ms": 100, "wifi": ["cellar"],
            "ntp_host": "127.0.0.1:9", "sensors": [{"module": "heap"}],
        }  # fmt: skip
        virtual.install({
            **_files(board),
            "/settings.json": json.dumps(settings).encode(),
            "/secrets.json": json.dumps({"wifi": {"cellar": "open sesame"}}).encode(),
            "/sensors/heap.py": _SENSOR,
        })  # fmt: skip
        virtual.start()
        used = _most_used(virtual, peer)
        return None if used is None else used - virtual.stubs_heap


def _most_used(virtual: VirtualBoard, peer: ScriptedPeer) -> int | None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    link: Link | None = None
    found: list[int] = []
    while len(found) < _READINGS:
        if time.monotonic() > deadline or "MemoryError" in virtual.output:
            return None
        try:
            if link is None:
                link = peer.accept()
                link.accept_session()
            packet = link.receive()
        except PeerError:
            continue  # silent for half a second: check that it is still alive
        if packet is None:
            return None
        link.answer(packet)
        if packet.type is Type.PUBLISH and packet.topic_name == b"fleet/b1/telemetry":
            metrics = json.loads(packet.payload)["m"]
            if "used" not in metrics:
                return None  # the sensor could not be created
            found.append(metrics["used"])
    return max(found)


def measure(board: str) -> Memory:
    """Measure the Memory of a board. Raises RuntimeError if it does not run at all."""
    used = used_heap(board, _AMPLE_KB)
    if used is None:
        raise RuntimeError(f"{board}: the firmware does not publish in {_AMPLE_KB} KB")
    low, high = _LEAST_KB // _STEP_KB, _MOST_KB // _STEP_KB
    while low < high:
        middle = (low + high) // 2
        if used_heap(board, middle * _STEP_KB) is None:
            low = middle + 1
        else:
            high = middle
    return Memory(board, used, low * _STEP_KB * 1024)


def readme_block(memory: Memory) -> str:
    """Return the text between the marks of a board's README."""
    rows = [
        ("the program, while it runs", memory.program),
        ("smallest heap in which it boots and publishes", memory.smallest_heap),
        *((f"left for your own code of a heap of {size} KB", memory.free_of(size)) for size in _SHOWN_KB),
    ]
    return "\n".join(["| heap | bytes |", "|---|---|", *(f"| {what} | {size:,} |" for what, size in rows)])


def page_block(memories: Mapping[str, Memory | None]) -> str:
    """Return the text between the marks of docs/boards.md. memories: by board; None: it was not measured."""
    head = "| board | program | smallest heap | " + " | ".join(f"left of {kilobytes} KB" for kilobytes in _SHOWN_KB)
    lines = [f"{head} |", "|---|" + "---|" * (2 + len(_SHOWN_KB))]
    for board, memory in memories.items():
        if memory is None:
            lines.append(f"| {board} | not measured |" + " |" * (1 + len(_SHOWN_KB)))
            continue
        sizes = (memory.program, memory.smallest_heap, *map(memory.free_of, _SHOWN_KB))
        lines.append(f"| {board} | " + " | ".join(f"{size:,}" for size in sizes) + " |")
    return "\n".join(lines)


def read_readme(board: str) -> Memory | None:
    """Return the figures in a board's README, or None if it was not measured. Raises ValueError if it says neither."""
    block = (ROOT / "boards" / board / "README.md").read_text().partition(BEGIN)[2].partition(END)[0]
    if block.strip() == NOT_MEASURED:
        return None
    figures = [int(found.replace(",", "")) for found in re.findall(r"\| ([\d,]+) \|$", block, re.MULTILINE)]
    if len(figures) < 2:
        raise ValueError(f"boards/{board}/README.md has no figures: run host_tests/bench/board_memory.py --write")
    return Memory(board, figures[0], figures[1])


def _write(path: Path, block: str) -> None:
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path}: the marks {BEGIN} and {END} are missing")
    path.write_text(f"{before}{BEGIN}\n{block}\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("boards", nargs="*", metavar="BOARD", help="a folder under boards/; all of them by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object a board")
    parser.add_argument("--write", action="store_true", help="bring the figures into the READMEs and docs/boards.md")
    options = parser.parse_args()
    if unknown := set(options.boards) - set(MODELS):
        parser.error(f"no board {', '.join(sorted(unknown))} - there are: {', '.join(MODELS)}")
    memories = {}
    try:
        with interpreter32():
            for board in options.boards or MODELS:
                memories[board] = memory = measure(board)
                print(json.dumps(asdict(memory)) if options.json else f"{board}: {memory.program:,} bytes, "
                      f"boots in {memory.smallest_heap // 1024} KB", flush=True)  # fmt: skip
    except NoInterpreter as missing:
        print(f"skipped: {missing}", file=sys.stderr)
        return 0
    if options.write:
        for board, memory in memories.items():
            _write(ROOT / "boards" / board / "README.md", readme_block(memory))
        # The page lists every board: those not measured now have the figures of their READMEs.
        every = {board: memories.get(board) or read_readme(board) for board in MODELS}
        _write(ROOT / "docs" / "boards.md", page_block(every))
    return 0


if __name__ == "__main__":
    sys.exit(main())
