"""umqtt flash checks an image before anything is written. Without hardware: a fake esptool, a folder for a drive."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from cable import Cable
from uf2_images import ABSOLUTE, RP2040, RP2350, SAMD21, uf2_image
from umqtt_kit.flash.images import read_image
from umqtt_testkit.waiting import eventually

from umqtt_cli.errors import KitError

_CHIP_NUMBERS = {"esp32": 0, "esp32c3": 5, "esp32s3": 9, "esp32c6": 13}

# Records its arguments; fails when told to.
ESPTOOL = """#!/bin/sh
if [ "$1" = version ]; then echo "esptool v{version}"; exit 0; fi
echo "$@" >> {log}
if [ -n "$ESPTOOL_FAILS" ]; then
    echo "A fatal error occurred: Failed to connect to ESP32: No serial data received."
    echo "For troubleshooting steps visit: ..."
    exit 2
fi
"""


def esp_image(chip: str) -> bytes:
    return (
        struct.pack("<BBBBI", 0xE9, 1, 2, 0x20, 0x40080000)
        + struct.pack("<4xH10x", _CHIP_NUMBERS[chip])
        + b"\xff" * 999
    )


@pytest.fixture
def esptool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Provide a function that puts a fake esptool of that version on PATH; it returns the log of its calls."""
    log = tmp_path / "esptool.log"

    def install(version: str = "5.1.0") -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "esptool"
        program.write_text(ESPTOOL.format(version=version, log=log))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return log

    return install


@pytest.fixture
def port(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    """Provide one USB port with an ESP32-S3 or -C3, which have the same USB id."""
    found = SimpleNamespace(
        device="/dev/ttyACM0", vid=0x303A, pid=0x1001, serial_number="x", description="USB JTAG/serial debug unit"
    )
    monkeypatch.setattr("serial.tools.list_ports.comports", lambda: [found])


def image_file(folder: Path, content: bytes) -> str:
    file = folder / "image"
    file.write_bytes(content)
    return str(file)


@pytest.mark.parametrize(
    ("version", "hyphen", "chip", "offset"),
    [("5.1.0", "-", "esp32s3", "0x0"), ("4.8.1", "_", "esp32c3", "0x0"), ("5.1.0", "-", "esp32c6", "0x0")],
)
def test_an_esp_image_goes_to_where_its_chip_boots(
    cable: Cable, tmp_path, port, esptool, version, hyphen, chip, offset
):
    log = esptool(version)
    content = esp_image(chip)
    answer = cable.umqtt("flash", image_file(tmp_path, content), "--yes", "--erase", "--json")
    assert answer.code == 0, answer.stderr
    assert answer.json["sha256"] == hashlib.sha256(content).hexdigest()
    assert answer.json["sha256"] in answer.stderr, "shown before it is written"
    common = f"--chip {chip} --port /dev/ttyACM0"
    assert log.read_text().splitlines() == [
        f"{common} erase{hyphen}flash",
        f"{common} --baud 460800 write{hyphen}flash {offset} {tmp_path / 'image'}",
    ]


def test_the_first_esp32_boots_from_another_place(cable: Cable, tmp_path, esptool, monkeypatch: pytest.MonkeyPatch):
    log = esptool()
    (tmp_path / "ttyUSB0").touch()
    file = image_file(tmp_path, esp_image("esp32"))
    assert (
        cable.umqtt(
            "flash", file, "--yes", "--keep", "--device", str(tmp_path / "ttyUSB0"), "--board", "ESP32_GENERIC"
        ).code
        == 0
    )
    assert f" 0x1000 {file}" in log.read_text()


@pytest.mark.parametrize(
    ("content", "arguments", "named"),
    [
        (b"PK\x03\x04" + bytes(2000), (), "neither an ESP32 image"),
        (b"", (), "neither an ESP32 image"),
        (esp_image("esp32"), (), "for esp32, and ttyACM0 looks like"),
        (esp_image("esp32s3"), ("--board", "ESP32_GENERIC_C3"), "ESP32_GENERIC_C3 is an esp32c3"),
        (esp_image("esp32s3"), ("--board", "RPI_PICO_W"), "takes no image of this kind"),
        (esp_image("esp32s3"), ("--board", "NO_SUCH"), "there is no board 'NO_SUCH'"),
        (esp_image("esp32s3"), ("--sha256", "0" * 64), "not the one given"),
        (uf2_image(RP2040), ("--erase",), "--erase and --keep are for the ESP32 family"),
        (uf2_image(RP2040), ("--board", "RPI_PICO2_W"), "for rp2040, and RPI_PICO2_W is an rp2350"),
        (uf2_image(SAMD21), (), "another family of chips (0x68ed2b88)"),
        (uf2_image(RP2040)[:-100], (), "damaged or cut short"),
        (uf2_image(RP2040)[:-512], (), "damaged or cut short"),
        (uf2_image(RP2040)[:512] + uf2_image(RP2040)[1024:], (), "damaged or cut short"),
    ],
)
def test_a_wrong_image_is_refused_before_anything_is_written(
    cable: Cable, tmp_path, port, esptool, content, arguments, named
):
    log = esptool()
    answer = cable.umqtt("flash", image_file(tmp_path, content), "--yes", *arguments)
    assert (answer.code, named in answer.stderr) == (2, True), answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert not log.exists()


def test_without_a_yes_nothing_is_written(cable: Cable, tmp_path, port, esptool, monkeypatch: pytest.MonkeyPatch):
    log = esptool()
    monkeypatch.setattr("sys.stdin", (tmp_path / "empty").open("w+"))
    answer = cable.umqtt("flash", image_file(tmp_path, esp_image("esp32s3")), "--keep")
    assert answer.code == 2 and "repeat with --yes" in answer.stderr
    assert not log.exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["y", "n"])
def test_an_esp32_is_erased_or_not_as_somebody_said(
    cable: Cable, tmp_path, port, esptool, monkeypatch: pytest.MonkeyPatch, answer: str
):
    """Planted: without an answer the flash is not erased, and a new board loops in MicroPython's set-up."""
    log = esptool()
    file = image_file(tmp_path, esp_image("esp32s3"))
    monkeypatch.setattr("sys.stdin", (tmp_path / "empty").open("w+"))
    refused = cable.umqtt("flash", file, "--yes")
    assert refused.code == 2 and "--erase" in refused.stderr and "--keep" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1 and not log.exists()
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("click.confirm", lambda text, **_: answer == "y")
    assert cable.umqtt("flash", file, "--yes").code == 0
    assert ("erase-flash" in log.read_text()) == (answer == "y")


def test_what_esptool_says_is_told_with_what_to_do(cable: Cable, tmp_path, port, esptool, monkeypatch):
    esptool()
    monkeypatch.setenv("ESPTOOL_FAILS", "1")
    answer = cable.umqtt("flash", image_file(tmp_path, esp_image("esp32s3")), "--yes", "--keep")
    assert answer.code == 5
    assert "Failed to connect to ESP32: No serial data received. — hold the button BOOT" in answer.stderr


def test_an_rp2350_image_may_begin_with_a_block_that_says_nothing(tmp_path: Path):
    absolute = uf2_image(ABSOLUTE, 1)
    assert read_image(Path(image_file(tmp_path, uf2_image(RP2350, first=absolute)))).chip == "rp2350"
    with pytest.raises(KitError, match="another family"):
        read_image(Path(image_file(tmp_path, absolute)))


class Drive:
    """A boot loader's drive: it takes a file, and disappears once the file is complete."""

    def __init__(self, folder: Path, chip: str = "RPI-RP2") -> None:
        self.folder = folder
        folder.mkdir()
        self._info = folder / "INFO_UF2.TXT"
        self._info.write_text(f"UF2 Bootloader v3.0\nModel: Raspberry Pi\nBoard-ID: {chip}\n")

    def reset_after(self, size: int) -> threading.Thread:
        def watch() -> None:
            file = self.folder / "NEW.UF2"
            eventually(lambda: file.exists() and file.stat().st_size == size)
            self._info.unlink()

        thread = threading.Thread(target=watch)
        thread.start()
        return thread


def test_a_uf2_image_is_copied_and_the_reset_awaited(cable: Cable, tmp_path, monkeypatch: pytest.MonkeyPatch):
    drive = Drive(tmp_path / "RPI-RP2")
    monkeypatch.setenv("UMQTT_UF2_DRIVES", str(drive.folder))
    content = uf2_image(RP2040, 200)
    found = cable.umqtt("devices", "--json").json["boot_loaders"]
    assert found == [{"path": str(drive.folder), "chip": "rp2040", "model": "Raspberry Pi"}]
    thread = drive.reset_after(len(content))
    answer = cable.umqtt("flash", image_file(tmp_path, content), "--yes", "--json")
    thread.join()
    assert (answer.code, answer.json["at"]) == (0, str(drive.folder)), answer.stderr
    assert (drive.folder / "NEW.UF2").read_bytes() == content


def test_a_uf2_image_of_another_chip_is_not_copied(cable: Cable, tmp_path, monkeypatch: pytest.MonkeyPatch):
    drive = Drive(tmp_path / "RP2350", "RP2350")
    monkeypatch.setenv("UMQTT_UF2_DRIVES", str(drive.folder))
    answer = cable.umqtt("flash", image_file(tmp_path, uf2_image(RP2040)), "--yes")
    assert answer.code == 5 and "is an rp2350 — take the other image" in answer.stderr
    assert not (drive.folder / "NEW.UF2").exists()


def test_a_board_that_does_not_reset_is_told(cable: Cable, tmp_path, monkeypatch: pytest.MonkeyPatch):
    drive = Drive(tmp_path / "RPI-RP2")
    monkeypatch.setenv("UMQTT_UF2_DRIVES", str(drive.folder))
    monkeypatch.setattr("umqtt_kit.flash.uf2._RESETS_WITHIN_S", 0.2)
    answer = cable.umqtt("flash", image_file(tmp_path, uf2_image(RP2040)), "--yes")
    assert answer.code == 5 and "did not reset" in answer.stderr


def test_without_a_boot_loader_or_a_board_the_button_is_named(cable: Cable, tmp_path):
    answer = cable.umqtt("flash", image_file(tmp_path, uf2_image(RP2040)), "--yes")
    assert answer.code == 3 and "hold the button BOOTSEL" in answer.stderr


def test_a_virtual_board_has_nothing_to_flash(cable: Cable, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Planted: with a UF2 image it is sent to a boot loader that it does not have, and the drive is waited for."""
    monkeypatch.setattr("umqtt_kit.flash.uf2._APPEARS_WITHIN_S", 0.1)
    with cable.board() as board:
        for image, device in ((esp_image("esp32"), ()), (uf2_image(RP2040), ("--device", board.port))):
            answer = cable.umqtt("flash", image_file(tmp_path, image), "--yes", *device)
            assert answer.code == 2 and "is a virtual board" in answer.stderr
        assert json.loads(cable.umqtt("devices", "--passive", "--json").stdout)["boards"][0]["virtual"]
