"""CBOR as a payload (RFC 8949)."""

import io
from collections.abc import Callable
from typing import Any

import cbor2

from .json import Repeated
from .reading import BadRecord

_DEEPEST = 32
# Chosen numbers as keys can make the decoder slow, so longer payloads have text for keys.
_MOST_WITH_NUMBERS = 1 << 16


def _refuse_tag(*_what: object) -> object:
    raise BadRecord("it has tags")


def _content(value: object, *_immutable: object) -> object:
    return value


def _integer(sign: int) -> Callable[..., int]:
    def read(value: object, *_immutable: object) -> int:
        if type(value) is not bytes:
            raise BadRecord("a big number is no byte string")
        number = int.from_bytes(value)
        return number if sign > 0 else -1 - number

    return read


def _fraction(value: object, *_immutable: object) -> float:
    parts = list(value) if isinstance(value, list | tuple) else []
    if len(parts) != 2 or not all(type(one) is int and abs(one) < 1 << 64 for one in parts):
        raise BadRecord("a decimal fraction is no pair of whole numbers")
    return float(f"{parts[1]}e{parts[0]}")


# cbor2 turns these tags into objects such as compiled patterns or lists that contain themselves; no reading needs any
# of them.
_REFUSED: dict[int, Any] = dict.fromkeys(
    (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 55799), _refuse_tag
)
# A time as text or as a number, big integers, decimal fractions, and "this is CBOR".
_TAGS: dict[int, Any] = _REFUSED | {
    0: _content,
    1: _content,
    55799: _content,
    2: _integer(1),
    3: _integer(-1),
    4: _fraction,
}


def cbor_object(payload: bytes) -> dict[str, object]:
    """Return the CBOR map in `payload`. Raises BadRecord if it is no map, has tags, or has keys that are not text."""
    fields = _decoded(payload, _REFUSED, numbers=False)
    if type(fields) is not dict or not all(type(name) is str for name in fields):
        raise BadRecord("not a CBOR map with text for keys")
    return fields


def cbor_value(payload: bytes) -> object:
    """Return the CBOR value in `payload`; a whole number as a key becomes text, a time the text or number that it is.

    :raises BadRecord: it is not CBOR, or has other keys or tags.
    """
    return _plain(_decoded(payload, _TAGS, numbers=len(payload) <= _MOST_WITH_NUMBERS))


def _decoded(payload: bytes, tags: dict[int, Any], *, numbers: bool) -> object:
    stream = io.BytesIO(payload)
    decoder = cbor2.CBORDecoder(
        stream,
        semantic_decoders=tags,
        tag_hook=_refuse_tag,
        max_depth=_DEEPEST,
        strict_hashable_types=not numbers,
        allow_duplicate_keys=False,
    )
    try:
        value = decoder.decode()
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise BadRecord(f"not CBOR: {error.__cause__ or error}") from None
    if stream.tell() != len(payload):
        raise BadRecord(f"{len(payload) - stream.tell()} bytes follow the CBOR {_kind(value)}")
    return value


def _kind(value: object) -> str:
    return "map" if type(value) is dict else "value"


def _plain(value: object) -> object:
    if type(value) is list or type(value) is tuple:
        return [_plain(one) for one in value]
    if type(value) is dict:
        plain: dict[str, object] = {}
        for key, one in value.items():
            if type(key) is not str and type(key) is not int:
                raise BadRecord("a CBOR map has keys that are neither text nor whole numbers")
            name = str(key)
            plain[name] = Repeated([plain[name], one]) if name in plain else _plain(one)
        return plain
    return None if value is cbor2.undefined else value
