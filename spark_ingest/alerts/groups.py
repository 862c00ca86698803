"""Reads ``groups.csv``: the group and the site of each device (docs/alerts.md)."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError

_HEADER = ["device", "group", "site"]
_LONGEST = 64


class Membership(NamedTuple):
    """The group and the site of a device; "" if it has none."""

    group: str = ""
    site: str = ""


class Scope(NamedTuple):
    """A selection of devices: those of these groups and sites; an empty tuple selects all."""

    groups: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()

    def covers(self, membership: Membership) -> bool:
        """Return whether it selects devices of this group and site."""
        in_group = not self.groups or membership.group in self.groups
        return in_group and (not self.sites or membership.site in self.sites)


EVERYWHERE = Scope()
Groups = Mapping[str, Membership]
NOWHERE = Membership()


def load_groups(path: Path) -> Groups:
    """Read the devices of a file.

    :raises UsageError: the file cannot be read, or a line is not valid.
    """
    found: dict[str, Membership] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            if next(rows, None) != _HEADER:
                raise UsageError(f"{path}: the first line must be {','.join(_HEADER)}")
            for row in rows:
                where = f"{path}: line {rows.line_num}"
                if not row:
                    continue
                if len(row) != len(_HEADER) or not row[0]:
                    raise UsageError(f"{where}: must be {','.join(_HEADER)}; group or site may be empty")
                if not all(len(name) <= _LONGEST and name.isprintable() for name in row[1:]):
                    raise UsageError(f"{where}: a group or site is at most {_LONGEST} characters that print")
                if row[0] in found:
                    raise UsageError(f"{where}: {row[0]!r} is listed twice")
                found[row[0]] = Membership(*row[1:])
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not CSV: {error}") from error
    return found
