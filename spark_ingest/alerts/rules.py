"""The rules of alerts: which condition is looked for in which devices; docs/alerts.md shows them.

A rule with the name of one of DEFAULTS replaces it; ``off = true`` removes it.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError
from .groups import NOWHERE, Groups, Membership, Scope

US = 1_000_000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 3650 * 86_400
_LONGEST_NAME = 64


def duration_us(text: object) -> int:
    """Convert a time such as ``90s``, ``15m``, ``2h`` or ``7d`` to microseconds.

    :raises ValueError: it is not such a time, or longer than ten years.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", text, re.ASCII) if isinstance(text, str) else None
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else math.inf
    if seconds > _LONGEST_S:
        raise ValueError('must be a time like "90s", "15m", "2h" or "7d", at most ten years')
    return round(seconds * US)


def duration_text(us: int) -> str:
    """Convert microseconds to text for :func:`duration_us`, in the largest unit that gives a whole number."""
    for unit, seconds in reversed(_UNITS_S.items()):
        if us and us % (seconds * US) == 0:
            return f"{us // (seconds * US)}{unit}"
    return f"{us / US:.6f}".rstrip("0").rstrip(".") + "s"


def some_duration_us(text: object) -> int:
    """Convert a time as :func:`duration_us`, but raise ValueError for 0 too."""
    if not (us := duration_us(text)):
        raise ValueError("must be longer than 0")
    return us


def _number(value: object) -> float:
    # read_toml() refuses whole numbers of more than 64 bits.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("must be a number")
    return float(value)


def _not_zero(value: object) -> float:
    if (number := _number(value)) == 0:
        raise ValueError("must be a number other than 0")
    return number


def _positive(value: object) -> float:
    if (number := _number(value)) <= 0:
        raise ValueError("must be a number above 0")
    return number


def _share(value: object) -> float:
    if not 0 < (number := _number(value)) < 1:
        raise ValueError("must be a number between 0 and 1")
    return number


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 53:
        raise ValueError("must be a whole number above 0")
    return value


def _several(value: object) -> int:
    if (count := _count(value)) < 2:
        raise ValueError("must be a whole number above 1")
    return count


def text(value: object) -> str:
    """Check a text of 1 to 64 printable characters.

    :raises ValueError: it is not such a text.
    """
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > _LONGEST_NAME:
        raise ValueError(f"must be text of 1 to {_LONGEST_NAME} characters that print")
    return value


def texts(value: object) -> tuple[str, ...]:
    """Check a list of texts, as :func:`text` checks one.

    :raises ValueError: it is not such a list, or it is empty.
    """
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be a list of texts")
    return tuple(text(one) for one in value)


class Key(NamedTuple):
    """A key of a kind of rule. `read` converts its value; `default` replaces a missing value, or is REQUIRED."""

    read: Any
    default: object


REQUIRED = object()

KINDS: Mapping[str, Mapping[str, Key]] = {
    "offline": {"after": Key(some_duration_us, "15m")},
    "gap": {"readings": Key(_count, 100)},
    "reboot_loop": {"boots": Key(_several, 5), "within": Key(some_duration_us, "1h")},
    "memory_falling": {"share": Key(_share, 0.7), "after": Key(duration_us, "1h")},
    "quarantined": {"messages": Key(_count, 2)},
    "firmware": {"expected": Key(texts, REQUIRED)},
    "threshold": {
        "metric": Key(text, REQUIRED),
        "above": Key(_number, None),
        "below": Key(_number, None),
        "after": Key(duration_us, "0s"),
    },
    "rate": {
        "metric": Key(text, REQUIRED),
        "change": Key(_not_zero, REQUIRED),
        "within": Key(some_duration_us, REQUIRED),
    },
    "missing": {"metric": Key(text, REQUIRED), "after": Key(some_duration_us, REQUIRED)},
    "group_median": {"metric": Key(text, REQUIRED), "by": Key(_positive, REQUIRED), "after": Key(duration_us, "15m")},
    "own_week": {"metric": Key(text, REQUIRED), "by": Key(_positive, REQUIRED)},
    "battery": {
        "metric": Key(text, "supply_v"),
        "empty": Key(_number, REQUIRED),
        "within": Key(some_duration_us, "14d"),
    },
}
"""The keys of each kind of rule. Each kind is a view in ``gold/sql/alerts.sql``."""

DEFAULTS = ("offline", "gap", "reboot_loop", "memory_falling", "quarantined")
"""Kinds that have a rule by default, with the kind's name and default values; a file overrides them."""

_LONGEST_LOOK_US = 86_400 * US
"""The longest time before now from which an update of gold reads windows, in microseconds."""


class Rule(NamedTuple):
    """A rule: a kind of condition, its `values` by key of KINDS (times in microseconds), and its devices."""

    name: str
    kind: str
    scope: Scope
    values: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:  # pyrefly: ignore[bad-override]
        return self.values[key]

    @property
    def is_metric(self) -> bool:
        """Whether the rule is about a metric; then it does not judge a device without recent readings."""
        return "metric" in self.values

    def as_shown(self) -> dict[str, Any]:
        """Return the values that are set, in the form they have in the file."""
        times = {key for key, one in KINDS[self.kind].items() if one.read in (duration_us, some_duration_us)}
        given = {key: value for key, value in self.values.items() if value is not None}
        return {key: duration_text(value) if key in times else value for key, value in given.items()}


@dataclass(frozen=True)
class RuleSet:
    """The rules and the groups of devices. `source`: the tables of the file as JSON, which are stored with gold."""

    rules: tuple[Rule, ...]
    groups: Groups = field(default_factory=dict)
    source: str = "[]"

    @property
    def offline_us(self) -> int:
        """The shortest time, in microseconds, after which an offline rule reports a device; ten years without one."""
        return min((rule["after"] for rule in self.rules if rule.kind == "offline"), default=_LONGEST_S * US)

    def of(self, device_id: str) -> Membership:
        """Return the group and the site of a device."""
        return self.groups.get(device_id, NOWHERE)

    def covers(self, rule: Rule, device_id: str) -> bool:
        """Return whether `rule` applies to the device."""
        return rule.scope.covers(self.of(device_id))

    def as_text(self) -> str:
        """Return rules and groups as text for :func:`rules_from_text`."""
        return json.dumps({"rules": json.loads(self.source), "groups": {key: [*at] for key, at in self.groups.items()}})


def rules_from_text(kept: str) -> RuleSet:
    """Read what :meth:`RuleSet.as_text` wrote.

    :raises ValueError: the text is something else, for example from a newer release.
    """
    try:
        found = json.loads(kept)
        groups = {device: Membership(*at) for device, at in found["groups"].items()}
        return rule_set(Path("the kept rules"), found["rules"], groups)
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise ValueError(str(error)) from error


def rule_set(path: Path, tables: list[dict[str, Any]], groups: Groups) -> RuleSet:
    """Read the tables ``[[rule]]`` of a file, and add those of DEFAULTS that it neither replaces nor removes.

    :raises UsageError: a rule has a value that cannot work.
    """
    source = json.dumps(tables, default=str)
    found: dict[str, Rule | None] = {}
    for index, table in enumerate(tables, 1):
        rule = _rule(f"{path}: rule {table.get('name', index)!r}", table, groups)
        name = table["name"]
        if name in found:
            raise UsageError(f"{path}: two rules are called {name!r}")
        found[name] = rule
    defaults = {kind: _checked(kind, {"name": kind, "kind": kind}, groups) for kind in DEFAULTS}
    rules = tuple(rule for rule in (defaults | found).values() if rule is not None)
    return RuleSet(rules, groups, source)


def _rule(where: str, table: Mapping[str, Any], groups: Groups) -> Rule | None:
    """Read a table ``[[rule]]``; return None if it switches a default off.

    :raises UsageError: the table has a value that cannot work.
    """
    try:
        name = text(table.get("name"))
    except ValueError as error:
        raise UsageError(f"{where}: name {error}") from error
    if "off" not in table:
        return _checked(where, table, groups)
    if table["off"] is not True or set(table) != {"name", "off"} or name not in DEFAULTS:
        raise UsageError(f"{where}: off = true stands alone, and only for {', '.join(DEFAULTS)}")
    return None


def _checked(where: str, table: Mapping[str, Any], groups: Groups) -> Rule:
    kind = table.get("kind", table["name"])
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"{where}: kind {kind!r} is none of {', '.join(KINDS)}")
    keys = KINDS[kind]
    unknown = sorted(table.keys() - keys.keys() - {"name", "kind", "groups", "sites"})
    if unknown:
        raise UsageError(f"{where}: {kind} has no key {unknown[0]}; it has {', '.join([*keys, 'groups', 'sites'])}")
    values = {}
    for key, one in keys.items():
        given = table.get(key, one.default)
        if given is REQUIRED:
            raise UsageError(f"{where}: {kind} needs the key {key}")
        values[key] = None if given is None else read_key(where, key, one.read, given)
    if kind == "threshold" and values["above"] is None and values["below"] is None:
        raise UsageError(f"{where}: threshold needs the key above or below")
    if "metric" in keys and kind != "battery":
        look_us = max(values.get("after") or 0, values.get("within") or 0)
        if look_us > _LONGEST_LOOK_US:
            raise UsageError(f"{where}: after and within are at most 1d in rules of the kind {kind}")
    return Rule(table["name"], kind, read_scope(where, table, groups), values)


def read_key(where: str, key: str, read: Any, value: object) -> Any:
    """Convert a value with `read`.

    :raises UsageError: `read` raises ValueError.
    """
    try:
        return read(value)
    except ValueError as error:
        raise UsageError(f"{where}: {key} = {value!r} {error}") from error


def read_scope(where: str, table: Mapping[str, Any], groups: Groups) -> Scope:
    """Read the keys ``groups`` and ``sites``.

    :raises UsageError: no device belongs to a group or site that they name.
    """
    return Scope(
        _names(where, table, "groups", {at.group for at in groups.values()}),
        _names(where, table, "sites", {at.site for at in groups.values()}),
    )


def _names(where: str, table: Mapping[str, Any], key: str, known: Iterable[str]) -> tuple[str, ...]:
    names = read_key(where, key, texts, table[key]) if key in table else ()
    for name in names:
        if name not in known:
            raise UsageError(f"{where}: {key}: no device of groups.csv belongs to {name!r}")
    return names


DEFAULT_RULES = rule_set(Path("the defaults"), [], {})
