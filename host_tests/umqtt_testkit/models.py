"""The boards that a virtual board can play: what programs can find out about the chip, and its flash layout."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """A port's littlefs: bytes per program operation, and number of erase blocks of 4096 bytes."""

    program_size: int
    block_count: int


GEOMETRIES = {"esp32": Geometry(32, 512), "rp2": Geometry(256, 212)}


@dataclass(frozen=True)
class Model:
    """A board that can be played.

    platform: sys.platform, or None for the host's own. chip: its name in esptool. machine: as in sys.implementation,
    by which `umqtt devices` tells boards apart.
    """

    platform: str | None
    chip: str
    machine: str
    geometry: Geometry


MODELS = {
    "UNIX": Model(None, "host", "", GEOMETRIES["esp32"]),
    "ESP32_GENERIC": Model("esp32", "esp32", "Generic ESP32 module with ESP32", Geometry(32, 512)),
    "ESP32_GENERIC_S3": Model("esp32", "esp32s3", "Generic ESP32S3 module with ESP32-S3", Geometry(32, 1536)),
    "ESP32_GENERIC_C3": Model("esp32", "esp32c3", "ESP32C3 module with ESP32-C3", Geometry(32, 512)),
    "ESP32_GENERIC_C6": Model("esp32", "esp32c6", "ESP32C6 module with ESP32C6", Geometry(32, 512)),
    "RPI_PICO_W": Model("rp2", "rp2040", "Raspberry Pi Pico W with RP2040", Geometry(256, 212)),
    "RPI_PICO2_W": Model("rp2", "rp2350", "Raspberry Pi Pico 2 W with RP2350", Geometry(256, 640)),
}
