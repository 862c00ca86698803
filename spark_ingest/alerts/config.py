"""``alerts.toml``: rules, and where the groups of devices stand. Paths are relative to the file."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..toml_file import read_toml, take_tables
from .groups import Groups, load_groups
from .rules import DEFAULT_RULES, RuleSet, rule_set


@dataclass(frozen=True)
class AlertConfig:
    """What alerts are about."""

    rules: RuleSet = DEFAULT_RULES


def load(path: Path) -> AlertConfig:
    """The content of a file, checked.

    :raises UsageError: it cannot be read, or says something that cannot work.
    """
    content = read_toml(path)
    groups: Groups = {}
    if (name := content.pop("groups", None)) is not None:
        if not isinstance(name, str) or not name or "\0" in name:
            raise UsageError(f"{path}: groups = {name!r} must be the name of a CSV file")
        groups = load_groups(path.parent / name)
    rules = rule_set(path, take_tables(path, content, "rule", "a name and a kind", required=False), groups)
    if content:
        raise UsageError(f"{path}: there is no key {min(content)}; there are groups and [[rule]]")
    return AlertConfig(rules)
