"""The time of a reading in a payload: a Unix time in any unit, as a number or as text, or an ISO 8601 time."""

import math
import re
from datetime import UTC, datetime, timedelta, tzinfo

from .fast_decode import TS_END
from .json import shown
from .reading import BadRecord

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Unit of a Unix time to the number of them in a second."""

# In seconds, these would be in the year 5138 or later: so a number from there on has the next smaller unit.
_SIZES = ((1e11, 1), (1e14, 1_000), (1e17, 1_000_000))
_DIGITS = re.compile(r"[+-]?\d{1,30}(\.\d{0,30})?")
_ISO = re.compile(r"(\d{4}-?\d\d-?\d\d)[T ](\d\d[\d:]*(?:[.,]\d{1,30})?) ?(Z|UTC|GMT|[+-]\d\d:?(?:[0-5]\d)?|)")
_EAST = {"Z": "+00", "UTC": "+00", "GMT": "+00"}
_MIDNIGHT = re.compile(r"24(:?00(:?00([.,]0*)?)?)?")
_LEAP = re.compile(r"(\d\d:?\d\d:?)60([.,]\d*)?")


def unix_ms(value: object, unit: str | None, zone: tzinfo | None) -> int:
    """Return a time in Unix milliseconds.

    :param value: a number, digits as text, or ISO 8601 with date and time.
    :param unit: of a number, one of UNITS; None: by its size.
    :param zone: of a text that names no zone; None: UTC.
    :raises BadRecord: it is no time, or one that the tables cannot hold.
    """
    milliseconds: int | None = None
    if type(value) is str:
        text = value.strip()
        if _DIGITS.fullmatch(text):
            value = float(text) if "." in text else int(text)
        else:
            milliseconds = _from_iso(text, zone)
    # A float is multiplied by 1000 first, and the largest ones would become infinite.
    if type(value) is int or (type(value) is float and math.isfinite(value * 1000)):
        milliseconds = _from_number(value, unit)
    if milliseconds is None or not 0 <= milliseconds < TS_END:
        raise BadRecord(f"no time: {shown(value)}")
    return milliseconds


def _from_number(value: int | float, unit: str | None) -> int:
    per_second = UNITS[unit] if unit else next((per for end, per in _SIZES if abs(value) < end), UNITS["ns"])
    if type(value) is int:
        return value * 1000 // per_second
    return math.floor(value * 1000 / per_second)


def _from_iso(text: str, zone: tzinfo | None) -> int | None:
    found = _ISO.fullmatch(text.upper())
    if not found:
        return None
    day, clock, east = found.groups()
    # ISO 8601 ends a day at 24:00; RFC 3339 has leap seconds, which Unix time counts as the second after.
    extra = timedelta(days=_MIDNIGHT.fullmatch(clock) is not None, seconds=_LEAP.fullmatch(clock) is not None)
    clock = clock.replace("24", "00", 1) if extra.days else _LEAP.sub(r"\g<1>59\2", clock)
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{_EAST.get(east, east)}")
        since = moment.replace(tzinfo=moment.tzinfo or zone or UTC) - datetime(1970, 1, 1, tzinfo=UTC) + extra
    except (ValueError, OverflowError):
        return None
    return since // timedelta(milliseconds=1)
