"""Text of others on our terminal: one line, and no control characters that could do something to it.

Devices, brokers and clients choose names, payloads and reasons. A terminal obeys escape sequences in them: they move
the cursor, rewrite lines that were printed before, set the title, or have the terminal type an answer. So whatever is
written for a person passes :func:`printable`, where it is written.
"""

from __future__ import annotations

import re
import sys

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SHORT = {"\n": "\\n", "\r": "\\r", "\\": "\\\\"}


def printable(data: bytes | str, *, escape_backslash: bool = False) -> str:
    """UTF-8 as it is; every byte or character that does not print as \\xNN or \\uNNNN. Tabs stay."""
    text = data.decode(errors="surrogateescape") if isinstance(data, bytes) else data
    if text.isprintable() and not escape_backslash:
        return text
    return "".join(_shown(character, escape_backslash) for character in text)


def remark(line: str) -> None:
    """One line on standard error."""
    print(printable(line), file=sys.stderr, flush=True)


def without_colours(text: str) -> str:
    """Without the codes that colour text on a terminal, which say nothing."""
    return _COLOURS.sub("", text)


def _shown(character: str, escape_backslash: bool) -> str:
    if character.isprintable() or character == "\t":
        return "\\\\" if character == "\\" and escape_backslash else character
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
