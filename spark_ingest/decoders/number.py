"""A payload that is one number, as text: ``21.5``, or a switch: ``on``, ``true``."""

import re

from .json import shown
from .reading import BadRecord

_NUMBER = re.compile(rb"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?")
_SWITCH = {b"on": 1.0, b"true": 1.0, b"off": 0.0, b"false": 0.0}


def number(payload: bytes) -> float:
    """Return the number in `payload`. Raises BadRecord if it is neither a number nor a switch's state."""
    text = payload.strip()
    if text.lower() in _SWITCH:
        return _SWITCH[text.lower()]
    if not _NUMBER.fullmatch(text):
        raise BadRecord(f"not a number: {shown(payload)}")
    return float(text)
