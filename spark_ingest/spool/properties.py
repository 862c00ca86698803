"""Decodes the properties of a received PUBLISH of MQTT 5. Clause numbers are those of OASIS MQTT 5.

A collector stores properties as they came, without looking at them, so this accepts anything: a broker must refuse
malformed properties, but if it does not, the message must not be lost, nor stop its readers. What cannot be decoded
is returned as bytes.
"""

from typing import NamedTuple

from umqtt_robust.base_errors import ProtocolError
from umqtt_robust.packets import decode_length

_PAYLOAD_FORMAT_INDICATOR = 0x01
_MESSAGE_EXPIRY_INTERVAL = 0x02
_CONTENT_TYPE = 0x03
_RESPONSE_TOPIC = 0x08
_CORRELATION_DATA = 0x09
_SUBSCRIPTION_IDENTIFIER = 0x0B
_TOPIC_ALIAS = 0x23
_USER_PROPERTY = 0x26
# Sizes in bytes of the properties that are numbers of a fixed size.
_SIZES = {_PAYLOAD_FORMAT_INDICATOR: 1, _MESSAGE_EXPIRY_INTERVAL: 4, _TOPIC_ALIAS: 2}
_FIELDS = frozenset((_CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION_DATA))

MOST_REPEATED = 1 << 16
"""Most user properties and subscription identifiers of a message that are decoded.

A packet of 256 MB may have 53 million, which would take several GB of memory.
"""


class Properties(NamedTuple):
    """The properties of a PUBLISH; None stands for one that it does not have. Its topic alias is left out.

    :ivar headers: name and value of each user property, in their order; the values are bytes, as in Kafka's headers.
    :ivar message_expiry_interval: seconds that the message had left when the broker sent it.
    :ivar undecoded: the bytes from the first property on that MQTT 5 does not allow there, or that is one too many
        (MOST_REPEATED).
    """

    headers: list[tuple[str, bytes]] | None = None
    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: list[int] | None = None
    undecoded: bytes | None = None


NO_PROPERTIES = Properties()


def variable_integer(data: bytes, at: int) -> tuple[int, int]:
    """Decode a variable byte integer (1.5.5); return its value and the index after it.

    :raises IndexError: it is cut short, or longer than four bytes.
    """
    try:
        found = decode_length(data, at, len(data))
    except ProtocolError:
        found = None
    if found is None:
        raise IndexError
    return found


def decode_properties(raw: bytes) -> Properties:
    r"""Decode the properties `raw`, which come without their length.

    In text, a byte that is not UTF-8 is written as ``\xNN``, as in topic names.
    """
    if not raw:
        return NO_PROPERTIES
    headers: list[tuple[str, bytes]] = []
    identifiers: list[int] = []
    found: dict[int, bytes] = {}
    at, begin, end = 0, 0, len(raw)
    try:
        while at < end and len(headers) + len(identifiers) < MOST_REPEATED:
            identifier = raw[at]
            if identifier == _USER_PROPERTY:
                name, at = _field(raw, at + 1)
                value, at = _field(raw, at)
                headers.append((_text(name), value))
            elif identifier == _SUBSCRIPTION_IDENTIFIER:
                number, at = variable_integer(raw, at + 1)
                identifiers.append(number)
            elif identifier in found:
                # Only the two above may occur more than once.
                break
            elif identifier in _FIELDS:
                found[identifier], at = _field(raw, at + 1)
            elif at + 1 + _SIZES.get(identifier, end) <= end:
                at += 1 + _SIZES[identifier]
                found[identifier] = raw[begin + 1 : at]
            else:
                break
            begin = at
    except IndexError:
        # A property is cut short; `begin` is where it begins.
        pass
    indicator, interval = found.get(_PAYLOAD_FORMAT_INDICATOR), found.get(_MESSAGE_EXPIRY_INTERVAL)
    content_type, response_topic = found.get(_CONTENT_TYPE), found.get(_RESPONSE_TOPIC)
    return Properties(
        headers or None,
        None if indicator is None else indicator[0],
        None if interval is None else int.from_bytes(interval, "big"),
        None if content_type is None else _text(content_type),
        None if response_topic is None else _text(response_topic),
        found.get(_CORRELATION_DATA),
        identifiers or None,
        raw[begin:] or None,
    )


def _field(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the field at `at`, which has its length before it, and the index after it. Raises IndexError."""
    begin = at + 2
    end = begin + (data[at] << 8 | data[at + 1])
    if end > len(data):
        raise IndexError
    return data[begin:end], end


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
