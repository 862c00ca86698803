"""Reads the lines of configuration files in mosquitto.conf's syntax, and collects problems."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError

_SHOWN = 60


class Line(NamedTuple):
    """One setting: the file and line number, the key and the value ("" if there is none)."""

    file: str
    number: int
    key: str
    value: str

    @property
    def where(self) -> str:
        """The place of the line, as FILE:LINE."""
        return f"{self.file}:{self.number}"

    @property
    def shown(self) -> str:
        """The value for a message: quoted and shortened."""
        return repr(self.value if len(self.value) <= _SHOWN else f"{self.value[:_SHOWN]}…")


class ConfigFileError(ConfigError):
    """A configuration file cannot be used. `str()` has a line for each problem; `problems` has them one by one."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(slots=True)
class Problems:
    """The problems of a configuration: errors, and warnings, with which it can still be used."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def error(self, file: str, number: int, text: str) -> None:
        """Note an error at a line."""
        self.errors.append(f"{file}:{number}: {text}")

    def warn(self, file: str, number: int, text: str) -> None:
        """Note a warning at a line."""
        self.warnings.append(f"{file}:{number}: {text}")

    def at(self, line: Line, text: str) -> None:
        """Note an error at a setting."""
        self.error(line.file, line.number, text)

    def raise_errors(self) -> None:
        """Raise ConfigFileError if there is any error."""
        if self.errors:
            raise ConfigFileError(self.errors)


def read_lines(path: str, problems: Problems) -> list[Line]:
    """Return the settings of a file and of the folders that it includes, in the order in which they apply."""
    lines: list[Line] = []
    for line in _read(path, problems, None):
        if line.key == "include_dir":
            lines += _included(line, path, problems)
        else:
            lines.append(line)
    return lines


def _included(line: Line, main: str, problems: Problems) -> Iterator[Line]:
    if not line.value:
        problems.at(line, "include_dir needs a folder")
        return
    try:
        names = [name for name in os.listdir(line.value) if name.endswith(".conf")]
    except OSError as error:
        problems.at(line, f"include_dir {line.value!r} cannot be read ({error.strerror}) — name a folder")
        return
    # Upper case before lower case of the same letter; digits before letters.
    for name in sorted(names, key=lambda name: (name.lower(), name)):
        path = os.path.join(line.value, name)
        if _is_same_file(path, main):
            problems.at(line, f"include_dir {line.value!r} holds the main file itself — put that elsewhere")
            continue
        for included in _read(path, problems, line):
            if included.key == "include_dir":
                problems.at(included, "include_dir counts in the main file only — name the folder there")
            else:
                yield included


def _is_same_file(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _read(path: str, problems: Problems, asked_for: Line | None) -> Iterator[Line]:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        text = f"{path} cannot be read ({error.strerror})"
        if asked_for is None:
            problems.errors.append(f"{text} — give a configuration file with -c")
        else:
            problems.at(asked_for, f"{text} — make it readable or remove it")
        return
    for number, encoded in enumerate(content.split(b"\n"), 1):
        try:
            line = encoded.decode().strip(" \t\r")
        except UnicodeDecodeError:
            problems.error(path, number, "not UTF-8 text")
            continue
        if not line or line.startswith("#"):
            continue
        if "\0" in line:
            problems.error(path, number, "a NUL character — neither a file nor a topic has one in its name")
            continue
        # Of nothing else, so that a line of other white space has a key, which is unknown.
        key, *value = re.split("[ \t]+", line, maxsplit=1)
        yield Line(path, number, key, value[0] if value else "")
