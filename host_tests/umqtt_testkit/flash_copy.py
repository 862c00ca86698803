"""Copies bytes fast and without the heap, in machine code, which not every port of MicroPython can generate.

Importing this raises SyntaxError on a port that cannot, and NameError on CPython: the decorator and the types are
names known only to MicroPython's compiler. See flash_device.py.
"""

# pyrefly: ignore-errors[unknown-name]
# ruff: noqa: F821


@micropython.viper
def copy(target, target_start: int, source, source_start: int, length: int):
    """Copy bytes of bytearrays or bytes: target[target_start:][:length] = source[source_start:][:length]."""
    words = length >> 2
    to_words = ptr32(int(ptr8(target)) + target_start)
    from_words = ptr32(int(ptr8(source)) + source_start)
    i = 0
    while i < words:
        to_words[i] = from_words[i]
        i += 1
    to_bytes = ptr8(target)
    from_bytes = ptr8(source)
    i = words << 2
    while i < length:
        to_bytes[target_start + i] = from_bytes[source_start + i]
        i += 1
