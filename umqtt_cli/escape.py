"""Makes text from outside safe to print on a terminal: one line, without control characters.

Devices, brokers and clients choose names, payloads and reasons. A terminal obeys escape sequences in them, which can
move the cursor, rewrite earlier lines, set the title, or make the terminal type an answer. Therefore all text for
people passes through :func:`printable` where it is printed.
"""

from __future__ import annotations

import sys

_SHORT = {"\n": "\\n", "\r": "\\r"}


def printable(data: bytes | str) -> str:
    """Return the text with everything that does not print written as \\xNN or \\uNNNN; tabs stay.

    :param data: text, or bytes that are decoded as UTF-8.
    """
    text = data.decode(errors="surrogateescape") if isinstance(data, bytes) else data
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def remark(line: str) -> None:
    """Print one line on standard error, made printable."""
    print(printable(line), file=sys.stderr, flush=True)


def _shown(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
