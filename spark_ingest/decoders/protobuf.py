"""A Protobuf message as a payload, described by a descriptor file from ``protoc --include_imports -o FILE``."""

from collections.abc import Callable
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from ..errors import UsageError
from .reading import BadRecord


def message_reader(descriptor: Path, name: str) -> Callable[[bytes], dict[str, object]]:
    """Return a function that reads a payload as the message `name` and returns its fields by .proto name.

    A field that is absent from the payload has Protobuf's default value; one with explicit presence is left out. The
    function raises BadRecord if the payload is no such message.

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


def _fields(one: message.Message) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in one.DESCRIPTOR.fields:
        if field.has_presence and not one.HasField(field.name):
            continue
        value, nested = getattr(one, field.name), field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            inner = nested.fields_by_name["value"].message_type is not None
            found[field.name] = {str(key): _fields(value[key]) if inner else value[key] for key in value}
        elif field.is_repeated:
            found[field.name] = [item if nested is None else _fields(item) for item in value]
        else:
            found[field.name] = value if nested is None else _fields(value)
    return found
