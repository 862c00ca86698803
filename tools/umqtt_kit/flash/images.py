"""Finds out what an image file is for, and whether it is whole, by its content and never by its name."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

from umqtt_cli.errors import EXIT_USAGE, KitError

ESP, UF2 = "esp", "uf2"

_ESP_MAGIC = 0xE9
# Bytes 12 and 13 of the extended header of an image; esptool's names.
_ESP_CHIPS = {0: "esp32", 2: "esp32s2", 5: "esp32c3", 9: "esp32s3", 12: "esp32c2", 13: "esp32c6", 16: "esp32h2"}
_ESP_HEADER = 24

_UF2_BLOCK = 512
_UF2_MAGIC = (0x0A324655, 0x9E5D5157, 0x0AB16F30)
_UF2_FAMILY_PRESENT = 0x2000
# The block that every RP2350 image begins with, against an error of the chip (RP2350-E10); it says nothing about the
# image.
_UF2_ABSOLUTE = 0xE48BFF57
UF2_FAMILIES = {0xE48BFF56: "rp2040", 0xE48BFF59: "rp2350", 0xE48BFF5A: "rp2350-riscv", 0xE48BFF5B: "rp2350"}


@dataclass(frozen=True)
class Image:
    """An image file.

    kind: ESP or UF2; chip: esptool's name, or a value of UF2_FAMILIES; sha256: of the whole file, in hex.
    """

    file: Path
    kind: str
    chip: str
    sha256: str
    size: int


def read_image(file: Path) -> Image:
    """Return what an image file is for.

    Raises KitError (exit code 2) if the file cannot be read, is no image, or is damaged.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise KitError(
            f"{file}: {error.strerror} — give the image file from micropython.org/download", EXIT_USAGE
        ) from error
    sha256 = hashlib.sha256(data).hexdigest()
    if len(data) >= _UF2_BLOCK and struct.unpack_from("<II", data) == _UF2_MAGIC[:2]:
        return Image(file, UF2, _uf2_chip(file, data), sha256, len(data))
    if len(data) > _ESP_HEADER and data[0] == _ESP_MAGIC:
        return Image(file, ESP, _esp_chip(file, data), sha256, len(data))
    raise KitError(
        f"{file} is neither an ESP32 image (.bin) nor a UF2 file — take the one for your board from "
        "micropython.org/download",
        EXIT_USAGE,
    )


def _esp_chip(file: Path, data: bytes) -> str:
    number = struct.unpack_from("<H", data, 12)[0]
    if number not in _ESP_CHIPS:
        raise KitError(
            f"{file} is for an ESP chip that is not known here (number {number}) — use esptool itself", EXIT_USAGE
        )
    return _ESP_CHIPS[number]


def _uf2_chip(file: Path, data: bytes) -> str:
    families: set[int] = set()
    damaged = len(data) % _UF2_BLOCK != 0
    for start in range(0, len(data) - _UF2_BLOCK + 1, _UF2_BLOCK):
        first, second, flags, _, size, _, _, family = struct.unpack_from("<8I", data, start)
        last = struct.unpack_from("<I", data, start + _UF2_BLOCK - 4)[0]
        damaged = damaged or (first, second, last) != _UF2_MAGIC or size > 476
        if flags & _UF2_FAMILY_PRESENT and family != _UF2_ABSOLUTE:
            families.add(family)
    damaged = damaged or not _all_blocks(data, families)
    if damaged:
        raise KitError(f"{file} is damaged or cut short — download it again", EXIT_USAGE)
    chips = {UF2_FAMILIES.get(family) for family in families}
    if len(chips) != 1 or None in chips:
        shown = ", ".join(f"{family:#x}" for family in sorted(families)) or "none"
        raise KitError(f"{file} is for another family of chips ({shown}) — take the image of your board", EXIT_USAGE)
    return str(chips.pop())


def _all_blocks(data: bytes, families: set[int]) -> bool:
    """Return whether every block of each family that the file announces is there."""
    for family in families:
        numbers: set[int] = set()
        announced = 0
        for start in range(0, len(data), _UF2_BLOCK):
            number, announced_here, block_family = struct.unpack_from("<III", data, start + 20)
            if block_family == family:
                numbers.add(number)
                announced = announced_here
        if numbers != set(range(announced)):
            return False
    return True
