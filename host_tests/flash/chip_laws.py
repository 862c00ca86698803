"""Runs the client's laws on a chip's own image: files of host_tests/laws, as they are, in the emulator of the RP2040.

The client is installed as separate modules, because the laws look into them. They run as samples, as `make test` runs
them under MicroPython. Some worlds, with their brokers, need more than the chip's heap; they are counted.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chip import BOOTS_WITHIN_S
from rp2040 import ImageBoard
from umqtt_kit.bundle import library_folder
from umqtt_kit.deploy.filesets import HOST_MODULES
from umqtt_kit.device import Board
from umqtt_kit.mpy_cross import compile_file

LAWS = (
    "test_split_at_every_byte", "test_cut_at_every_byte", "test_keep_alive", "test_back_off", "test_order", "test_idle",
    "test_qos_0", "test_slow_links", "test_large_messages", "test_inbox", "test_broker_queue",
    "test_inbound_flow",
)  # fmt: skip
_TESTS = Path(__file__).resolve().parents[1]
_WITHIN_S = 1800.0
_ASSERTS, _NO_ASSERTS = 0, 3  # levels of optimization of mpy-cross
_RUN = """
import gc, sys
sys.path.insert(0, "/laws")
from umqtt_testkit.portable import Skip
law = __import__({law!r})
for name in sorted(dir(law)):
    if name.startswith("test_"):
        gc.collect()
        try:
            getattr(law, name)()
            outcome = "passed"
        except Skip:
            outcome = "skipped"
        except MemoryError:
            outcome = "unfit"
        except BaseException as error:
            sys.print_exception(error)
            outcome = "failed"
        print(":law:", outcome, name)
"""


@dataclass(frozen=True)
class Result:
    """law: a file of host_tests/laws; report: what was printed, if it failed.

    outcome: passed, skipped, failed, or unfit: its world needs more heap than the chip has.
    """

    law: str
    test: str
    outcome: str
    report: str = ""


def run(
    folder: Path, image: Path, laws: tuple[str, ...] = LAWS, say: Callable[[str], object] = lambda line: None
) -> list[Result]:
    """Run the tests of these laws one after the other. folder: an empty one. Raises KitError, BoardError."""
    results: list[Result] = []
    with ImageBoard(image, folder / "laws.flash") as chip:
        chip.start()
        chip.wait_for(">>> ", BOOTS_WITHIN_S)
        with Board(chip.port, restart=False) as board:
            for path, content in _files(laws):
                board.put(path, content)
        for law in laws:
            # A board that starts again has its whole heap for the next file.
            with Board(chip.port) as board:
                found = list(_results(law, board.exec(_RUN.format(law=law), _WITHIN_S)))
            results += found
            counts = Counter(one.outcome for one in found)
            unfit = f", {counts['unfit']} need more heap" if counts["unfit"] else ""
            say(f"{law}: {counts['passed']} passed, {counts['failed']} failed{unfit}")
    return results


def _files(laws: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    client = [file for file in library_folder().glob("*.py") if file.stem not in HOST_MODULES]
    sources = [(file, f"/lib/umqtt_robust/{file.stem}.mpy", _NO_ASSERTS) for file in client]
    kit = [_TESTS / "umqtt_testkit" / f"{name}.py" for name in ("portable", "encoder")]
    sources += [(file, f"/laws/umqtt_testkit/{file.stem}.mpy", _ASSERTS) for file in kit]
    sources += [
        (file, f"/laws/{file.stem}.mpy", _ASSERTS)
        for file in (_TESTS / "laws").glob("*.py")
        if not file.stem.startswith("test_") or file.stem in laws
    ]
    with tempfile.TemporaryDirectory(prefix="umqtt-laws-") as scratch:
        for number, (source, path, level) in enumerate(sources):
            target = Path(scratch) / f"{number}.mpy"
            compile_file(source, target, source.name, level)
            yield path, target.read_bytes()


def _results(law: str, said: str) -> Iterator[Result]:
    report: list[str] = []
    for line in said.splitlines():
        if not line.startswith(":law:"):
            report.append(line)
            continue
        _, outcome, test = line.split()
        yield Result(law, test, outcome, "\n".join(report) if outcome == "failed" else "")
        report = []
