"""A chip's own image with the device library and a connection to a broker, for the proofs on a chip."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from flash_kills import ENDLESS, PROGRAM, PROMISE, STORES, Collector, Count, count
from rp2040 import Cuts, ImageBoard
from umqtt_kit.bundle import Bundle, library_folder
from umqtt_kit.device import Board
from umqtt_testkit.paired_broker import paired_broker
from umqtt_testkit.waiting import WAIT_LIMIT_S

# An emulated chip is slower than a real one, and much slower on a busy machine.
BOOTS_WITHIN_S = 10 * WAIT_LIMIT_S


class Line(NamedTuple):
    """A program's way to the broker: its imports, and the arguments of Client after the id."""

    imports: str
    link: str


LINE = Line(
    """
from machine import UART
from umqtt_robust.serial import Serial
uart = UART(0, 115200, timeout=0, rxbuf=1024, txbuf=512)
""",
    '"mqtt://line", keep_alive=600, transports={"mqtt": lambda host, port, path: Serial(uart)}',
)
# With a slow line the gateway waits longer before it sends again, since the emulated board answers late at any speed.
_BAUD = "2400"


@contextmanager
def broker_at_line(uart: str) -> Iterator[int]:
    """Run the paired broker, and `umqtt serial` between it and the board's UART; yield the broker's port."""
    with paired_broker() as port:
        command = [sys.executable, "-m", "umqtt_cli", "serial", uart, "--broker", f"mqtt://127.0.0.1:{port}"]
        with subprocess.Popen([*command, "--baud", _BAUD], stderr=subprocess.DEVNULL) as gateway:
            try:
                yield port
            finally:
                gateway.terminate()


def install(chip: ImageBoard, files: dict[str, bytes]) -> None:
    """Start the chip and write files, and the device library as the bundle of boards; leave the chip running."""
    with tempfile.TemporaryDirectory(prefix="umqtt-chip-") as folder:
        Bundle(library_folder()).compile(Path(folder))
        modules = {f"/lib/{file.relative_to(folder)}": file.read_bytes() for file in Path(folder).rglob("*.mpy")}
    chip.start()
    chip.wait_for(">>> ", BOOTS_WITHIN_S)
    with Board(chip.port, restart=False) as board:
        for path, content in {**modules, **files}.items():
            board.put(path, content)


def count_cuts(
    folder: Path,
    image: Path,
    cuts: int,
    seed: int,
    store: str = "FlashStore",
    most: int = 60,
    say: Callable[[str], object] = lambda line: None,
) -> Count:
    """Cut the power `cuts` times while a program publishes with a store; let it finish, and count what it promised.

    Each cut comes within `most` operations of the flash after a start.
    store: with "MemoryStore" readings must be lost, or the cuts prove nothing; such a board writes nothing, so it is
    stopped, as if by a cut, once it has promised something.
    Raises KitError, BoardError, TimeoutError.
    """
    log = folder / "chip.log"
    collector = None
    program = {**LINE._asdict(), **STORES[store]}
    with ImageBoard(image, folder / "chip.flash", log=log, on_event=say) as chip:
        install(chip, {"/main.py": PROGRAM.format(readings=ENDLESS, **program).encode()})
        chip.stop()
        with broker_at_line(chip.uart_port) as port:
            try:
                collector = Collector(port)
                if store == "MemoryStore":
                    for _ in range(cuts):
                        chip.start()
                        chip.wait_for("promised", BOOTS_WITHIN_S)
                        chip.stop()
                else:
                    chip.start(Cuts(seed, most))
                    chip.wait_for_cuts(cuts, BOOTS_WITHIN_S)
                    chip.stop()
                chip.start()
                chip.wait_for("promised", BOOTS_WITHIN_S)
                with Board(chip.port) as board:
                    board.put("/main.py", PROGRAM.format(readings=1, **program).encode())
                chip.wait_for("all delivered", BOOTS_WITHIN_S)
                chip.stop()
                promised = [match.decode() for match in PROMISE.findall(log.read_bytes())]
                collector.finish()
            finally:
                if collector:
                    collector.close()
    return count(cuts, promised, collector.arrived)
