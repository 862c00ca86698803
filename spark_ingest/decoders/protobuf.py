"""A Protobuf message as a payload, described by a descriptor file from ``protoc --include_imports -o FILE``."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from ..errors import UsageError
from .reading import BadRecord

# The year 10,000.
_END_S = 253_402_300_800


def message_reader(descriptor: Path, name: str) -> Callable[[bytes], dict[str, object]]:
    """Return a function that reads a payload as the message `name` and returns its fields by .proto name.

    A field that is absent from the payload has Protobuf's default value; one with explicit presence is left out. The
    function raises BadRecord if the payload is no such message. Protobuf's own types are what they stand for: a
    Timestamp is a text, a Struct an object.

    :raises UsageError: the file cannot be read, is no descriptor file, or has no such message.
    """
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor.read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except OSError as error:
        raise UsageError(f"cannot read {descriptor}: {error.strerror or error}") from error
    except (message.DecodeError, TypeError) as error:
        raise UsageError(f"{descriptor} is not what protoc --include_imports -o writes: {error}") from error
    except KeyError:
        raise UsageError(f"{descriptor} has no message {name}: give it with its package") from None

    def read(payload: bytes) -> dict[str, object]:
        try:
            return _fields(kind.FromString(payload))
        except message.DecodeError as error:
            raise BadRecord(f"not a {name}: {error}") from None

    return read


def _content(one: Any) -> object:
    """Return what a message within another one stands for: that of Protobuf's own types, or its fields."""
    package, _, kind = one.DESCRIPTOR.full_name.rpartition(".")
    if package != "google.protobuf":
        return _fields(one)
    if kind == "Timestamp" and 0 <= one.seconds < _END_S and 0 <= one.nanos < 1_000_000_000:
        return f"{datetime.fromtimestamp(one.seconds, UTC):%Y-%m-%dT%H:%M:%S}.{one.nanos:09}Z"
    if kind == "Duration":
        return one.seconds + one.nanos / 1e9
    if kind == "Struct":
        return {key: _content(one.fields[key]) for key in one.fields}
    if kind == "ListValue":
        return [_content(value) for value in one.values]
    if kind == "Value":
        name = one.WhichOneof("kind")
        value = None if name in (None, "null_value") else getattr(one, name)
        return _content(value) if isinstance(value, message.Message) else value
    return one.value if kind.endswith("Value") else _fields(one)


def _fields(one: message.Message) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in one.DESCRIPTOR.fields:
        if field.has_presence and not one.HasField(field.name):
            continue
        value, nested = getattr(one, field.name), field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            inner = nested.fields_by_name["value"].message_type is not None
            found[field.name] = {str(key): _content(value[key]) if inner else value[key] for key in value}
        elif field.is_repeated:
            found[field.name] = [item if nested is None else _content(item) for item in value]
        else:
            found[field.name] = value if nested is None else _content(value)
    return found
