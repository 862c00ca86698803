"""The emulated board that runs a chip's own image.

Tests that need no image use a stand-in for Node.js, which echoes its input. With UMQTT_RP2040_IMAGE=FILE.uf2 that
image runs too.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from uf2_images import ABSOLUTE, RP2040, RP2350, SAMD21, uf2_image
from umqtt_kit.device import open_serial
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

import rp2040
from rp2040 import Cuts, ImageBoard
from rp2040.board import FLASH_SIZE, image_blocks
from rp2040.package import VERSION
from umqtt_cli.__main__ import run
from umqtt_cli.errors import KitError

_MODULES = Path(rp2040.__file__).parent
_NODE = shutil.which("node")
_SECTOR, _PAGE = 4096, 256

needs_node = pytest.mark.skipif(_NODE is None, reason="Node.js is not installed — apt install nodejs")

# Echoes USB input in capitals and UART input backwards; reports what the emulator would.
STAND_IN = f"""#!{sys.executable}
import json, os, select, sys
settings, usb, uart = json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if settings["cuts"] and settings["cuts"]["seed"] == 13:
    sys.exit("file.mjs:1\\n\\nError: the image jumped to 0 in the boot ROM\\n\\nNode.js v20")
print(json.dumps({{"event": "boot"}}), flush=True)
print(json.dumps({{"event": "cut", "text": "power cut in the erase"}}), flush=True)
print(json.dumps({{"event": "boot"}}), flush=True)
while True:
    for ready in select.select([usb, uart, 0], [], [])[0]:
        data = os.read(ready, 4096)
        if ready == 0 and not data:
            sys.exit()
        if ready == 0:
            print(json.dumps({{"event": "flash", "erases": 3, "programs": 7}}), flush=True)
            continue
        os.write(ready, data.upper() if ready == usb else data[::-1])
"""


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a stand-in for Node.js on PATH, and a folder that looks like rp2040js; return its package.json."""
    programs = tmp_path / "bin"
    programs.mkdir()
    node = programs / "node"
    node.write_text(STAND_IN)
    node.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    package = tmp_path / "data" / "umqtt-robust" / "node_modules" / "rp2040js" / "package.json"
    package.parent.mkdir(parents=True)
    package.write_text(json.dumps({"version": VERSION}))
    return package


def _image(folder: Path, content: bytes) -> Path:
    file = folder / "image.uf2"
    file.write_bytes(content)
    return file


def test_what_an_image_writes_is_what_its_blocks_for_this_chip_say(tmp_path: Path):
    """Planted: image_blocks() accepts the block with which every newer image begins, and which is outside the flash."""
    payload = bytes(range(256))
    absolute = uf2_image(ABSOLUTE, 1, start=0x10FFFF00)
    image = uf2_image(RP2040, 3, first=absolute, start=0x10000100, payload=payload)
    assert image_blocks(_image(tmp_path, image)) == [(0x100, payload), (0x200, payload), (0x300, payload)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (uf2_image(RP2350), "is for rp2350, and the emulator plays an rp2040"),
        (uf2_image(SAMD21), "another family of chips"),
        (uf2_image(RP2040)[:-512], "damaged or cut short"),
        (b"\x7fELF" + bytes(1000), "neither an ESP32 image (.bin) nor a UF2 file"),
        (b"", "neither an ESP32 image (.bin) nor a UF2 file"),
        (uf2_image(RP2040, start=0x10000000 + FLASH_SIZE - 256), "does not fit the 2 MB flash"),
        (uf2_image(RP2040, start=0x20000000), "does not fit the 2 MB flash"),
    ],
    ids=["other chip", "other family", "cut short", "no image", "empty", "too large", "for RAM"],
)
def test_an_image_that_cannot_run_is_refused(content: bytes, said: str, emulator: Path, tmp_path: Path):
    """Planted: image_blocks() does not check the chip, or where blocks end."""
    with pytest.raises(KitError, match=re.escape(said)):
        ImageBoard(_image(tmp_path, content), tmp_path / "flash")
    assert not (tmp_path / "flash").exists()


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    emulator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Planted: a version of rp2040js is accepted whose parts are not known here."""
    install = f"npm install --prefix {tmp_path}/data/umqtt-robust rp2040js@{VERSION}"
    for content, said in (
        ('{"version": "0.1"}', "rp2040js has version 0.1 here"),
        ("[]", "rp2040js is missing"),
        ("{", "rp2040js is missing"),
        (None, "rp2040js is missing"),
    ):
        emulator.write_text(content) if content else emulator.unlink()
        with pytest.raises(KitError) as missing:
            rp2040.emulator_command()
        assert said in str(missing.value) and install in str(missing.value)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(KitError, match=r"Node\.js is missing"):
        rp2040.emulator_command()


def test_a_file_that_is_no_flash_of_a_pico_is_left_alone(emulator: Path, tmp_path: Path):
    """Planted: ImageBoard does not check the size of the flash."""
    image, flash = _image(tmp_path, uf2_image(RP2040)), tmp_path / "flash"
    flash.write_bytes(b"letter")
    with pytest.raises(KitError, match="is no flash of a Pico: 6 bytes, not 2,097,152"):
        ImageBoard(image, flash)
    assert flash.read_bytes() == b"letter"
    flash.unlink()
    with ImageBoard(image, flash), pytest.raises(KitError, match="is the flash of a virtual board that runs"):
        ImageBoard(image, flash)


def test_both_ports_pass_on_what_is_said_and_the_flash_keeps_all_but_the_image(emulator, tmp_path: Path):
    """Planted: start() erases the flash; the ports are mixed up; close() leaves the links."""
    payload = bytes(range(256))
    events: list[str] = []
    flash, links = tmp_path / "flash", [tmp_path / "usb", tmp_path / "uart"]
    flash.write_bytes(b"\x55" * FLASH_SIZE)
    image = _image(tmp_path, uf2_image(RP2040, 2, payload=payload))
    with ImageBoard(image, flash, on_event=events.append, link=links[0], uart_link=links[1]) as board:
        board.start()
        eventually(lambda: board.lives == 2 and board.power_cuts == 1)
        assert events == ["power cut in the erase"]
        assert board.flash_operations() == (3, 7)
        with open_serial(str(links[0])) as usb, open_serial(str(links[1])) as uart:
            usb.write(b"hello")
            uart.write(b"123")
            usb.timeout = uart.timeout = WAIT_LIMIT_S
            assert usb.read(5) == b"HELLO"
            assert uart.read(3) == b"321"
        board.type("typed;")
        assert board.wait_for("TYPED;", WAIT_LIMIT_S) == "HELLOTYPED;"
        board.stop()
        assert not board.running
        board.start()
        board.type("again")
        board.wait_for("AGAIN", WAIT_LIMIT_S)
    assert not any(link.is_symlink() for link in links)
    assert flash.read_bytes() == payload * 2 + b"\x55" * (FLASH_SIZE - 512)


def test_an_emulator_that_ends_says_why(emulator: Path, tmp_path: Path):
    """Planted: why_ended() names the last line of the trace, which is that of Node.js."""
    with ImageBoard(_image(tmp_path, uf2_image(RP2040)), tmp_path / "flash") as board:
        board.start(Cuts(13))
        eventually(lambda: not board.running)
        assert board.why_ended() == "the image jumped to 0 in the boot ROM"


# This project's own parts of the emulator, in Node.js


def _in_node(folder: Path, program: str) -> dict:
    """Run a program in Node.js; return what it prints as JSON.

    It imports the modules as `from "FOLDER/flash.mjs"`, with FOLDER replaced.
    """
    assert _NODE is not None
    file = folder / "program.mjs"
    file.write_text(program.replace("FOLDER", str(_MODULES)))
    done = subprocess.run([_NODE, str(file)], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Each case, [seed or null, order], begins with the original file. Answers with the file afterwards, in base64.
_FLASH_PROGRAM = """
import { openSync, readFileSync, writeSync } from "node:fs";
import { Flash, PowerCut } from "FOLDER/flash.mjs";
const file = openSync("%s", "r+");
const before = readFileSync("%s");
const answers = %s.map(([seed, order]) => {
  writeSync(file, before, 0, before.length, 0);
  const flash = new Flash(new Uint8Array(before), file, seed === null ? null : { seed, most: 1 });
  let said = null;
  try {
    eval(order);
  } catch (error) {
    if (!(error instanceof PowerCut)) throw error;
    said = error.message;
  }
  const after = readFileSync("%s");
  return { said, same: Buffer.compare(after, Buffer.from(flash.bytes)) === 0, after: after.toString("base64") };
});
console.log(JSON.stringify({ answers }));
"""


def _flash_after(folder: Path, before: bytes, cases: list[tuple[int | None, str]]) -> list[tuple[str | None, bytes]]:
    """Return (message of the power cut, the flash afterwards) of each case: the seed of a cut, and an operation."""
    file = folder / "flash"
    file.write_bytes(before)
    answers = _in_node(folder, _FLASH_PROGRAM % (file, file, json.dumps(cases), file))["answers"]
    assert all(answer["same"] for answer in answers), "the file is not what the board sees"
    return [(answer["said"], base64.b64decode(answer["after"])) for answer in answers]


@needs_node
def test_programming_clears_bits_alone_and_an_erase_sets_its_sectors(tmp_path: Path):
    """Planted: program() stores its data unchanged; erase() sets too much or too little; the file lags behind."""
    old = bytes(index * 7 % 256 for index in range(4 * _SECTOR))
    orders = (
        "flash.erase(4096, 4096)",
        "flash.program(4096 + 256, new Uint8Array(512).fill(0xf0))",
        "flash.program(4096 + 512, new Uint8Array(256).fill(0x3c))",
        "flash.program(0, new Uint8Array(256).fill(0x0f))",
    )
    [(said, after)] = _flash_after(tmp_path, old, [(None, "; ".join(orders))])
    assert said is None
    erased = b"\xff" * _PAGE + b"\xf0" * _PAGE + b"\x30" * _PAGE + b"\xff" * (_SECTOR - 3 * _PAGE)
    start = bytes(byte & 0x0F for byte in old[:_PAGE])
    assert after == start + old[_PAGE:_SECTOR] + erased + old[2 * _SECTOR :]


@needs_node
def test_a_power_cut_leaves_an_operation_half_done_and_follows_from_its_seed(tmp_path: Path):
    """Planted: a cut comes between operations; it spares a sector's end; two runs of a seed differ."""
    whole = partly = 0
    for order, size, done in (
        ("flash.erase(4096, 4096)", _SECTOR, 0xFF),
        ("flash.program(4096, new Uint8Array(256))", _PAGE, 0),
    ):
        cases: list[tuple[int | None, str]] = [(seed, order) for seed in range(20)]
        answers = _flash_after(tmp_path, b"\x55" * 3 * _SECTOR, cases * 2)
        assert answers[: len(cases)] == answers[len(cases) :]
        for said, after in answers[: len(cases)]:
            assert said is not None and said.startswith("power cut in the ")
            written = after[_SECTOR : _SECTOR + size]
            assert after == b"\x55" * _SECTOR + written + b"\x55" * (2 * _SECTOR - size)
            changed = size - len(written.lstrip(bytes([done])))
            assert written[changed + 1 :] == b"\x55" * (size - changed - 1), "one byte at most is between old and new"
            whole += changed == size
            partly += 0 < changed < size
    assert partly >= 30 and whole <= 2


# With an image


@pytest.fixture(scope="module")
def pico(rp2040_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageBoard]:
    with ImageBoard(rp2040_image, tmp_path_factory.mktemp("rp2040") / "flash") as board:
        board.start()
        board.wait_for(">>> ", WAIT_LIMIT_S)
        yield board


def _ask(board: ImageBoard, code: str) -> str:
    board.type(code + "\r\n")
    board.wait_for(code, WAIT_LIMIT_S)
    return board.wait_for(">>> ", WAIT_LIMIT_S).removesuffix(">>> ").strip()


def test_the_image_keeps_files_over_a_power_cut_and_computes(pico: ImageBoard):
    """Planted: the emulator keeps its flash only in memory; its oscillator's random bit is always 0."""
    random = _ask(pico, "import os; os.urandom(8)")
    assert _ask(pico, "f = open('/kept', 'w'); f.write('yes'); f.close()").endswith("3")
    assert _ask(pico, "10 / 4, int(-3.7), 2 ** 0.5") == "(2.5, -3, 1.4142135)"
    pico.stop()
    pico.start()
    pico.wait_for(">>> ", WAIT_LIMIT_S)
    assert _ask(pico, "open('/kept').read()") == "'yes'"
    assert _ask(pico, "import machine; machine.reset_cause() == machine.PWRON_RESET") == "True"
    assert _ask(pico, "len(set(machine.unique_id())) > 1") == "True"
    assert _ask(pico, "import os; os.urandom(8)") != random
    assert _ask(pico, "import time; time.gmtime()[:3]") == "(2021, 1, 1)"


def test_resets_and_the_watchdog_end_a_life_and_say_so(pico: ImageBoard):
    """Planted: the watchdog's alarm stays on, and the emulator never gets past it."""
    lives = pico.lives
    for order in ("machine.reset()", "x = machine.WDT(timeout=300)", "machine.deepsleep(100)"):
        _ask(pico, "import machine")
        pico.type(order + "\r\n")
        lives += 1
        eventually(lambda: pico.lives == lives)  # noqa: B023 - called at once
        pico.wait_for("MicroPython", WAIT_LIMIT_S)
        pico.wait_for(">>> ", WAIT_LIMIT_S)
        assert _ask(pico, "import machine; machine.reset_cause() == machine.WDT_RESET") == "True"


def test_the_uart_is_a_line_both_ways(pico: ImageBoard):
    _ask(pico, "uart = __import__('machine').UART(0, 115200, rxbuf=512)")
    with open_serial(pico.uart_port) as line:
        line.timeout = WAIT_LIMIT_S
        _ask(pico, "uart.write(bytes(range(256)))")
        assert line.read(256) == bytes(range(256))
        line.write(bytes(range(256)))
        eventually(lambda: _ask(pico, "uart.any()") == "256")
    assert _ask(pico, "uart.read() == bytes(range(256))") == "True"


def test_an_image_without_a_network_is_refused_before_anything_is_sent(
    pico: ImageBoard, capsys: pytest.CaptureFixture[str]
):
    """Planted: check_network() accepts an image that has neither `network` nor `socket`."""
    for command in (("deploy",), ("provision", "--set", 'brokers=["mqtt://127.0.0.1"]')):
        assert run([*command, "--device", pico.port]) == 5
        said = capsys.readouterr().err
        assert "this image (Raspberry Pi Pico with RP2040) has no network: nothing was sent" in said


def test_the_power_fails_at_each_start_and_the_board_starts_anew(tmp_path: Path, rp2040_image: Path):
    """Planted: the emulator ends with its first power cut."""
    events: list[str] = []
    cuts = Cuts(seed=3, most=2)
    with ImageBoard(rp2040_image, tmp_path / "flash", on_event=events.append) as board:
        board.start(cuts)
        # So early that not even the file system is created.
        eventually(lambda: board.power_cuts >= 5)
    assert board.lives >= board.power_cuts
    assert all(event.startswith("power cut in the ") for event in events)
