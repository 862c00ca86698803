"""Destinations of alerts, and silences: ``[[send]]`` and ``[[silence]]`` in alerts.toml (docs/alerts.md)."""

import io
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..errors import MissingDependency, UsageError
from .groups import EVERYWHERE, Membership, Scope
from .rules import RuleSet, read_key, read_scope, text, texts

LARGEST_MESSAGE = 16_000
"""The largest length of a message, in characters; some destinations take less."""

# The log of apprise is captured in send(), which returns a failure as one line.
_LOGGER = logging.getLogger("apprise")
_LOGGER.propagate = False
_LOGGER.addHandler(logging.NullHandler())

Send = Callable[[str, str], str | None]
"""A function that sends a title and a body, and returns why that failed, or None if it was accepted."""


@dataclass(frozen=True)
class Destination:
    """A destination of messages.

    :ivar rules: names of the rules whose alerts it gets; empty for all.
    :ivar scope: the devices whose alerts it gets.
    :ivar recovery: whether it gets a message when an alert ends.
    :ivar as_json: whether messages are JSON for programs instead of text.
    :ivar largest: largest length of a message, in characters.
    """

    name: str
    send: Send = field(repr=False)
    rules: tuple[str, ...] = ()
    scope: Scope = EVERYWHERE
    recovery: bool = True
    as_json: bool = False
    largest: int = LARGEST_MESSAGE

    def wants(self, rule: str, membership: Membership) -> bool:
        """Return whether it gets the alerts of this rule about devices of this group and site."""
        return (not self.rules or rule in self.rules) and self.scope.covers(membership)


@dataclass(frozen=True)
class Silence:
    """A time from `begin_us` to `end_us` (Unix microseconds) during which some alerts are not sent.

    Empty `rules`, `scope` or `devices` mean all of them.
    """

    begin_us: int
    end_us: int
    rules: tuple[str, ...]
    scope: Scope
    devices: tuple[str, ...]

    def covers(self, rule: str, device: str, membership: Membership, now_us: int) -> bool:
        """Return whether it silences an alert of this rule and device at this time (Unix microseconds)."""
        named = (not self.devices or device in self.devices) and (not self.rules or rule in self.rules)
        return named and self.begin_us <= now_us < self.end_us and self.scope.covers(membership)


def read_destination(where: str, table: Mapping[str, Any], rules: RuleSet) -> Destination:
    """Read a table ``[[send]]``.

    :raises UsageError: the table has a value that cannot work.
    :raises MissingDependency: apprise is not installed.
    """
    _require_keys(where, table, {"name", "url"}, {"rules", "groups", "sites", "recovery", "format"})
    recovery, form = table.get("recovery", True), table.get("format", "text")
    if not isinstance(recovery, bool):
        raise UsageError(f"{where}: recovery = {recovery!r} must be true or false")
    if form not in ("text", "json"):
        raise UsageError(f"{where}: format = {form!r} must be text or json")
    send, largest = _apprise(where, _url(where, table["url"]))
    name = read_key(where, "name", text, table["name"])
    scope = read_scope(where, table, rules.groups)
    return Destination(name, send, _rules(where, table, rules), scope, recovery, form == "json", largest)


def read_silence(where: str, table: Mapping[str, Any], rules: RuleSet) -> Silence:
    """Read a table ``[[silence]]``.

    :raises UsageError: the table has a value that cannot work.
    """
    _require_keys(where, table, {"from", "until"}, {"rules", "groups", "sites", "devices"})
    begin_us, end_us = (read_key(where, key, _time_us, table[key]) for key in ("from", "until"))
    if end_us <= begin_us:
        raise UsageError(f"{where}: until is not after from")
    devices = read_key(where, "devices", texts, table["devices"]) if "devices" in table else ()
    scope = read_scope(where, table, rules.groups)
    return Silence(begin_us, end_us, _rules(where, table, rules), scope, devices)


def _require_keys(where: str, table: Mapping[str, Any], needed: set[str], others: set[str]) -> None:
    for key in sorted(needed - table.keys()):
        raise UsageError(f"{where}: there is no {key}")
    for key in sorted(table.keys() - needed - others):
        raise UsageError(f"{where}: there is no key {key}; there are {', '.join(sorted(needed | others))}")


def _rules(where: str, table: Mapping[str, Any], rules: RuleSet) -> tuple[str, ...]:
    names = read_key(where, "rules", texts, table["rules"]) if "rules" in table else ()
    known = [rule.name for rule in rules.rules]
    for name in names:
        if name not in known:
            raise UsageError(f"{where}: rules: there is no rule {name!r}; there are {', '.join(known)}")
    return names


def _time_us(value: object) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("must be a time with its zone, like 2026-05-01T08:00:00Z")
    return round(value.timestamp() * 1e6)


def _url(where: str, url: object) -> str:
    """Return the URL, read from the environment if it is ``$NAME``.

    The URL may contain passwords, so no error message shows it.

    :raises UsageError: it is not text, or the environment has no such variable.
    """
    if not isinstance(url, str) or not url:
        raise UsageError(f"{where}: url must be text")
    if not url.startswith("$"):
        return url
    if not os.environ.get(url[1:]):
        raise UsageError(f"{where}: url: the environment has no {url[1:]}")
    return os.environ[url[1:]]


def _apprise(where: str, url: str) -> tuple[Send, int]:
    try:
        import apprise
    except ImportError as error:
        message = "the package apprise is missing: pip install 'umqtt-robust[alerts]'"
        raise MissingDependency(f"{where}: {message}") from error
    library: Any = apprise
    # Send in this thread, and do not interpret escape sequences in names of devices.
    asset = library.AppriseAsset(async_mode=False, app_id="umqtt", interpret_escapes=False)
    service = library.Apprise.instantiate(url, asset=asset)
    if not isinstance(service, library.NotifyBase):
        raise UsageError(f"{where}: url is none that apprise knows, or lacks a part: see its page of that service")
    if getattr(service, "qos", None) == 0 and url.startswith("mqtt"):
        raise UsageError(f"{where}: url: MQTT at QoS 0 may lose an alert: add ?qos=1")
    notifier = library.Apprise(asset=asset)
    notifier.add(service)

    def send(title: str, body: str) -> str | None:
        said = io.StringIO()
        handler = logging.StreamHandler(said)
        handler.setLevel(logging.WARNING)
        _LOGGER.addHandler(handler)
        try:
            taken = notifier.notify(body=body, title=title, body_format=library.NotifyFormat.TEXT)
        finally:
            _LOGGER.removeHandler(handler)
        return None if taken else " ".join(said.getvalue().split()) or "the service did not accept it"

    return send, min(LARGEST_MESSAGE, service.body_maxlen - service.title_maxlen)
