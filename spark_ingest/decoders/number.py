"""Payloads that are one value as text: ``21.5``, ``on``, ``open``."""

import math
import re
from collections.abc import Mapping

from .json import shown
from .reading import BadRecord

_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?")
_SWITCH = {"on": 1.0, "true": 1.0, "off": 0.0, "false": 0.0}
_NO_VALUE = frozenset(("", "nan", "-nan", "none", "null", "nil", "unavailable", "unknown", "undefined", "n/a"))


def is_no_value(text: str) -> bool:
    """Return whether a text says that there is no value: ``nan``, ``unavailable``, ``null``, nothing at all."""
    return text.strip().lower() in _NO_VALUE


def number_in(text: str, mapped: Mapping[str, float]) -> int | float | None:
    """Return the number that a text stands for, or None if it stands for none.

    :param mapped: the numbers of further texts: ``{"open": 1}``.
    """
    text = text.strip()
    if text in mapped:
        return mapped[text]
    found = _NUMBER.fullmatch(text) if text.isascii() else None
    if found is None:
        return _SWITCH.get(text.lower())
    # A whole number keeps all its digits; one of more than 400 is refused above.
    value = int(text) if found[2] is None and found[3] is None and "." not in text else float(text)
    # 102e4567 is a serial number.
    return value if math.isfinite(value) else None


def text_of(payload: bytes) -> str:
    """Return a payload as text. Raises BadRecord if it is not UTF-8, or has U+0000.

    U+0000 alone is an empty text: Homie 5 writes it so, since an empty payload removes a retained message.
    """
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecord(f"not UTF-8 at byte {error.start}") from None
    if text == "\0":
        return ""
    if "\0" in text:
        raise BadRecord("the text holds U+0000")
    return text


def number(payload: bytes, mapped: Mapping[str, float]) -> int | float | None:
    """Return the number in `payload`; None if it says that there is no value.

    :raises BadRecord: it is no number, no switch's state, and not in `mapped`.
    """
    text = payload.decode("utf-8", "replace")
    value = number_in(text, mapped)
    if value is None and not is_no_value(text):
        raise BadRecord(f"not a number: {shown(payload)}")
    return value
