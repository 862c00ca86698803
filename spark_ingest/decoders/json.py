"""A JSON object as a payload."""

import json

from .reading import BadRecord


def shown(value: object) -> str:
    """Return a value for use in a reason: at most 60 characters of ASCII, as no table can hold a lone surrogate."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_constant(name: str) -> float:
    raise BadRecord(f"not JSON: {name} is no JSON number")


_load = json.JSONDecoder(parse_constant=_refuse_constant).decode
# json.dumps() would make an encoder for each call, and a record may have a million fields.
_dump = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def json_object(payload: bytes) -> dict[str, object]:
    """Return the JSON object in `payload`. Raises BadRecord if it is not a JSON object in UTF-8."""
    try:
        fields = _load(payload.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRecord(f"not UTF-8 at byte {error.start}") from None
    except BadRecord:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON: {error}") from None
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
