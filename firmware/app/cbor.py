"""Encodes telemetry records as CBOR (RFC 8949), if settings.json says "encoding": "cbor"; reads their identities."""

import struct


def encode(value):
    """Return the bytes of a dict, text, number, bool or None. A float takes 5 bytes if 32 bits hold it, else 9."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return _head(0x00, value) if value >= 0 else _head(0x20, -1 - value)
    if isinstance(value, float):
        # Beyond the range of 32 bits, MicroPython packs an infinity and CPython raises OverflowError.
        try:
            short = struct.pack(">f", value)
        except OverflowError:
            short = b""
        if short and struct.unpack(">f", short)[0] == value:
            return b"\xfa" + short
        return b"\xfb" + struct.pack(">d", value)
    if isinstance(value, str):
        text = value.encode()
        return _head(0x60, len(text)) + text
    parts = [_head(0xA0, len(value))]
    for key in value:
        parts.append(encode(key))
        parts.append(encode(value[key]))
    return b"".join(parts)


def ids(record):
    """Return a dict with id, boot and seq of a record (bytes) that encode() has made; an empty one for other bytes."""
    found = {}
    if record[:1] < b"\xa0":
        return found
    at = 1
    for _ in range(record[0] & 31):
        name, at = _item(record, at)
        found[name], at = _item(record, at)
    return found


def _item(data, at):
    # Returns a text or the number of a head, and the position after it.
    kind, number = data[at] >> 5, data[at] & 31
    at += 1
    if kind == 7:
        return None, at + (1 << number - 24 if number > 25 else 0)
    if number >= 24:
        size = 1 << number - 24
        number = int.from_bytes(data[at : at + size], "big")
        at += size
    if kind == 3:
        return data[at : at + number].decode(), at + number
    if kind == 5:
        for _ in range(2 * number):
            at = _item(data, at)[1]
    return number, at


def _head(kind, number):
    # RFC 8949, 3: the major type, and its number in the fewest bytes that hold it.
    if number < 24:
        return bytes((kind | number,))
    for extra, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes((kind | extra,)) + number.to_bytes(size, "big")
    raise OverflowError("CBOR has whole numbers of 64 bits")
