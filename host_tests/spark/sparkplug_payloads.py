"""Sparkplug payloads, written by hand, so that the decoder's table of fields is checked too.

Numbers of fields and of data types are those of the standard's protobuf schema.
"""

from __future__ import annotations

import struct

INT8, INT16, INT32, INT64, UINT64, FLOAT, DOUBLE, BOOLEAN, STRING, DATASET = 1, 2, 3, 4, 8, 9, 10, 11, 12, 16


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes((*encoded, number))


def tagged(number: int, value: int | bytes | float, wire: str = "") -> bytes:
    """Encode a field: a whole number, bytes, or with `wire` a float ("f") or a double ("d")."""
    if wire:
        return varint(number << 3 | (5 if wire == "f" else 1)) + struct.pack("<" + wire, value)
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(int(value))


def metric(name: str | None = None, alias: int | None = None, datatype: int | None = None, value: bytes = b"") -> bytes:
    parts = [tagged(1, name.encode())] if name is not None else []
    parts += [tagged(2, alias)] if alias is not None else []
    parts += [tagged(4, datatype)] if datatype is not None else []
    return b"".join([*parts, value])


def payload(seq: int | None, timestamp: int | None, *metrics: bytes) -> bytes:
    parts = [tagged(1, timestamp)] if timestamp is not None else []
    parts += [tagged(2, one) for one in metrics]
    return b"".join([*parts, *([tagged(3, seq)] if seq is not None else [])])


def double(number: float) -> bytes:
    return tagged(13, number, "d")
