"""The time of a reading in a payload: a Unix time in any unit, as a number or as text, or an ISO 8601 time."""

import math
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from .fast_decode import TS_END
from .json import shown
from .reading import BadRecord

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Unit of a Unix time to the number of them in a second."""

# In seconds, these would be in the year 5138 or later: so a number from there on has the next smaller unit.
_SIZES = ((1e11, 1), (1e14, 1_000), (1e17, 1_000_000))
_DIGITS = re.compile(r"[+-]?\d{1,30}(\.\d{0,30})?")
_ISO = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)[Tt ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d{1,30}))?)?)?"
    r" ?(?:([Zz]|UTC|GMT)|([+-])(\d\d):?(\d\d)?)?"
)


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
    found = _ISO.fullmatch(text)
    if not found:
        return None
    year, month, day, hour, minute, second, fraction, utc, sign, east_h, east_min = found.groups()
    h, m, s = int(hour), int(minute or 0), int(second or 0)
    # ISO 8601 ends a day at 24:00; RFC 3339 has leap seconds, which Unix time counts as the second after.
    extra = timedelta()
    if h == 24 and not (m or s or int(fraction or 0)):
        h, extra = 0, timedelta(days=1)
    if s == 60:
        s, extra = 59, extra + timedelta(seconds=1)
    where: tzinfo = zone or UTC
    if utc:
        where = UTC
    elif sign:
        if int(east_h) > 23 or int(east_min or 0) > 59:
            return None
        east = timedelta(hours=int(east_h), minutes=int(east_min or 0))
        where = timezone(east if sign == "+" else -east)
    try:
        moment = datetime(int(year), int(month), int(day), h, m, s, tzinfo=where)
        since = moment - datetime(1970, 1, 1, tzinfo=UTC) + extra
    except (ValueError, OverflowError):
        return None
    return (since.days * 86_400 + since.seconds) * 1000 + int(((fraction or "") + "000")[:3])
