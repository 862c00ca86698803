"""A CBOR map as a payload (RFC 8949)."""

import io
from typing import Any

import cbor2

from .reading import BadRecord

_DEEPEST = 32


def _refuse_tag(*_what: object) -> object:
    raise BadRecord("it has tags")


# cbor2 turns these tags into objects such as compiled patterns or lists that contain themselves; no reading needs any
# of them.
_TAGS: dict[int, Any] = dict.fromkeys(
    (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 55799), _refuse_tag
)


def cbor_object(payload: bytes) -> dict[str, object]:
    """Return the CBOR map in `payload`. Raises BadRecord if it is no map, has tags, or has keys that are not text."""
    stream = io.BytesIO(payload)
    decoder = cbor2.CBORDecoder(
        stream,
        semantic_decoders=_TAGS,
        tag_hook=_refuse_tag,
        max_depth=_DEEPEST,
        strict_hashable_types=True,
        allow_duplicate_keys=False,
    )
    try:
        fields = decoder.decode()
    except (cbor2.CBORError, ValueError) as error:
        raise BadRecord(f"not CBOR: {error.__cause__ or error}") from None
    if type(fields) is not dict or not all(type(name) is str for name in fields):
        raise BadRecord("not a CBOR map with text for keys")
    if stream.tell() != len(payload):
        raise BadRecord(f"{len(payload) - stream.tell()} bytes follow the CBOR map")
    return fields
