"""Reads JSON that others wrote: files, what a user types, what a board or a device says.

Every value that it accepts can be written as JSON again.
"""

from __future__ import annotations

import json
import math
from typing import Any

# Nothing that is read here needs a tenth of this depth; far more would exceed Python's recursion limit.
_DEEPEST = 100


class NoNumber(ValueError):
    """A number that JSON does not have but Python reads and writes: NaN, an infinity, or one that is too large."""


def loads(text: bytes | str) -> Any:
    """Return the value of a JSON text; bytes may begin with a byte order mark.

    Raises ValueError, whose message quotes none of the text.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8") from None
    _check(value, 0)
    return value


def _check(value: object, depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(value, str):
        # "\ud800" alone is no character, and cannot be written as UTF-8.
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("it holds half of a surrogate pair")
    elif isinstance(value, float) and not math.isfinite(value):
        raise NoNumber("it holds a number that JSON does not have")
    elif isinstance(value, dict):
        for key, entry in value.items():
            _check(key, depth)
            _check(entry, depth + 1)
    elif isinstance(value, list):
        for entry in value:
            _check(entry, depth + 1)
