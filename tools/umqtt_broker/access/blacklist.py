"""Clients that may not connect, whatever their credentials: a file with one rule per line.

    # a stolen board, a test account, a network that attacks
    client_id pump-7
    client_id old-*
    username demo
    address 192.0.2.0/24

In client identifiers and user names, `*` stands for any text, `?` for any character, `[...]` for one of the characters
listed. An address is an IPv4 or IPv6 address, or a network.
"""

import ipaddress
import re
from collections.abc import Callable
from fnmatch import translate
from pathlib import Path

from ..errors import ConfigError

_KINDS = ("client_id", "username", "address")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Blacklist:
    """The rules of one file; empty without a file. They never change: a reload makes a new one."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {"client_id": set(), "username": set()}
        self._patterns: dict[str, list[str]] = {"client_id": [], "username": []}
        self._networks: list[Network] = []
        self._matches: dict[str, Callable[[str], object]] = {}

    @classmethod
    def read(cls, path: str | Path) -> "Blacklist":
        """Read a file. Raises ConfigError that names the file and the line."""
        blacklist = cls()
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot read the blacklist ({error.strerror}) — check blacklist_file") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: the blacklist is not UTF-8 ({error.reason} at byte {error.start})") from error
        for number, line in enumerate(text.split("\n"), 1):
            line = line.strip()
            if line and not line.startswith("#"):
                blacklist._add(line, f"{path}:{number}")
        for kind, patterns in blacklist._patterns.items():
            if patterns:
                blacklist._matches[kind] = re.compile("|".join(map(translate, patterns))).match
        return blacklist

    def _add(self, line: str, where: str) -> None:
        kind, *values = line.split(maxsplit=1)
        value = values[0] if values else ""
        if kind not in _KINDS or not value:
            raise ConfigError(f"{where}: {line!r} is no rule — write: client_id NAME, username NAME or address NETWORK")
        if kind == "address":
            try:
                self._networks.append(ipaddress.ip_network(value))
            except ValueError as error:
                raise ConfigError(f"{where}: {error} — write an address or a network, as 192.0.2.0/24") from error
        elif set(value) & set("*?["):
            self._patterns[kind].append(value)
        else:
            self._names[kind].add(value)

    def refuses(self, client_id: bytes, username: bytes | None, address: str) -> bool:
        """Return True if a client may not connect."""
        return (
            self._names_match("client_id", client_id)
            or (username is not None and self._names_match("username", username))
            or (bool(self._networks) and self._address_matches(address))
        )

    def _names_match(self, kind: str, name: bytes) -> bool:
        text = name.decode(errors="replace")
        matches = self._matches.get(kind)
        return text in self._names[kind] or (matches is not None and bool(matches(text)))

    def _address_matches(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False  # the path of a Unix socket
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            # An IPv6 listener sees an IPv4 client as ::ffff:192.0.2.1.
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)
