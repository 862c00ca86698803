"""Properties of MQTT 5 on the command line and in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from umqtt_cli.errors import EXIT_USAGE, KitError

_TEXTS = ("content-type", "response-topic", "correlation-data")
# Name to highest value.
_NUMBERS = {"payload-format-indicator": 1, "message-expiry-interval": 0xFFFFFFFF}
_USER = "user-property"
NAMES = (*_TEXTS, *_NUMBERS, _USER)


@dataclass(frozen=True)
class Properties:
    """The properties of a message. values: as umqtt_robust takes them; expires_in_ms: None if it never expires."""

    values: dict[str, Any]
    expires_in_ms: int | None


def parse(given: Sequence[str]) -> Properties:
    """Parse texts NAME=VALUE with the standard's names of properties; a user property is user-property=NAME=VALUE.

    Raises KitError (exit code 2).
    """
    values: dict[str, Any] = {}
    for each in given:
        name, found, text = each.partition("=")
        key = name.replace("-", "_")
        if name not in NAMES or not found:
            known = ", ".join(NAMES)
            raise KitError(f"--property {each!r} is none — give NAME=VALUE, NAME of {known}", EXIT_USAGE)
        if name == _USER:
            user, found, text = text.partition("=")
            if not found:
                raise KitError(f"--property {each!r} has no value — give {_USER}=NAME=VALUE", EXIT_USAGE)
            values.setdefault(key, []).append((_encoded(user), _encoded(text)))
            continue
        if key in values:
            raise KitError(f"--property {name} is given twice — give it once", EXIT_USAGE)
        values[key] = _encoded(text) if name in _TEXTS else _number(each, text, _NUMBERS[name])
    seconds = values.pop("message_expiry_interval", None)
    return Properties(values, None if seconds is None else seconds * 1000)


def _encoded(text: str) -> bytes:
    # Arguments that are not UTF-8 come as surrogates; the client refuses them, except as correlation data.
    return text.encode(errors="surrogateescape")


def _number(given: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise KitError(f"--property {given!r} is no such number — give one from 0 to {most}", EXIT_USAGE)
    return int(text)


def json_of(properties: Mapping[str, Any]) -> dict[str, object]:
    """Return the properties for json.dumps(): bytes as text, or as {"hex": digits} if they are not UTF-8."""
    return {name: _plain(value) for name, value in properties.items()}


def _plain(value: Any) -> object:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
