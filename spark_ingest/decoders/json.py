"""JSON as a payload, read so that no value is lost without a word."""

import json
import re

import msgspec

from .reading import BadRecord


class Repeated:
    """The values of a name that an object has more than once: which of them counts is not known.

    No decoder takes it for a number or a text, so it is refused with a reason wherever it stands.
    """

    def __init__(self, values: list[object]) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"said {len(self.values)} times: {', '.join(map(ascii, self.values))}"


def shown(value: object) -> str:
    """Return a value for use in a reason: at most 60 characters of ASCII, as no table can hold a lone surrogate."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    values: dict[str, list[object]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: some[0] if len(some) == 1 else Repeated(some) for name, some in values.items()}


def _refuse_constant(name: str) -> float:
    raise BadRecord(f"not JSON: {name} is no JSON number")


_load_strictly = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant).decode
# Many programs write NaN and Infinity, which JSON does not have.
_load = json.JSONDecoder(object_pairs_hook=_object).decode
_fast_load = msgspec.json.Decoder().decode
_SPACED = re.compile(rb'"\s+:').search
# json.dumps() would make an encoder for each call, and a record may have a million fields.
_dump = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def said_once(payload: bytes, names: int) -> bool:
    """Return whether a JSON text surely has no object with a name twice.

    :param names: the number of names in the objects that were read from it, in which the last value of a name counts.
    """
    # Each name is followed by a colon. More colons than names are within texts, or after a name that is said again.
    if payload.count(b":") == names:
        return True
    return payload.count(b'":') == names and not _SPACED(payload)


def _names(value: object) -> int:
    """Return the number of names in all objects of a JSON value."""
    number = 0
    if type(value) is dict:
        number = len(value)
        value = value.values()
    for one in value:  # pyrefly: ignore[not-iterable]
        if type(one) is dict or type(one) is list:
            number += _names(one)
    return number


def json_value(payload: bytes, *, strict: bool = False) -> object:
    """Return the JSON value in `payload`; values of a name that is said twice are :class:`Repeated`.

    :param strict: refuse NaN and Infinity, which otherwise are read as numbers.
    :raises BadRecord: it is not JSON in UTF-8.
    """
    try:
        value = _fast_load(payload)
        if type(value) is not dict and type(value) is not list:
            return value
        if said_once(payload, _names(value)):
            return value
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return (_load_strictly if strict else _load)(payload.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRecord(f"not UTF-8 at byte {error.start}") from None
    except BadRecord:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON: {error}") from None


def json_object(payload: bytes) -> dict[str, object]:
    """Return the JSON object in `payload`, strictly. Raises BadRecord if it is not a JSON object in UTF-8."""
    fields = json_value(payload, strict=True)
    if type(fields) is not dict:
        raise BadRecord("not a JSON object")
    return fields


def json_text(value: object, name: str) -> str:
    """Return `value` as JSON in ASCII. Raises BadRecord, naming the field `name`, if JSON cannot represent it."""
    try:
        return _dump(value)
    except TypeError as error:
        raise BadRecord(f"field {shown(name)} has a value that JSON cannot represent: {error}") from None
    except (ValueError, RecursionError):
        raise BadRecord(f"field {shown(name)} holds a number beyond doubles, or is nested too deeply") from None
