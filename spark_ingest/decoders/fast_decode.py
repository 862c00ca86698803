"""The fast parser for ordinary telemetry records: msgspec, many payloads at once.

Doubtful records (an additional field, a name that is said twice, a number that doubles round, any error) are left to
:func:`spark_ingest.decoders.record.parse`, so the result is the same.
"""

from collections.abc import Callable
from itertools import chain
from typing import Annotated, Any, NamedTuple

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
_PLAIN = msgspec.json.Decoder(_Plain)
TOGETHER = 128
"""So many payloads are read at once."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class PlainRecords(NamedTuple):
    """The columns of records; ts and up are None where a record has none.

    :ivar sizes: number of metrics of each record.
    :ivar names: of the metrics of all records, with their `values`.
    """

    device_id: list[str]
    boot: list[str]
    seq: list[int]
    ts: list[int | None]
    up: list[int | None]
    sizes: list[int]
    names: list[str]
    values: list[float | None]


def plain_records(payloads: list[bytes]) -> tuple[PlainRecords, list[int]]:
    """Return the ordinary records, and in ascending order the indices of the payloads left to the strict parser."""
    found = PlainRecords([], [], [], [], [], [], [], [])
    doubtful: list[int] = []
    for start in range(0, len(payloads), TOGETHER):
        _read(payloads[start : start + TOGETHER], start, found, doubtful)
    return found, doubtful


def _read(payloads: list[bytes], start: int, found: PlainRecords, doubtful: list[int]) -> None:
    """Read payloads, of which the first has the index `start`, at once; if one of them is doubtful, in halves."""
    lines, count = b"\n".join(payloads), len(payloads)
    try:
        records = [_PLAIN.decode(lines)] if count == 1 else objects_in_lines(lines, count, _PLAIN.decode_lines)
    except UNREADABLE:
        records = None
    if records is not None and _add(found, lines, records):
        return
    if count == 1:
        doubtful.append(start)
        return
    _read(payloads[: count // 2], start, found, doubtful)
    _read(payloads[count // 2 :], start + count // 2, found, doubtful)


def _add(found: PlainRecords, text: bytes, records: list[_Plain]) -> bool:
    """Add the records that were read from `text`; return False, and add nothing, if one of them is doubtful."""
    metrics = [one.m for one in records]
    names = list(chain.from_iterable(metrics))
    ts: list[Any] = [one.ts for one in records]
    up: list[Any] = [one.up for one in records]
    no_ts, no_up = ts.count(UNSET), up.count(UNSET)
    if b"\\u0000" in text or not said_once(text, (_REQUIRED + 2) * len(records) - no_ts - no_up + len(names)):
        return False
    # The objects go now, while they are in the processor's caches.
    found.device_id.extend([one.id for one in records])
    found.boot.extend([one.boot for one in records])
    found.seq.extend([one.seq for one in records])
    found.ts.extend([None if one is UNSET else one for one in ts] if no_ts else ts)
    found.up.extend([None if one is UNSET else one for one in up] if no_up else up)
    found.sizes.extend(map(len, metrics))
    found.names.extend(names)
    found.values.extend(chain.from_iterable([one.values() for one in metrics]))
    return True


def objects_in_lines(lines: bytes, count: int, decode_lines: Callable[[bytes], list]) -> list | None:
    """Return the JSON objects of `count` payloads, or None if not each of them surely is one object.

    :param lines: the payloads, joined by line feeds.
    :raises UNREADABLE: one is no JSON, or not what `decode_lines` reads.
    """
    # No JSON value has a line feed between } and {, so each line is an object, or several.
    if lines[:1] != b"{" or lines[-1:] != b"}":
        return None
    if lines.count(b"\n") != count - 1 or lines.count(b"}\n{") != count - 1:
        return None
    objects = decode_lines(lines)
    return objects if len(objects) == count else None
