"""InfluxDB line protocol as a payload: one point a line, ``cpu,host=a,cpu=cpu0 usage=1.5 1795000000000000000``."""

import re

import line_protocol_parser

from .json import shown
from .number import text_of
from .reading import BadRecord

# A line ends at a line feed that is not within a text in quotes, in which a backslash escapes quotes.
_LINE = re.compile(r'(?:[^"\n\\]|\\.|"(?:[^"\\]|\\.)*"|["\\])+', re.DOTALL)
_QUOTED = re.compile(r'\\.|"(?:[^"\\]|\\.)*"', re.DOTALL)
MAPPING = {"at": "fields", "time": "timestamp", "unit": "ns", "series": ["name", "tags"]}
"""The keys of a rule that stand for those that it does not give."""


def points_in(payload: bytes) -> list[dict[str, object] | BadRecord]:
    """Return the points in `payload`, each as ``name``, ``tags``, ``fields``, ``timestamp``; a bad one as its reason.

    :raises BadRecord: the payload is no text.
    """
    found: list[dict[str, object] | BadRecord] = []
    for line in _LINE.findall(text_of(payload)):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            found.append(_point(line.strip(" \r\t")))
        except BadRecord as error:
            found.append(error)
    return found


def _point(line: str) -> dict[str, object]:
    try:
        point = line_protocol_parser.parse_line(line)
    except (line_protocol_parser.LineFormatError, ValueError, OverflowError) as error:
        raise BadRecord(f"not line protocol: {error}: {shown(line)}") from None
    # The parser keeps the first of two fields of one name.
    if _QUOTED.sub("", line).count("=") != len(point["tags"]) + len(point["fields"]):
        raise BadRecord(f"not line protocol: a tag or field is there twice: {shown(line)}")
    one = {"name": point["measurement"], "tags": point["tags"], "fields": point["fields"]}
    return one if point["time"] is None else one | {"timestamp": point["time"]}
