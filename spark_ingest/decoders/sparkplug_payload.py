"""The payload of a Sparkplug B message: its Protobuf schema, and the values of its metrics."""

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, cast

from .json import shown
from .reading import BadRecord

COMPRESSED = "SPBV1.0_COMPRESSED"
GOOD = range(192, 256)
"""The qualities of an ordinary value (6.4.9.1: 192); 0 is BAD, 500 is STALE."""
_QUALITIES = {0: "BAD", 500: "STALE"}
_LARGEST_UNPACKED = 8 << 20
_DEEPEST = 8

_STRING, _BYTES, _UINT32, _UINT64, _FLOAT, _DOUBLE, _BOOL, _MESSAGE = 9, 12, 13, 4, 2, 1, 8, 11
_OPTIONAL, _REPEATED = 1, 3
_VALUES = (
    *(("int_value", _UINT32), ("long_value", _UINT64), ("float_value", _FLOAT)),
    *(("double_value", _DOUBLE), ("boolean_value", _BOOL), ("string_value", _STRING)),
)


def _values_from(first: int) -> tuple[tuple[str, int, int | str], ...]:
    return tuple((name, first + i, kind) for i, (name, kind) in enumerate(_VALUES))


# Message to (field, number, type in descriptor.proto, or the message that it is).
_FIELDS: dict[str, tuple[tuple[str, int, int | str], ...]] = {
    "PropertyValue": (("type", 1, _UINT32), ("is_null", 2, _BOOL), *_values_from(3)),
    "PropertySet": (("keys", 1, _STRING), ("values", 2, "PropertyValue")),
    "Element": _values_from(1),
    "Row": (("elements", 1, "Element"),),
    "DataSet": (*(("num_of_columns", 1, _UINT64), ("columns", 2, _STRING), ("types", 3, _UINT32), ("rows", 4, "Row")),),
    "Template": (
        *(("version", 1, _STRING), ("metrics", 2, "Metric"), ("template_ref", 4, _STRING), ("is_definition", 5, _BOOL)),
    ),
    "Metric": (
        ("name", 1, _STRING),
        ("alias", 2, _UINT64),
        ("timestamp", 3, _UINT64),
        ("datatype", 4, _UINT32),
        ("is_historical", 5, _BOOL),
        ("is_transient", 6, _BOOL),
        ("is_null", 7, _BOOL),
        ("metadata", 8, _BYTES),
        ("properties", 9, "PropertySet"),
        *_values_from(10),
        ("bytes_value", 16, _BYTES),
        ("dataset_value", 17, "DataSet"),
        ("template_value", 18, "Template"),
    ),
    "Payload": (
        ("timestamp", 1, _UINT64),
        ("metrics", 2, "Metric"),
        ("seq", 3, _UINT64),
        ("uuid", 4, _STRING),
        ("body", 5, _BYTES),
    ),
}
_REPEATED_FIELDS = frozenset(("metrics", "keys", "values", "columns", "types", "rows", "elements"))
_PACKAGE = "sparkplug_b"

# Signed data type of a metric to the number of bits of its two's complement.
_SIGNED = {1: 8, 2: 16, 3: 32, 4: 64}
# Data type of an array to the struct code of its elements.
_ARRAYS = dict(zip(range(22, 32), "bhiqBHIQfd", strict=True)) | {34: "Q"}
_BOOLEANS, _TEXTS = 32, 33


class Value(NamedTuple):
    """The value of a metric.

    :ivar name: below the metric's name: "" for its own value, ``[2]`` for an element of an array, ``/A`` of a template.
    :ivar value: a number, a text, or None.
    :ivar beside: what is kept beside it: a quality that is not good with the value, a data set, bytes.
    :ivar refused: why there is no value; "" if there is one.
    """

    name: str
    value: object
    beside: object = None
    refused: str = ""


@cache
def _message(name: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="sparkplug_b.proto", package=_PACKAGE, syntax="proto2")
    for message, fields in _FIELDS.items():
        one = file.message_type.add(name=message)
        for field_name, number, kind in fields:
            label: Any = _REPEATED if field_name in _REPEATED_FIELDS else _OPTIONAL
            number_of_kind = cast(Any, _MESSAGE if isinstance(kind, str) else kind)
            added = one.field.add(name=field_name, number=number, type=number_of_kind, label=label)
            if isinstance(kind, str):
                added.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _parser() -> Callable[[bytes], Any]:
    return _message("Payload").FromString


def rebirth_request(timestamp: int) -> bytes:
    """Return the payload of an NCMD that asks a node for a rebirth. `timestamp`: Unix milliseconds."""
    content = _message("Payload")(timestamp=timestamp)
    content.metrics.add(name="Node Control/Rebirth", timestamp=timestamp, datatype=11, boolean_value=True)
    return content.SerializeToString()


def parse(payload: bytes) -> Any:
    """Parse a payload, and unpack a compressed one. Raises BadRecord if it cannot be read."""
    content = _parsed(payload)
    if content.uuid == COMPRESSED:
        outer, content = content, _parsed(_unpacked(content.body))
        for name in ("seq", "timestamp"):
            if not content.HasField(name) and outer.HasField(name):
                setattr(content, name, getattr(outer, name))
    return content


def _parsed(payload: bytes) -> Any:
    from google.protobuf import message

    try:
        content = _parser()(payload)
    except (message.DecodeError, UnicodeDecodeError) as error:
        raise BadRecord(f"not a Sparkplug payload: {error}") from None
    # For text that is not UTF-8, Protobuf returns bytes and leaves the check to the reader.
    if not all(type(one.name) is str and type(one.string_value) is str for one in content.metrics):
        raise BadRecord("not a Sparkplug payload: a text is not UTF-8")
    return content


def _unpacked(body: bytes) -> bytes:
    """Unpack DEFLATE (with or without a header) or GZIP, up to _LARGEST_UNPACKED bytes."""
    for window in (47, -15):
        unpacker = zlib.decompressobj(window)
        try:
            unpacked = unpacker.decompress(body, _LARGEST_UNPACKED)
        except zlib.error:
            continue
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise BadRecord(f"its compressed body is cut off, or unpacks to more than {_LARGEST_UNPACKED:,} bytes")
        return unpacked
    raise BadRecord("its compressed body is neither DEFLATE nor GZIP")


def values(metric: Any, datatype: int) -> Iterator[Value]:
    """Yield the values of a metric: one, or those of the elements of an array or template.

    :param datatype: of the metric or of its birth; 0 if neither says it.
    """
    quality = _quality(metric)
    for one in _values(metric, datatype, 0):
        if quality in GOOD or one.refused:
            yield one
        else:
            name = _QUALITIES.get(quality, quality)
            kept = _finite(one.value) if one.beside is None else one.beside
            yield Value(one.name, None, {"quality": name, "value": kept})


def _quality(metric: Any) -> int:
    if metric.HasField("properties"):
        for key, value in zip(metric.properties.keys, metric.properties.values, strict=False):
            if key.lower() == "quality" and not value.is_null:
                return value.int_value if value.HasField("int_value") else value.long_value
    return GOOD[0]


def _values(metric: Any, datatype: int, depth: int) -> Iterator[Value]:
    if metric.is_null:
        yield Value("", None)
    elif metric.HasField("bytes_value"):
        yield from _elements(metric.bytes_value, datatype)
    elif metric.HasField("dataset_value"):
        dataset = metric.dataset_value
        rows = [[_finite(_plain(cell, kind)) for cell, kind in _cells(row, dataset.types)] for row in dataset.rows]
        yield Value("", None, {"columns": list(dataset.columns), "rows": rows})
    elif metric.HasField("template_value"):
        if depth == _DEEPEST:
            yield Value("", None, refused="a template that is nested too deeply")
        elif not metric.template_value.is_definition:
            for one in metric.template_value.metrics:
                for inner in _values(one, one.datatype, depth + 1):
                    yield inner._replace(name=f"/{one.name}{inner.name}")
    else:
        yield Value("", _plain(metric, datatype))


def _cells(row: Any, types: Any) -> Iterator[tuple[Any, int]]:
    for i, cell in enumerate(row.elements):
        yield cell, types[i] if i < len(types) else 0


def _plain(one: Any, datatype: int) -> object:
    """Return the number, text or None in a metric or in a cell of a data set."""
    bits = _SIGNED.get(datatype)
    for name in ("int_value", "long_value"):
        if one.HasField(name):
            number = getattr(one, name)
            if bits is None:
                return number
            number &= (1 << bits) - 1
            return number - (1 << bits) if number >> (bits - 1) else number
    for name in ("float_value", "double_value", "string_value"):
        if one.HasField(name):
            return getattr(one, name)
    return float(one.boolean_value) if one.HasField("boolean_value") else None


def _finite(value: object) -> object:
    """Return a value that JSON can represent."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _elements(content: bytes, datatype: int) -> Iterator[Value]:
    """Yield the elements of an array; other bytes are kept in hex."""
    try:
        found = list(_array(content, datatype))
    except (struct.error, UnicodeDecodeError, ValueError):
        yield Value("", None, refused=f"an array of data type {datatype} that is cut off: {shown(content)}")
        return
    if datatype in _ARRAYS or datatype in (_BOOLEANS, _TEXTS):
        for i, value in enumerate(found):
            yield Value(f"[{i}]", value)
    else:
        yield Value("", None, content.hex())


def _array(content: bytes, datatype: int) -> Iterator[object]:
    if datatype in _ARRAYS:
        code = _ARRAYS[datatype]
        yield from struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content)
    elif datatype == _BOOLEANS:
        (count,) = struct.unpack_from("<I", content)
        if len(content) != 4 + (count + 7) // 8:
            raise ValueError("another number of bits")
        for i in range(count):
            yield float(content[4 + i // 8] >> (7 - i % 8) & 1)
    elif datatype == _TEXTS:
        yield from (text.decode("utf-8") for text in content.split(b"\0")[:-1])
