"""UF2 files made for tests."""

from __future__ import annotations

import struct

RP2040, RP2350, ABSOLUTE, SAMD21 = 0xE48BFF56, 0xE48BFF59, 0xE48BFF57, 0x68ED2B88


def uf2_image(
    family: int, blocks: int = 5, *, first: bytes = b"", start: int = 0x10000000, payload: bytes = bytes(256)
) -> bytes:
    """Return an image of `blocks` blocks of 256 bytes, the first of them at address `start`.

    first: a block put before them.
    """
    made = [
        struct.pack("<8I", 0x0A324655, 0x9E5D5157, 0x2000, start + 256 * number, 256, number, blocks, family)
        + payload
        + bytes(220)
        + struct.pack("<I", 0x0AB16F30)
        for number in range(blocks)
    ]
    return first + b"".join(made)
