"""Reads ``alerts.toml``: rules, groups, destinations and silences. Paths are relative to the file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UsageError
from ..toml_file import read_toml, take_tables
from .destinations import Destination, Silence, read_destination, read_silence
from .groups import Groups, load_groups
from .journal import Opened
from .rules import DEFAULT_RULES, RuleSet, duration_us, read_key, rule_set

_WAIT = "30s"
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class AlertConfig:
    """The content of ``alerts.toml``. `wait_s`: seconds to wait for more alerts before a message is sent."""

    rules: RuleSet = DEFAULT_RULES
    destinations: Sequence[Destination] = ()
    silences: Sequence[Silence] = ()
    wait_s: float = 30.0

    def recipients(self, alert: Opened, now_us: int) -> tuple[str, ...]:
        """Return the names of the destinations that get an alert; empty while the alert is silenced."""
        membership = self.rules.of(alert.device)
        if any(silence.covers(alert.rule, alert.device, membership, now_us) for silence in self.silences):
            return ()
        return tuple(one.name for one in self.destinations if one.wants(alert.rule, membership))


def load(path: Path) -> AlertConfig:
    """Read ``alerts.toml`` and check it.

    :raises UsageError: the file cannot be read, or a value in it cannot work.
    :raises MissingDependency: there are destinations, and apprise is not installed.
    """
    content = read_toml(path)
    groups: Groups = {}
    if (name := content.pop("groups", None)) is not None:
        if not isinstance(name, str) or not name:
            raise UsageError(f"{path}: groups = {name!r} must be the name of a CSV file")
        groups = load_groups(path.parent / name)
    wait_us = read_key(str(path), "wait", duration_us, content.pop("wait", _WAIT))
    rules = rule_set(path, take_tables(path, content, "rule", "a name and a kind", required=False), groups)
    destinations = _each(path, content, "send", "a name and a url", rules, read_destination)
    silences = _each(path, content, "silence", "from and until", rules, read_silence)
    if content:
        known = "groups, wait, [[rule]], [[send]] and [[silence]]"
        raise UsageError(f"{path}: there is no key {min(content)}; there are {known}")
    names = [one.name for one in destinations]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"{path}: two destinations are called {min(twice)!r}")
    return AlertConfig(rules, destinations, silences, wait_us / 1e6)


def _each(
    path: Path,
    content: dict[str, Any],
    name: str,
    needs: str,
    rules: RuleSet,
    read: Callable[[str, dict[str, Any], RuleSet], _Read],
) -> list[_Read]:
    tables = take_tables(path, content, name, needs, required=False)
    return [read(f"{path}: {name} {table.get('name', index)!r}", table, rules) for index, table in enumerate(tables, 1)]
