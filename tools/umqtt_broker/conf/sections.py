"""Assigns the lines of a configuration to sections: of a listener or of the whole broker."""

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .keys import FIXED, KEYS, LENIENT, PLUGIN_KEYS, PLUGINS, UNSUPPORTED, UNSUPPORTED_PREFIXES, Key
from .lines import Line, Problems
from .values import Parser

_OF_LISTENERS = ("listener", "tls")
_NAMES = (*KEYS, *FIXED, *UNSUPPORTED, *PLUGIN_KEYS)
_WRONG = object()
_SHOWN_KEY = 60


@dataclass(slots=True)
class Section:
    """The settings of a listener, or of the whole broker.

    line: the `listener` line, None for others. values: the values by scope and attribute. lines: the last line of each
    key. broken: the scopes in which a line was wrong, whose values are therefore incomplete.
    """

    line: Line | None = None
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)

    def of(self, scope: str) -> dict[str, Any]:
        """Return the values of a scope, by attribute."""
        return self.values.setdefault(scope, {})

    def first_line(self) -> Line | None:
        """Return the line to name when the section as a whole is wrong."""
        return self.line or next(iter(self.lines.values()), None)


@dataclass(slots=True)
class ConfigSections:
    """A whole configuration. default: the listener without a `listener` line.

    per_listener: the value of per_listener_settings.
    """

    broker: Section = field(default_factory=Section)
    default: Section = field(default_factory=Section)
    listeners: list[Section] = field(default_factory=list)
    per_listener: bool = False


class Reader:
    """Assigns lines to sections, and notes every wrong line in the problems.

    lenient: the keys in LENIENT are warnings where they are not supported.
    """

    def __init__(self, problems: Problems, lenient: bool) -> None:
        self._problems = problems
        self._lenient = lenient
        self._sections = ConfigSections()
        self._section = self._sections.default
        # The last plugin line whose option, the key here, is still to come.
        self._plugin: tuple[Line, str] | None = None

    def read(self, lines: Iterable[Line]) -> ConfigSections:
        """Return the sections of the lines."""
        for line in lines:
            if line.key in KEYS:
                self._take(KEYS[line.key], line)
            elif line.key in PLUGIN_KEYS:
                self._take_plugin(line)
            elif self._plugin and line.key == f"plugin_opt_{self._plugin[1]}":
                self._take(KEYS[self._plugin[1]], line)
                self._plugin = None
            elif line.key in FIXED:
                self._take_fixed(line)
            else:
                self._unknown(line)
        self._check_plugin()
        self._check_default()
        return self._sections

    def _take(self, key: Key, line: Line) -> None:
        if key.name == "listener":
            if self._sections.per_listener:
                self._check_plugin()
            self._section = Section(line)
            self._sections.listeners.append(self._section)
        section = self._owner(key)
        value = self._parse(key.name, key.parse, line)
        if value is _WRONG:
            section.broken.add(key.scope)
        elif key.name == "listener":
            self._set_address(section, line, *value)
        else:
            if key.name == "per_listener_settings":
                self._set_per_listener(line, value)
            self._set(section, key, line, value)

    def _owner(self, key: Key) -> Section:
        if key.name in ("port", "bind_address"):
            return self._sections.default  # wherever they stand
        if key.name == "listener" or key.scope in _OF_LISTENERS:
            return self._section
        return self._section if key.scope == "security" and self._sections.per_listener else self._sections.broker

    def _parse(self, name: str, parse: Parser, line: Line) -> Any:
        """Return the value, or _WRONG."""
        if not line.value:
            self._problems.at(line, f"{name} has no value — write it behind the key")
            return _WRONG
        try:
            return parse(line.value)
        except ValueError as error:
            self._problems.at(line, f"{name} cannot be {line.shown} — it is {error}")
            return _WRONG

    def _set(self, section: Section, key: Key, line: Line, value: Any) -> None:
        values, attribute = section.of(key.scope), key.attribute or key.name
        if key.repeats:
            values[attribute] = (*values.get(attribute, ()), value)
        else:
            values[attribute] = value
        if not key.repeats and key.name in section.lines:
            self._warn_twice(section.lines[key.name], line, key.scope == "security" and not self._sections.per_listener)
        section.lines[key.name] = line

    def _warn_twice(self, first: Line, line: Line, is_global: bool) -> None:
        text = f"{line.key} is already set at {first.where} — this line takes effect"
        if is_global and len(self._sections.listeners) > 1:
            text += ", for all listeners; with per_listener_settings true each has its own"
        self._problems.warn(line.file, line.number, text)

    def _set_address(self, section: Section, line: Line, port: int, address: str) -> None:
        values = section.of("listener")
        values["port"] = port
        if "/" not in address:
            values["host"] = address
        elif port:
            self._problems.at(line, "a listener on a Unix socket has port 0 — write: listener 0 PATH")
        else:
            values["path"] = address

    def _set_per_listener(self, line: Line, value: bool) -> None:
        lines = self._sections.broker.lines
        early = next((said for name, said in lines.items() if KEYS[name].scope == "security"), None)
        if value and early is not None:
            # mosquitto would silently ignore the earlier line.
            self._problems.at(line, f"per_listener_settings stands below {early.key} ({early.where}) — put it first")
        self._sections.per_listener = value

    def _take_plugin(self, line: Line) -> None:
        """Read mosquitto's ACL and password plugins as the keys that do the same; other plugins are errors."""
        self._check_plugin()
        key = PLUGINS.get(os.path.basename(line.value).partition(".")[0])
        if key is None:
            self._problems.at(line, f"{line.key} is not supported — use permission_hook")
        elif line.key == "global_plugin" and self._sections.per_listener:
            self._problems.at(line, f"{line.key} is not supported here — write {key} FILE below each listener")
        else:
            self._plugin = line, key

    def _check_plugin(self) -> None:
        if self._plugin is not None:
            line, key = self._plugin
            self._problems.at(line, f"{line.key} {line.value} has no plugin_opt_{key} — write: {key} FILE")
            self._plugin = None

    def _take_fixed(self, line: Line) -> None:
        parse, only, why = FIXED[line.key]
        value = self._parse(line.key, parse, line)
        if value is not _WRONG and value != only:
            self._report(line, f"{line.key} {line.value} is not supported — {why}")

    def _report(self, line: Line, text: str) -> None:
        if self._lenient and line.key in LENIENT:
            self._problems.warn(line.file, line.number, text)
        else:
            self._problems.at(line, text)

    def _unknown(self, line: Line) -> None:
        """Report an unknown or unsupported key. Its value is not shown, since it may be a secret."""
        remedy = UNSUPPORTED.get(line.key) or next(
            (text for prefix, text in UNSUPPORTED_PREFIXES.items() if line.key.startswith(prefix)), None
        )
        if remedy is not None:
            self._report(line, f"{line.key} is not supported — {remedy}")
            return
        nearest = difflib.get_close_matches(line.key.lower(), _NAMES, 1)
        hint = f"did you mean {nearest[0]}?" if nearest else "docs/broker.md has all keys"
        self._problems.at(line, f"unknown key {line.key[:_SHOWN_KEY]!r} — {hint}")

    def _check_default(self) -> None:
        """Report settings above the first `listener` line: they would belong to a listener that nobody asked for."""
        default = self._sections.default
        if not self._sections.listeners or default.of("structure"):
            return
        for name, line in default.lines.items():
            self._problems.at(
                line, f"{name} stands above the first listener — put it below, or say `port` for one more listener"
            )
