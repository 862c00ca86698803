"""The fast parser for ordinary telemetry records: msgspec, seven times as fast as the strict parser.

Doubtful records (an additional field, a name that is said twice, a number that doubles round, any error) are left to
:func:`spark_ingest.decoders.record.parse`, so the result is the same.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET

from .json import said_once

SEQ_END = 1 << 53
"""The end of seq and up: the sum of a thousand such numbers fits into 64 bits, and doubles hold each of them."""
TS_END = 9_214_646_400_000
"""2262-01-01 in Unix ms, the end of ts: data frames count nanoseconds in 64 bits, which end in that year."""
VERSION = 1
LONGEST_NAME = 256
EXACT_END = 1 << 53
"""Whole numbers below this are exact in a double; beyond, parse() keeps the exact number beside the rounded one."""

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
_Whole = Annotated[int, msgspec.Meta(ge=0, le=SEQ_END - 1)]
_Number = Annotated[float, msgspec.Meta(gt=-float(EXACT_END), lt=float(EXACT_END))]


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A telemetry record with the known fields only, all within their limits."""

    v: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    id: _Name
    boot: _Name
    seq: _Whole
    m: dict[str, _Number | None]
    ts: Annotated[int, msgspec.Meta(ge=0, le=TS_END - 1)] | msgspec.UnsetType | None = msgspec.UNSET
    up: _Whole | msgspec.UnsetType | None = msgspec.UNSET


_REQUIRED = 5
_decode_plain = msgspec.json.Decoder(_Plain).decode


def plain_records(payloads: list[bytes]) -> tuple[list, list[int]]:
    """Return (device_id, boot, seq, ts, up, metrics) per payload, and the indices left to the strict parser.

    The records at those indices are None; the indices are in ascending order.
    """
    records: list[tuple | None] = []
    doubtful: list[int] = []
    append = records.append
    for payload in payloads:
        try:
            one = _decode_plain(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            one = None
        if one is None or "\0" in one.id or "\0" in one.boot:
            doubtful.append(len(records))
            append(None)
            continue
        ts, up = one.ts, one.up
        if not said_once(payload, _REQUIRED + len(one.m) + (ts is not UNSET) + (up is not UNSET)):
            doubtful.append(len(records))
            append(None)
            continue
        append((one.id, one.boot, one.seq, None if ts is UNSET else ts, None if up is UNSET else up, one.m))
    return records, doubtful
