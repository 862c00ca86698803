"""Finds packets in received data, and limits how many bytes are processed between two reads of the clock."""

from typing import Final

from ..errors import MalformedPacket

# Bytes after which the packet loop reads the clock: at first, and at most. Some packets cost a thousand times as much
# as others.
FIRST_STEP: Final = 128
LONGEST_STEP: Final = 4096


def remaining_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode the remaining length of the packet at `at`. Returns it and the index behind it, (0, 0) if cut short.

    end: the index where the data ends. Raises MalformedPacket for a fifth byte (2.2.3).
    """
    length = 0
    for index in range(1, 5):
        if at + index >= end:
            return 0, 0
        digit = data[at + index]
        length |= (digit & 127) << 7 * (index - 1)
        if digit < 128:
            return length, at + index + 1
    raise MalformedPacket("remaining length")


def fitting(data: bytes, most: int) -> bytes:
    """Return the packets in `data` that have at most `most` bytes: the client accepts no larger ones."""
    if len(data) <= most:
        return data
    kept: list[bytes] = []
    at = 0
    while length := packet_length(data, at, len(data)):
        if length <= most:
            kept.append(data[at : at + length])
        at += length
    return b"".join(kept)


def packet_length(data: bytes, at: int, max_packet_size: int) -> int:
    """Return the size in bytes of the packet at `at`, whether it is complete or not; 0 if it is not known yet.

    Raises MalformedPacket if its remaining length is invalid or above `max_packet_size`.
    """
    end = len(data)
    if end - at < 2:
        return 0
    length, body = data[at + 1], at + 2
    if length > 127:
        length, body = remaining_length(data, at, end)
        if not body:
            return 0
    if length > max_packet_size:
        raise MalformedPacket("packet too large", 0x95)
    return body + length - at
